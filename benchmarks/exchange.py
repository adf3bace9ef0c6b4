"""One durable exchange, client to client, against a bare route that does one durable commit."""

import contextlib
import os
import secrets
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import uvicorn
from fastapi import FastAPI

from demo.parties import Party, started
from demo.property_data import KERNEL
from shared import wire
from shared.client import OwnerClient, StudyClient, is_ready

ROUNDS = 5
REQUESTS = 200


@contextlib.contextmanager
def bare(folder: Path) -> Iterator[str]:
    """A process whose one route commits one row with synchronous=FULL and answers."""
    port_file = folder / "port"
    command = [sys.executable, "-m", "benchmarks.exchange", str(folder / "bare.sqlite"), str(port_file)]
    process = subprocess.Popen(command, env=dict(os.environ), stdin=subprocess.DEVNULL)
    try:
        while not port_file.exists() or not is_ready(f"http://127.0.0.1:{port_file.read_text()}"):
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port_file.read_text()}"
    finally:
        process.terminate()
        process.wait()


def serve_bare(database: str, port_file: str) -> None:
    """What ``bare`` starts."""
    import socket

    db = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE t (seq INTEGER PRIMARY KEY, body BLOB)")
    app, lock = FastAPI(), threading.Lock()

    @app.get("/readyz")
    def ready() -> dict[str, str]:
        return {}

    @app.post("/v1/studies/{study_id}/queries")
    async def ask(study_id: str, query: wire.QueryRequest) -> dict[str, float]:
        with lock:
            db.execute("INSERT INTO t (body) VALUES (?)", (secrets.token_bytes(400),))
        return {"y": 1.0}

    listening = socket.create_server(("127.0.0.1", 0))
    partial = Path(port_file).with_suffix(".part")
    partial.write_text(str(listening.getsockname()[1]))
    partial.replace(port_file)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listening])


def study_of(curator: Party) -> tuple[str, str]:
    """A released study of 1,000 random rows, and a grant's token."""
    cells = np.random.default_rng(0).normal(size=(1_000, 3))
    text = "a,b,y\n" + "\n".join(",".join(map(repr, row)) for row in cells.tolist())
    with OwnerClient(curator.url, curator.token) as owner:
        dataset = owner.register("bench", text.encode(), public=True)
        spec = wire.StudyCreate(
            name="bench",
            dataset_id=dataset.id,
            features=[wire.Feature(column=name, lower=-3.0, upper=3.0) for name in "ab"],
            measurement=wire.Measurement(column="y", direction="maximize"),
            release=wire.IdentityRelease(mechanism="identity"),
            kernel=KERNEL,
        )
        study = owner.create_study(spec).id
        owner.release(study)
        return study, owner.grant(study, wire.GrantCreate(name="bench")).token


def per_second(ask: Callable[[], object]) -> float:
    """Requests per second, one after another."""
    started_at = time.perf_counter()
    for _ in range(REQUESTS):
        ask()
    return REQUESTS / (time.perf_counter() - started_at)


def lines() -> list[str]:
    """Markdown rows: medians over interleaved rounds, and their ratio."""
    query = wire.QueryRequest(rows=[wire.RowPlays(row=7)])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with started(folder) as (curator, _), bare(folder) as address:
            study, token = study_of(curator)
            with StudyClient(curator.url, token, study) as client, StudyClient(address, token, study) as floor:
                ours, theirs = [], []
                for _ in range(ROUNDS):
                    theirs.append(
                        per_second(
                            lambda: floor._send(
                                "POST", f"/v1/studies/{study}/queries", body=query.model_dump_json().encode()
                            )
                        )
                    )
                    ours.append(per_second(lambda: client.ask(query, key=secrets.token_hex(8))))
    a, b = float(np.median(ours)), float(np.median(theirs))
    return [
        "| sequential exchanges a second | curator | bare route, one durable commit | ratio |",
        "|---|---|---|---|",
        f"| median of {ROUNDS} rounds of {REQUESTS} | {a:.0f} | {b:.0f} | {a / b:.2f} |",
    ]


if __name__ == "__main__":
    serve_bare(*sys.argv[1:])
