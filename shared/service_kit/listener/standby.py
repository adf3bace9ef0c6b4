"""A service on PostgreSQL: it serves while its session leads, and waits as a standby before and after."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import Receive, Scope, Send

from blindopt.errors import BlindoptError, Standby, StorageUnavailable
from service_kit.certificates import Certificates
from service_kit.web import problems
from service_kit.web.metrics import NOT_LEADING

log = logging.getLogger("blindopt.standby")
_BEAT_S = 0.5
_AGAIN_S = 1.0
_ANSWER_S = 10.0
"""As long as a connection waits for the other machine (tcp_user_timeout)."""


class StandbyApp:
    """The application of a service, built anew each time this process begins to lead, so that no cache outlives it.

    ``lead`` waits in steps of some seconds for the lock of the leader, and returns whether it has it. ``build`` opens
    the database, recovers what was interrupted, and returns the application.
    """

    def __init__(
        self, lead: Callable[[], bool], build: Callable[[], FastAPI], certificates: Certificates, *, metrics: bool
    ) -> None:
        self._lead, self._build, self._metrics = lead, build, metrics
        self._app: FastAPI | None = None
        self._is_closing = asyncio.Event()
        self.state = SimpleNamespace(certificates=certificates, leave=self._leave)
        """What the server reads of an application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)
        elif scope["path"] == "/healthz":
            await JSONResponse({"status": "ok"})(scope, receive, send)
        elif scope["path"] == "/metrics" and self._metrics:  # without a token, which only the database knows
            await PlainTextResponse(NOT_LEADING)(scope, receive, send)
        else:
            await problems.refusal(Standby(), "")(scope, receive, send)

    def _leave(self) -> None:
        if self._app is not None:
            self._app.state.leave()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        serving = asyncio.create_task(self._serve())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._is_closing.set()
        await serving
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self) -> None:
        while not self._is_closing.is_set():
            try:
                if await run_in_threadpool(self._lead):
                    await self._serve_leading()
            except BlindoptError as error:
                log.warning("no database yet: %s", error)
                await self._wait(_AGAIN_S)
            except Exception as error:  # nothing may end the wait for the lock
                log.error("the service could not be opened or closed: %s", type(error).__name__)
                await self._wait(_AGAIN_S)

    async def _serve_leading(self) -> None:
        app = await run_in_threadpool(self._build)
        async with app.router.lifespan_context(app):
            log.info("this process leads")
            self._app = app
            try:
                await self._until_lost(app.state.context.database)
            finally:
                if not self._is_closing.is_set():
                    self._app = None
                    log.error("this process leads no more: its session of the database has ended")
                    app.state.leave()

    async def _until_lost(self, database: Any) -> None:
        """Wait until the session that writes has ended: a write of nothing, now and then, finds that out.

        The write may wait for a lock. A read that is not answered within ``_ANSWER_S`` ends the session.
        """
        await database.write_soon(lambda db: database.server.end_when_idle())
        beat: asyncio.Task[Any] | None = None
        while not await self._wait(_BEAT_S):
            if beat is None or beat.done():
                beat = asyncio.create_task(_written(database))
            try:
                await asyncio.wait_for(database.server.answer(), _ANSWER_S)
            except TimeoutError:
                database.server.abandon()
            except StorageUnavailable:  # no further session may be opened; the one that writes is there, perhaps
                pass
            if database.server.is_lost:
                return

    async def _wait(self, seconds: float) -> bool:
        """Wait, at most until the service ends; whether it does."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_closing.wait(), seconds)
        return self._is_closing.is_set()


async def _written(database: Any) -> None:
    with suppress(BlindoptError):
        await database.write_soon(lambda db: None)
