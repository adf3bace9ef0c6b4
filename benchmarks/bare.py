"""A baseline: one FastAPI route that does nothing, or commits one row, and answers."""

import secrets
import sqlite3
import sys

import uvicorn
from fastapi import FastAPI

from blindopt import wire

MODES = {"nothing": None, "full": "FULL", "off": "OFF"}


def application(mode: str, database: str) -> FastAPI:
    """Build the route in one of MODES: whether and how it commits to ``database`` before it answers."""
    app, synchronous = FastAPI(), MODES[mode]
    db = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute(f"PRAGMA synchronous={synchronous or 'FULL'}")
    db.execute("CREATE TABLE IF NOT EXISTS t (seq INTEGER PRIMARY KEY, body BLOB)")

    @app.get("/readyz")
    async def ready() -> dict[str, str]:
        return {}

    @app.post("/v1/studies/{study_id}/queries", status_code=201)
    async def ask(study_id: str, query: wire.QueryRequest) -> dict[str, float]:
        if synchronous is not None:  # autocommit: the statement is the transaction
            db.execute("INSERT INTO t (body) VALUES (?)", (secrets.token_bytes(400),))
        return {"y": 1.0}

    return app


def main(mode: str, database: str, port: str) -> None:
    """Serve with the services' uvicorn settings (shared/service_kit/cli/main.py): loop, parser and log."""
    config = uvicorn.Config(
        application(mode, database), port=int(port), log_config=None, access_log=False, server_header=False
    )
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
