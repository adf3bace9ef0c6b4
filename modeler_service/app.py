"""Builds and wires the modeler."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from modeler_service import store
from modeler_service.routes import meta, runs, suggestions
from modeler_service.service import Modeler
from modeler_service.settings import Settings
from shared import wire
from shared.serving import app as serving
from shared.serving.desk import Desk
from shared.serving.seal import Seal, signer
from shared.serving.store.base import APPEND_ONLY, METADATA, Clock
from shared.serving.store.database import Database

DESCRIPTION = """\
Optimizes over a curator's records without seeing them: fetches transformed candidates, chooses rows, asks.

Send a token as `Authorization: Bearer blindopt_...`, and an `Idempotency-Key` with every POST but
that for suggestions: the same key with the same body gets the stored reply. Errors are RFC 9457 problem documents.
"""


def open_desk(settings: Settings, clock: Clock = lambda: datetime.now(UTC)) -> Desk:
    """The modeler's database, tokens and log."""
    folder = settings.data_dir
    database = Database(folder / "modeler.sqlite", (METADATA, store.METADATA), append_only=APPEND_ONLY)
    keys = folder / "secrets"
    log_key = signer(keys / "log.key", "modeler")
    return Desk(database, Seal(keys / "seal.key"), log_key, clock, kept=folder / "checkpoint")


def build(settings: Settings) -> FastAPI:
    """The modeler as an ASGI application. Only one process may serve a data folder."""
    desk = open_desk(settings)
    desk.guard()
    modeler = Modeler(desk, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        desk.database.attach()
        yield
        await run_in_threadpool(modeler.close)
        await desk.database.finish()
        desk.close()

    app = serving.build(
        title="blindopt modeler",
        description=DESCRIPTION,
        desk=desk,
        settings=settings,
        routers=[meta.router, runs.router, suggestions.router],
        hot=[suggestions.HOT],
        limit_of=lambda path, principal: (
            settings.suggestion_body_limit_bytes if path == suggestions.PATH else settings.body_limit_bytes
        ),
        auditors=("vendor", "viewer"),
        lifespan=lifespan,
        read_by_hand=(wire.ObservationImport,),
    )
    app.state.modeler = modeler
    app.state.leave = modeler.streams.close
    return app
