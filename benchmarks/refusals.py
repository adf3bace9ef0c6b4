"""What the refusal of a hostile message costs, beside a query, in one run of processor time."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.filled_curator import FilledCurator
from benchmarks.server import Failed, scratch
from benchmarks.table import Cell, Table
from blindopt import bodies, wire
from blindopt.client import link
from blindopt.errors import Invalid
from blindopt.wire.answer import NONE

QUERIES, ROUNDS = 2_000, 20
UNKNOWN = {
    "the head of a frame": (wire.LinkReply, wire.LINK_HEAD_BYTES),
    "the body of a query": (wire.QueryRequest, wire.LINK_HEAD_BYTES),
    "requests over a link": (wire.LinkRequests, link.PULLED_MAX_BYTES),
    "a problem document": (wire.Problem, wire.LINK_HEAD_BYTES),
    "a file grant.json": (wire.GrantFile, wire.GRANT_FILE_MAX_BYTES),
}
"""What a peer sends, as which model, and how many bytes of it at most: filled with names that nothing has."""


def tables() -> list[Table]:
    """One table: milliseconds of a query and of each refusal, and how many queries a refusal is."""
    with scratch() as folder:
        query = _query(Path(folder))
    rows: list[list[Cell]] = [["a query that is charged and answered", None, 1e3 * query, 1.0]]
    for name, (model, size) in UNKNOWN.items():
        body = json.dumps({f"{number:06}": 1 for number in range(size // 13)}).encode()
        seconds = _seconds(lambda body=body, model=model: _refused(body, model))  # type: ignore[misc]
        rows.append([name, len(body), 1e3 * seconds, seconds / query])
    return [Table("Refusals beside a query", ["what", "bytes", "CPU ms", "queries"], rows)]


def _query(folder: Path) -> float:
    """Processor seconds of one query without HTTP, many of which share a commit."""
    filled = FilledCurator(folder)
    study, grant = filled.study("bench", wire.ColumnMeasurement(column="y", direction="maximize"), NONE)
    started = time.process_time()
    filled.query(study, grant, QUERIES)
    used = time.process_time() - started
    filled.curator.context.close()
    return used / QUERIES


def _refused(body: bytes, model: Any) -> None:
    try:
        bodies.parse(body, model)
    except Invalid:
        return
    raise Failed("a hostile message was read")


def _seconds(work: Callable[[], None]) -> float:
    work()  # the first time, the model is built
    started = time.process_time()
    for _ in range(ROUNDS):
        work()
    return (time.process_time() - started) / ROUNDS
