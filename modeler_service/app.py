"""Builds and wires the modeler."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from blindopt import wire
from modeler_service import console
from modeler_service.context import open_context
from modeler_service.integrity import log_checks
from modeler_service.routes import links, messages, meta, runs
from modeler_service.settings import Settings
from modeler_service.use_cases.modeler import Modeler
from service_kit import app as serving
from service_kit.context.retention import Retention, common
from service_kit.notices.delivery import NoticeDelivery
from service_kit.notices.receiver import Receiver
from service_kit.web.metrics import of_commits

DESCRIPTION = """\
Optimizes over a curator's records without seeing them: fetches transformed candidates, chooses rows, asks.

Send a token as `Authorization: Bearer blindopt_...`, and an `Idempotency-Key` with every POST: the same key
with the same body gets the stored reply. Errors are RFC 9457 problem documents.
"""


def build(settings: Settings) -> FastAPI:
    """The modeler as an ASGI application. Only one process may serve a data folder."""
    context = open_context(settings)
    context.audit_trail.begin()
    delivery = NoticeDelivery(context, "blindopt-modeler", Receiver.of(settings))
    modeler = Modeler(context, settings)
    retention = Retention(context, common(settings))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with serving.running(app, context, delivery, retention) as ends:
            modeler.wakeups.attach()
            await run_in_threadpool(modeler.scheduler.start)
            ends.push_async_callback(run_in_threadpool, modeler.close)
            yield

    link_bytes = wire.LINK_PART_BYTES + wire.LINK_HEAD_BYTES
    app = serving.build(
        title="blindopt modeler",
        description=DESCRIPTION,
        context=context,
        findings=log_checks.findings,
        delivery=delivery,
        settings=settings,
        routers=[meta.router, runs.router, runs.connections, messages.router, links.router],
        limit_of=lambda path, principal: link_bytes if path.startswith(links.PATHS) else settings.body_limit_bytes,
        auditors=("vendor", "viewer"),
        monitors=("monitor", "vendor"),
        jobs=modeler.jobs,
        gauges=lambda: (lambda: of_commits(context), *links.gauges(context)),
        noticed=("vendor",),
        lifespan=lifespan,
        console=console.build(),
        read_by_hand=(wire.ObservationImport,),
    )
    app.state.modeler = modeler
    app.state.leave = modeler.leave
    return app
