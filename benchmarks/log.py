"""Verifying an audit log of 100,000 records."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.filled_curator import FilledCurator
from benchmarks.server import Failed, environment, scratch
from benchmarks.table import Table
from blindopt import wire
from blindopt.audit.verification import verify_export
from blindopt.wire.answer import NONE

RECORDS = 100_000
RECORDS_PER_TRANSACTION = 10_000
ROUNDS = 3


def time_log(folder: Path) -> tuple[float, float]:
    """Make a curator's log of RECORDS records by its own code; return the seconds to make it, and to verify the export.

    A query makes two records, its charge and its exchange, and one record of the shared log. Its study has no noise.
    """
    filled = FilledCurator(folder)
    context = filled.curator.context
    study, grant = filled.study("bench", wire.ColumnMeasurement(column="y", direction="maximize"), NONE)
    started, number = time.perf_counter(), 0
    while (remaining := RECORDS - context.audit_trail.head().size) > 0:
        count = min(RECORDS_PER_TRANSACTION, remaining) // 2 or 1
        filled.query(study, grant, count, first=number)
        number += count
    making = time.perf_counter() - started
    times = []
    with context.database.read() as db:
        export = context.audit_trail.export(db)
        for _ in range(ROUNDS):
            started = time.perf_counter()
            head = verify_export(export)
            times.append(time.perf_counter() - started)
    context.close()
    if head.size < RECORDS:
        raise Failed(f"the log holds {head.size} records, not {RECORDS}")
    return making, float(np.median(times))


def command(folder: Path, *words: str) -> tuple[float, str]:
    """Median seconds of a command of the curator, as a whole process, and its output."""
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
    """Time the whole command, its start, and the pure function."""
    with scratch() as folder:
        making, pure = time_log(folder)
        whole, output = command(folder, "audit", "verify")
        start, _ = command(folder, "--version")
    if int(output.split()[0]) < RECORDS:
        raise Failed(f"audit verify printed: {output}")
    seconds = [
        ("python -m curator_service audit verify, whole process", whole),
        ("python -m curator_service --version, whole process", start),
        ("blindopt.audit.reconciliation.verify_export, without the tables", pure),
        ("appending them, 10,000 in a transaction", making),
    ]
    return [
        Table(
            f"A log of {RECORDS:,} records (goal: verified in at most 4 s)",
            ["what", "seconds", "records a second"],
            [[what, time_s, None if time_s is start else RECORDS / time_s] for what, time_s in seconds],
        )
    ]
