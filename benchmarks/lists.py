"""Processor time of a curator's lists, with 200 studies of 250 measurements each."""

import time
from pathlib import Path

from benchmarks.filled_curator import FilledCurator
from benchmarks.server import curator, scratch
from benchmarks.table import Cell, Table
from blindopt import wire
from blindopt.audit.verification import verify_export
from blindopt.client import Owner

STUDIES, QUERIES = 200, 250
_ROUNDS = 5
_GOAL_MS = 2.0


def _filled(folder: Path) -> str:
    """Fill a curator's folder; return the id of its last study."""
    filled = FilledCurator(folder)
    for number in range(STUDIES):
        name = f"study {number}"
        study, grant = filled.study(name, wire.ColumnMeasurement(column="y", direction="maximize"))
        filled.query(study, grant, QUERIES)
    with filled.curator.context.database.read() as db:
        verify_export(filled.curator.context.audit_trail.export(db))
    token, _ = filled.curator.context.authentication.issue("owner", "lists", days=1)
    (folder.parent / "curator-first-token").write_text(token.text)
    filled.curator.context.close()
    return study


def tables() -> list[Table]:
    """Time each list, a page of 1,000 at once."""
    with scratch() as folder:
        study = _filled(folder / "curator-data")
        with curator(folder, {}) as (server, token), Owner(server.url, token) as owner:
            paths = {
                "/v1/accounts": STUDIES,
                "/v1/studies": STUDIES,
                f"/v1/studies/{study}/ledger": QUERIES,
                f"/v1/studies/{study}/exposure": QUERIES,
            }
            rows: list[list[Cell]] = []
            for path, count in paths.items():
                owner._send("GET", path, params={"page_size": 1_000}).check()
                started, cpu = time.perf_counter(), server.cpu_seconds()
                for _ in range(_ROUNDS):
                    reply = owner._send("GET", path, params={"page_size": 1_000}).check()
                took, cpu = (time.perf_counter() - started) / _ROUNDS, (server.cpu_seconds() - cpu) / _ROUNDS
                each = 1_000 * cpu / count
                name = path.replace(study, "{id}")
                rows.append([name, count, took, cpu, each, "yes" if each <= _GOAL_MS else "NO", len(reply.body)])
    head = ["list", "items", "seconds", "server CPU s", "CPU ms an item", "within the goal", "bytes"]
    what = f"{STUDIES} studies of {QUERIES:,} measurements (goal: {_GOAL_MS:g} ms of processor time an item)"
    return [Table(f"Lists of a curator with {what}", head, rows)]
