"""Builds and wires the modeler."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from modeler_service import store
from modeler_service.routes import meta, runs
from modeler_service.service import Modeler
from modeler_service.settings import Settings
from shared.serving import app as serving
from shared.serving.desk import Desk
from shared.serving.seal import Seal
from shared.serving.store.database import Database
from shared.serving.store.tables import APPEND_ONLY, METADATA, Clock

DESCRIPTION = """\
Optimizes over a curator's records without seeing them: fetches transformed candidates, chooses rows, asks.

Send a token as `Authorization: Bearer blindopt_...`, and an `Idempotency-Key` with every POST: the same key with
the same body gets the stored reply. Errors are RFC 9457 problem documents.
"""


def open_desk(settings: Settings, clock: Clock = lambda: datetime.now(UTC)) -> Desk:
    """The modeler's database, tokens and log."""
    folder = settings.data_dir
    database = Database(folder / "modeler.sqlite", (METADATA, store.METADATA), append_only=APPEND_ONLY)
    return Desk(database, Seal(folder / "secrets" / "seal.key"), clock)


def build(settings: Settings) -> FastAPI:
    """The modeler as an ASGI application. Only one process may serve a data folder."""
    desk = open_desk(settings)
    modeler = Modeler(desk, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(modeler.close)
        desk.database.close()

    app = serving.build(
        title="blindopt modeler",
        description=DESCRIPTION,
        desk=desk,
        routers=[meta.router, runs.router],
        limit_of=lambda path, principal: settings.body_limit_bytes,
        auditors=("vendor", "viewer"),
        lifespan=lifespan,
    )
    app.state.modeler = modeler
    return app
