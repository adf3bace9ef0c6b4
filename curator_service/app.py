"""Build the curator's ASGI application."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from blindopt.faults import SMALL_BYTES
from curator_service import console
from curator_service.context import open_context
from curator_service.curator import Curator
from curator_service.erasure.erasure import sweeps
from curator_service.integrity import log_checks
from curator_service.links import Links, routes_of_grants
from curator_service.routes import accounts, datasets, inbox, jobs, messages, overviews, queries, studies
from curator_service.settings import Settings
from curator_service.vault import Vault
from service_kit import app as serving
from service_kit.context.log_archive import LogArchive
from service_kit.context.retention import Retention
from service_kit.identity.tokens import Principal
from service_kit.notices.delivery import NoticeDelivery
from service_kit.notices.receiver import Receiver
from service_kit.store.base import Clock, utc_now
from service_kit.web.metrics import gauge

DESCRIPTION = """\
Holds a data owner's records and lets a modeler optimize over them without seeing them.

Send a token as `Authorization: Bearer blindopt_...`, and an `Idempotency-Key` with every POST that creates or
spends: the same key with the same body gets the stored reply. Errors are RFC 9457 problem documents.
"""


def build(settings: Settings, clock: Clock = utc_now) -> FastAPI:
    """The curator as an ASGI application. Only one process may serve a data folder."""
    context = open_context(settings, clock)
    context.audit_trail.begin()
    delivery = NoticeDelivery(context, "blindopt-curator", Receiver.of(settings))
    vault = Vault(settings.data_dir / "files", settings.part_bytes)
    tempfile.tempdir = str(vault.scratch)  # an upload that does not fit in memory stays in the private folder
    curator = Curator(context, vault, settings)
    days = settings.retention_log_days
    archive = None if days is None else LogArchive(context, days, log_checks.archivable)
    retention = Retention(context, sweeps(settings), archive)
    about = "1 if the last attempt to archive old records of the log failed, else 0."
    archiving = gauge("blindopt_log_archive_failed", about, lambda: archive is not None and archive.has_failed)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with serving.running(app, context, delivery, retention) as ends:
            await run_in_threadpool(curator.recover)  # before the first request, if the log is verified by now
            curator.start()
            ends.push_async_callback(run_in_threadpool, curator.close)
            outbound.start()
            ends.push_async_callback(outbound.stop)
            yield

    def limit_of(path: str, principal: Principal | None) -> int:
        role = None if principal is None else principal.role
        if role == "modeler":  # the largest that a modeler has to send, 1,000 rows, is half of it
            return min(SMALL_BYTES, settings.body_limit_bytes)
        if path in ("/v1/datasets", "/v1/uploads", "/console/datasets") and role == "owner":
            return settings.upload_limit_bytes
        if path in (*inbox.LARGE, "/console/inbox/import") and role in ("owner", "measurer"):
            return inbox.LARGE_BYTES
        return settings.body_limit_bytes

    app = serving.build(
        title="blindopt curator",
        description=DESCRIPTION,
        context=context,
        findings=log_checks.findings,
        delivery=delivery,
        settings=settings,
        routers=[  # the busiest first
            queries.router,
            inbox.router,
            accounts.router,
            overviews.router,
            overviews.meta_router,
            datasets.router,
            datasets.uploads_router,
            studies.router,
            jobs.forecasts,
            jobs.tunings,
            messages.router,
            overviews.links_router,
        ],
        limit_of=limit_of,
        period_of=lambda method, path, principal: queries.period_of(curator, method, path, principal),
        auditors=("owner", "auditor", "modeler"),
        monitors=("monitor", "owner"),
        jobs=curator.jobs,
        gauges=lambda: (*curator.gauges(), *outbound.gauges(), archiving),
        noticed=("owner", "auditor"),
        hot=[queries.HOT],
        lifespan=lifespan,
        console=console.build(),
    )
    app.state.curator = curator
    app.state.links = outbound = Links(app, context, routes_of_grants(app.routes), settings, app.state.peers)

    def leave() -> None:
        app.state.leaving = True
        curator.wakeups.close()

    app.state.leave = leave
    return app
