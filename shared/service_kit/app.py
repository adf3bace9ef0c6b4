"""Builds the FastAPI application of a service."""

import logging
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI
from pydantic import BaseModel
from pydantic.warnings import UnsupportedFieldAttributeWarning
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from blindopt import wire
from blindopt.version import VERSION
from service_kit.certificates import Certificates
from service_kit.console import Console
from service_kit.context import key_rotation
from service_kit.context.context import ServiceContext
from service_kit.context.disk_space import DiskSpace
from service_kit.context.retention import Retention
from service_kit.identity.tokens import Principal, Role
from service_kit.notices.delivery import NoticeDelivery
from service_kit.settings import ServiceSettings
from service_kit.verification import Findings, LogVerification
from service_kit.web import audit_routes, openapi, problems, service_routes
from service_kit.web.metrics import Figures, Jobs, Metrics, of_certificates, of_peers, of_service
from service_kit.web.metrics import router as metrics_router
from service_kit.web.middleware import HotRoutes, PeriodOf, RateLimit, RequestMiddleware, at_once
from service_kit.web.peers import PeerErrors
from service_kit.web.service_routes import Readiness

log = logging.getLogger("blindopt.start")
# FastAPI silences it where it makes its adapters; those of our models are built later, at the first request.
warnings.filterwarnings("ignore", category=UnsupportedFieldAttributeWarning)


def build(
    *,
    title: str,
    description: str,
    context: ServiceContext,
    findings: Findings,
    settings: ServiceSettings,
    routers: list[APIRouter],
    limit_of: Callable[[str, Principal | None], int],
    period_of: PeriodOf = at_once,
    auditors: tuple[Role, ...],
    monitors: tuple[Role, ...] = (),
    jobs: Jobs = dict,
    gauges: Callable[[], Figures] = tuple,
    delivery: NoticeDelivery | None = None,
    noticed: tuple[Role, ...] = (),
    hot: Sequence[Route] = (),
    lifespan: Any = None,
    read_by_hand: tuple[type[BaseModel], ...] = (),
    console: Console | None = None,
) -> FastAPI:
    """The application: middleware, problem documents, health, the log, the service's own routes.

    ``monitors`` may read metrics, if the settings enable them; ``jobs`` counts jobs by kind and state, and
    ``gauges`` returns the service's own figures, for the metrics.
    ``hot`` are routes that match before the documented ones and bypass FastAPI; ``read_by_hand`` are bodies that routes
    parse themselves, for the OpenAPI document; ``console`` are the pages for users.
    ``findings`` compares the tables with the log. ``delivery`` delivers notices, which the roles ``noticed`` may read;
    the first of them may send a test.
    FastAPI's documentation pages load outside resources, so /docs links the contract.
    """
    key_rotation.settle(context, settings.data_dir / "secrets")
    app = _Application(
        title=title,
        description=description,
        version=VERSION,
        openapi_url=None,  # see ``openapi.route``
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        separate_input_output_schemas=False,
        redirect_slashes=False,  # a redirect would repeat the Host header
    )
    app.state.context = context
    disk = app.state.disk = DiskSpace(settings.data_dir, settings.disk_min_bytes)

    def check_ready() -> None:
        context.audit_trail.check_ready()
        disk.check()

    app.state.readiness = Readiness(check_ready)
    app.state.log_verification = LogVerification(context, findings, hours=settings.verify_hours)
    certificates = app.state.certificates = Certificates(settings, context.clock)
    peers = app.state.peers = PeerErrors()
    metrics = None
    if settings.metrics:
        metrics = Metrics(
            lambda: (
                *of_service(context, settings.data_dir, jobs, check_ready),
                of_certificates(certificates),
                of_peers(peers),
                *gauges(),
            )
        )
    app.state.metrics = metrics
    on_failed_login = metrics.count_failed_login if metrics is not None else lambda: None
    app.state.console = console.open(app, context, settings, on_failed_login) if console is not None else None
    if settings.password_hash == "minimal":  # noqa: S105  a setting and not a password
        log.warning("PASSWORD_HASH is minimal: stored passwords are not protected")
    app.state.notice_delivery = delivery
    problems.install(app)
    around = partial(
        RequestMiddleware,
        context=context,
        principal_rate=RateLimit(settings.rate_per_second, settings.rate_burst),
        bad_token_rate=RateLimit(settings.bad_tokens_per_minute / 60, settings.bad_tokens_per_minute),
        limit_of=limit_of,
        period_of=period_of,
        count=metrics.count_request if metrics is not None else None,
        console=app.state.console,
        peers=peers,
    )
    app.add_middleware(around)
    app.hot = HotRoutes(hot, around)
    app.router.routes.extend(hot)
    readers = tuple(role for role in auditors if role != "modeler")
    included = [
        *routers,
        audit_routes.router(auditors),
        service_routes.certificates(readers),
        service_routes.health(monitors),
    ]
    if delivery is not None:
        included.append(service_routes.notices(noticed, noticed[:1]))
    if metrics is not None:
        included.append(metrics_router(metrics, monitors))
    for router in included:  # as they are: FastAPI's include_router builds each of them again, at the first request
        app.router.routes.extend(router.routes)
    if console is not None:
        app.router.routes.extend(console.routes)
    app.openapi = lambda: openapi.document(app, (wire.Problem, *read_by_hand))  # type: ignore[method-assign]
    app.router.routes += openapi.routes(app)
    return app


@asynccontextmanager
async def running(
    app: FastAPI, context: ServiceContext, delivery: NoticeDelivery, retention: Retention
) -> AsyncIterator[AsyncExitStack]:
    """What a service runs beside its own work, which is ended first: its ends go onto the stack."""
    async with AsyncExitStack() as ends:  # each part is closed, even if another raises
        ends.callback(context.close)
        context.database.attach()
        ends.push_async_callback(context.database.finish)
        for part in (app.state.log_verification, delivery, retention):
            await run_in_threadpool(part.start)
            ends.push_async_callback(run_in_threadpool, part.close)
        yield ends


class _Application(FastAPI):
    """FastAPI's application, which looks at the busiest routes first."""

    hot: HotRoutes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.hot.serve(self, scope, receive, send) or super().__call__(scope, receive, send))
