"""Verifying an audit log of 100,000 records."""

import secrets
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.server import Failed, environment, scratch
from benchmarks.table import Table
from curator_service.app import open_desk
from curator_service.settings import Settings
from shared.audit import Exchange, verify
from shared.serving.store.database import Connection
from shared.serving.store.tables import Log

RECORDS = 100_000
RECORDS_PER_TRANSACTION = 10_000
ROUNDS = 3
_STUDY = "std_0123456789abcdef"


def _exchange() -> Exchange:
    """An answered query, as the curator's log tells one."""
    return Exchange(
        study_id=_STUDY,
        request_id=secrets.token_hex(16),
        method="POST",
        path=f"/v1/studies/{_STUDY}/queries",
        idempotency_key=secrets.token_hex(16),
        request_sha256=secrets.token_hex(32),
        status=201,
        reply_sha256=secrets.token_hex(32),
    )


def built(folder: Path) -> tuple[float, float]:
    """Make the log of a curator in ``folder``; seconds that making it took, and that shared.audit.verify takes."""
    desk = open_desk(Settings(data_dir=folder))
    started = time.perf_counter()
    for _ in range(RECORDS // RECORDS_PER_TRANSACTION):
        batch = [(_exchange(), {"query_id": f"qry_{secrets.token_hex(8)}"}) for _ in range(RECORDS_PER_TRANSACTION)]

        def work(db: Connection, told: list[tuple[Exchange, dict[str, str]]] = batch) -> None:
            for exchange, details in told:
                Log.append(db, "exchange", actor="modeler:bench", now=desk.clock(), details=details, exchange=exchange)

        desk.database.write(work)
    making = time.perf_counter() - started
    with desk.database.read() as db:
        entries = list(Log.walk(db))
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        head = verify(entries)
        times.append(time.perf_counter() - started)
    desk.database.close()
    if head.size != RECORDS:
        raise Failed(f"the log holds {head.size} records, not {RECORDS}")
    return making, float(np.median(times))


def command(folder: Path, *words: str) -> tuple[float, str]:
    """Median seconds of a whole process of the curator's command line, and what it said."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "curator_service", *words],
            env=environment({"BLINDOPT_CURATOR_DATA_DIR": str(folder)}),
            capture_output=True,
            text=True,
            check=False,
        )
        times.append(time.perf_counter() - started)
        if done.returncode:
            raise Failed(f"curator_service {' '.join(words)}: {done.stderr}")
    return float(np.median(times)), done.stdout


def tables() -> list[Table]:
    """The whole command, its start alone, and the pure function."""
    with scratch() as folder:
        making, pure = built(folder)
        whole, told = command(folder, "audit", "verify")
        start, _ = command(folder, "--version")
    if not told.startswith(f"{RECORDS} records"):
        raise Failed(f"audit verify said: {told}")
    seconds = [
        ("python -m curator_service audit verify, whole process", whole),
        ("python -m curator_service --version, whole process", start),
        ("shared.audit.verify, records in memory", pure),
        ("appending them, 10,000 in a transaction", making),
    ]
    return [
        Table(
            f"A log of {RECORDS:,} records (goal: verified in less than 5 s)",
            ["what", "seconds", "records a second"],
            [[what, took, None if took is start else RECORDS / took] for what, took in seconds],
        )
    ]
