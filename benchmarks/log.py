"""Verifying an audit log of 100,000 records, and starting on one whose older records are archived."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np

from benchmarks.filled_curator import FilledCurator
from benchmarks.server import Failed, curator, environment, scratch
from benchmarks.table import Cell, Table
from blindopt import wire
from blindopt.audit.verification import verify_export
from blindopt.wire.answer import NONE
from curator_service.integrity.log_checks import archivable
from service_kit.context.log_archive import RECORDS as OF_SEGMENT
from service_kit.context.log_archive import LogArchive
from service_kit.store.base import utc_now

RECORDS = 100_000
SEGMENTS = (0, 3, 30)
LIVE = 10_000
"""Records after the archived ones; one in ten is a charge."""
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


def _grow(filled: FilledCurator, study: str, grant: wire.GrantReply, size: int) -> None:
    """Make the log ``size`` records long: of ten, one charge, its exchange, and eight that only read."""
    while (missing := size - filled.curator.context.audit_trail.head().size) > 0:
        count = max(1, min(RECORDS_PER_TRANSACTION, missing) // 10)
        filled.query(study, grant, count, first=filled.curator.context.audit_trail.head().size)
        filled.read(study, grant, min(8 * count, size - filled.curator.context.audit_trail.head().size))


def _part_one(folder: Path) -> tuple[float, float]:
    """Processor time and memory in MiB of the process that verifies part one."""
    words = ["curator_service", "audit", "findings", str(folder), "first", str(folder / "archive")]
    with subprocess.Popen(
        [sys.executable, "-m", *words], env=environment({}), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = status
    if status or b"finding" in output:
        raise Failed(f"audit findings: {output[:500]!r}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def archived() -> Table:
    """Measure starts on logs with segments in the archive, each with as many records after them."""
    rows: list[list[Cell]] = []
    with scratch() as folder:
        filled = FilledCurator(folder)
        context = filled.curator.context
        context.audit_trail.quotas.per_day = None
        study, grant = filled.study("bench", wire.ColumnMeasurement(column="y", direction="maximize"), NONE)
        later = replace(context, clock=lambda: utc_now() + timedelta(days=40))
        for count in SEGMENTS:
            _grow(filled, study, grant, count * OF_SEGMENT)
            began = time.process_time()
            sealed = LogArchive(later, 0, archivable).seal_all()
            sealing = (time.process_time() - began) / sealed if sealed else None
            _grow(filled, study, grant, count * OF_SEGMENT + LIVE)
            with context.database.read() as db:
                megabytes = db.exec_driver_sql(
                    "SELECT sum(pgsize) / 1e6 FROM dbstat WHERE name IN ('log', 'shared', 'log_by_kind', 'segments')"
                ).scalar_one()
            with curator(folder, {}) as (server, _):
                start = server.cpu_seconds()
            rows.append([count * OF_SEGMENT + LIVE, count, start, *_part_one(folder), megabytes, sealing])
        context.close()
    columns = ["records", "segments", "CPU s until ready", "CPU s of part one", "MiB of part one", "MB of both logs"]
    return Table("A start on a log with archived segments", [*columns, "CPU s to seal one"], rows)


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
        ),
        archived(),
    ]
