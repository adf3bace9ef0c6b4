"""Start-up time of the services, beside a bare FastAPI application, and the time of a command to a running one."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from benchmarks.filled_curator import BATCH, QUOTA, FilledCurator
from benchmarks.server import Server, bare, curator, memory_group, modeler, scratch
from benchmarks.table import Cell, Table
from blindopt import wire
from blindopt.client import StudyClient
from blindopt.wire.answer import NONE

REPEATS = 5
RECORDS = 10_000
LIMIT_MIB = 512
"""Of a curator beside a log, with the processes that it starts: beyond it the kernel ends one of them."""
_IDLE = 0.05
"""Processor time in a second of a service that does nothing."""
_LOADED_S = 10.0


def filled(folder: Path, records: int) -> tuple[str, str]:
    """Make a curator's folder whose log has so many records; return its study and the token of its grant."""
    made = FilledCurator(folder)
    study, grant = made.study("bench", wire.ColumnMeasurement(column="y", direction="maximize"), NONE)
    count = 0
    while (missing := records - made.curator.context.audit_trail.head().size) > 0:
        part = min(BATCH, missing) // 2 or 1
        made.query(study, grant, part, first=count)
        count += part
    made.curator.close()
    made.curator.context.close()
    (folder.parent / "curator-first-token").touch()  # the folder has one owner already
    return study, grant.token


def beside_log(folder: Path, study: str, token: str, group: Path | None) -> list[float]:
    """Processor time and memory of the service until it is ready, and at rest after its first charge.

    At rest: what it loads in the background is there, whether the charge had to wait for a verification or not.
    """
    settings = {"BLINDOPT_CURATOR_LOG_BYTES_PER_GRANT_DAY": str(QUOTA)}
    with curator(folder, settings, group) as (server, _):
        measured = [server.cpu_seconds(), server.memory_mib()]
        with StudyClient(server.url, token, study, patience_s=120.0) as client:
            client.ask(wire.QueryRequest(rows=[wire.RowPlays(row=7)]), key=secrets.token_hex(16))
            client.study()
        ready_at, before = time.monotonic(), -1.0
        while (now := server.cpu_seconds()) - before > _IDLE or time.monotonic() - ready_at < _LOADED_S:
            before = now
            time.sleep(1.0)
        return [*measured, server.cpu_seconds(), server.memory_mib()]


def of_logs(longest: int) -> Table:
    """Start a curator beside logs of several lengths."""
    rows: list[list[Cell]] = []
    with memory_group(LIMIT_MIB) as group:
        for records in sorted({0, min(10_000, longest), longest}):
            with scratch() as folder:
                study, token = filled(folder / "curator-data", records)
                samples = [beside_log(folder, study, token, group) for _ in range(REPEATS)]
            medians = (float(np.median(column)) for column in zip(*samples, strict=True))
            rows.append([f"{records:,} records", *medians])
    limit = "" if group is None else f", in {LIMIT_MIB} MiB with all its processes"
    heads = ["log", "ready: CPU s", "ready: MiB", "after a charge: CPU s", "after a charge: MiB"]
    return Table(f"A start of a curator beside a log, and its first charge{limit}", heads, rows)


def tables(longest: int) -> list[Table]:
    """Measure the seconds until /readyz answers, and the processor time until then."""
    with scratch() as folder:
        kinds: dict[str, Callable[[Path], AbstractContextManager[Server | tuple[Server, str]]]] = {
            "bare FastAPI application": lambda path: bare("nothing", path),
            "curator": lambda path: curator(path, {}),
            "modeler": lambda path: modeler(path, {}),
        }
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
        for repeat in range(REPEATS):
            for name, start in kinds.items():
                data = folder / f"{name.replace(' ', '-')}-{repeat > 0}"  # the first start fills an empty folder
                data.mkdir(exist_ok=True)
                begun = time.monotonic()
                with start(data) as service:
                    server = service[0] if isinstance(service, tuple) else service
                    samples[name].append((time.monotonic() - begun, server.cpu_seconds()))
    least = float(np.median([cpu for _, cpu in samples["bare FastAPI application"]]))
    rows: list[list[Cell]] = []
    for name, times in samples.items():
        seconds, cpu = (float(np.median([sample[k] for sample in times])) for k in (0, 1))
        rows.append([name, seconds, cpu, cpu / least])
    title = "A start, until it is ready (goal: at most 1.0 CPU s)"
    return [Table(title, ["service", "s (median)", "CPU s", "to the bare one"], rows), _command(), of_logs(longest)]


def _command() -> Table:
    """Measure a command that sends one request, from its start to its end, with the import of the program."""
    with scratch() as folder, curator(folder, {}) as (server, token):
        file = folder / "token"
        file.write_text(token, encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "curator_service",
            "study",
            "list",
            "--url",
            server.url,
            "--token-file",
            str(file),
        ]
        samples = []
        for _ in range(2 * REPEATS):
            before, begin = os.times(), time.monotonic()
            subprocess.run(command, check=True, capture_output=True)
            after = os.times()
            cpu = after.children_user + after.children_system - before.children_user - before.children_system
            samples.append((time.monotonic() - begin, cpu))
    row: list[Cell] = ["study list", *(float(np.median([sample[k] for sample in samples])) for k in (0, 1))]
    return Table("A command to a running service (goal: at most 1.5 s)", ["command", "s (median)", "CPU s"], [row])
