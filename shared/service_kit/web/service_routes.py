"""What a service says of itself: whether it is up and ready, its certificates, and its notices."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

from fastapi import APIRouter, Request

from blindopt import wire
from blindopt.errors import AuditUnavailable, RecordChanged, StorageUnavailable, Unauthenticated
from service_kit.certificates import Certificates
from service_kit.context.context import ServiceContext
from service_kit.identity.tokens import Role
from service_kit.notices.delivery import NoticeDelivery
from service_kit.store import schema
from service_kit.web import problems
from service_kit.web.dependencies import allowed, api_router
from service_kit.web.listings import PagingDep

PATIENCE_SECONDS = 0.05
OLDEST_SECONDS = 10.0


class Readiness:
    """Runs a check that may block, in a thread of its own, one at a time.

    Where it takes longer than ``PATIENCE_SECONDS``, the result before it counts, unless that is older than
    ``oldest_seconds``.
    """

    def __init__(self, check: Callable[[], None], oldest_seconds: float = OLDEST_SECONDS) -> None:
        self._check, self._oldest_seconds = check, oldest_seconds
        self._thread = ThreadPoolExecutor(1, "readiness")
        self._running: Future[None] | None = None
        self._last: tuple[float, BaseException | None] = (float("-inf"), None)

    async def check(self) -> None:
        if self._running is None or self._running.done():
            self._running = self._thread.submit(self._run)
        running = asyncio.wrap_future(self._running)
        await asyncio.wait([running], timeout=PATIENCE_SECONDS)
        if not running.done() and time.monotonic() - self._last[0] > self._oldest_seconds:
            await asyncio.wait([running])
        if self._last[1] is not None:
            raise self._last[1].with_traceback(None)

    def _run(self) -> None:
        fault = None
        try:
            self._check()
        except Exception as error:
            fault = error
        self._last = (time.monotonic(), fault)


@cache  # routes have no state: applications of one process share them
def certificates(readers: tuple[Role, ...]) -> APIRouter:
    """The list of certificates, for ``readers``."""
    routes = api_router("health", *readers)

    @routes.get("/v1/certificates")
    def list_certificates(request: Request) -> wire.CertificateList:
        """List certificates that the service uses for TLS: when they expire, and what is wrong with them."""
        in_use: Certificates = request.app.state.certificates
        return wire.CertificateList(certificates=in_use.views())

    return routes


@cache  # routes have no state: applications of one process share them
def notices(readers: tuple[Role, ...], testers: tuple[Role, ...]) -> APIRouter:
    """Routes that list notices for ``readers``, and send a test notice for ``testers``."""
    routes = api_router("notices")

    @routes.get("/v1/notices", dependencies=[allowed(*readers)])
    def list_notices(request: Request, paging: PagingDep) -> wire.NoticePage:
        """List notices with the state of their delivery. A notice is kept for 30 days after it was delivered."""
        page, token = paging.read(_delivery(request).page)
        return wire.NoticePage(notices=page, next_page_token=token)

    @routes.post("/v1/notices:test", dependencies=[allowed(*testers)])
    def test_notices(request: Request) -> wire.NoticeTest:
        """Send a test notice now, and say in plain words what is wrong with the receiver.

        One is sent at a time; while another is on its way, the reply is 503 `busy`.
        """
        return _delivery(request).test()

    return routes


def _delivery(request: Request) -> NoticeDelivery:
    delivery: NoticeDelivery = request.app.state.notice_delivery
    return delivery


def health(monitors: tuple[Role, ...]) -> APIRouter:
    """/healthz and /readyz, which say more to ``monitors``."""
    router = APIRouter(tags=["health"])
    unready: dict[int | str, dict[str, Any]] = {
        503: {
            "description": "The database cannot be written, or the disk is full.",
            **problems.documented()[503],
        }
    }

    @router.get("/healthz", response_model=wire.Health, operation_id="healthz")
    async def healthz() -> wire.Health:
        """Check that the process is up. Returns `ok`."""
        return wire.Health(status="ok")

    @router.get(
        "/readyz",
        response_model=wire.Health,
        response_model_exclude_unset=True,
        operation_id="readyz",
        responses=unready,
    )
    async def readyz(request: Request) -> wire.Health:
        """Check that the database can be written, the log's head verifies, and the disk has room for new work.

        A token that may read metrics also gets the version of the database's schema, the free bytes of the disk, and
        how far the verification of everything is.
        """
        readiness: Readiness = request.app.state.readiness
        context: ServiceContext = request.app.state.context
        try:
            await readiness.check()
        except StorageUnavailable:
            raise
        except Exception:
            raise AuditUnavailable("the database cannot be written, or its log does not verify") from None
        with suppress(Unauthenticated, RecordChanged):
            principal = await context.authentication.authenticate(request.headers.get("authorization", ""))
            if principal.role in monitors:
                return wire.Health(
                    status="ok",
                    schema_version=schema.VERSION,
                    disk_free_bytes=request.app.state.disk.free,
                    verification=request.app.state.log_verification.progress(),
                )
        return wire.Health(status="ok")

    return router
