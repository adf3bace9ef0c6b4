"""What the refusal of a hostile message costs, beside a query, and how long others wait beside hostile peers."""

import json
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import start
from benchmarks.exchange import QUERY, SETTINGS
from benchmarks.filled_curator import FilledCurator
from benchmarks.load import Target, run
from benchmarks.server import Failed, curator, scratch
from benchmarks.table import Cell, Table
from blindopt import bodies, wire
from blindopt.client import link
from blindopt.errors import Invalid
from blindopt.wire.answer import NONE

QUERIES, ROUNDS = 2_000, 20
PEERS, REQUESTS, LEAST = 3, 3_000, 1_000
"""Peers at once, their requests, and the fewest requests of another client for /healthz."""
UNKNOWN = {
    "the head of a frame": (wire.LinkReply, wire.LINK_HEAD_BYTES),
    "the body of a query": (wire.QueryRequest, wire.LINK_HEAD_BYTES),
    "requests over a link": (wire.LinkRequests, link.PULLED_MAX_BYTES),
    "a problem document": (wire.Problem, wire.LINK_HEAD_BYTES),
    "a file grant.json": (wire.GrantFile, wire.GRANT_FILE_MAX_BYTES),
}
"""What a peer sends, as which model, and how many bytes of it at most: filled with names that nothing has."""


def tables() -> list[Table]:
    """Milliseconds of a query and of each refusal; milliseconds of /healthz alone, and beside peers."""
    with scratch() as folder:
        query = _query(Path(folder))
    rows: list[list[Cell]] = [["a query that is charged and answered", None, 1e3 * query, 1.0]]
    for name, (model, size) in UNKNOWN.items():
        body = _unknown(size).encode()
        seconds = _seconds(lambda body=body, model=model: _refused(body, model))  # type: ignore[misc]
        rows.append([name, len(body), 1e3 * seconds, seconds / query])
    return [Table("Refusals beside a query", ["what", "bytes", "CPU ms", "queries"], rows), beside_peers()]


def _unknown(size: int) -> str:
    """A JSON object of about ``size`` bytes, of names that nothing has."""
    return json.dumps({f"{number:06}": 1 for number in range(size // 13)})


def beside_peers() -> Table:
    """Measure /healthz for one client, alone, beside peers that query, and beside as many hostile ones."""
    rows: list[list[Cell]] = []
    with scratch() as folder:
        study, token = start.filled(folder / "curator-data", 100)
        with curator(folder, SETTINGS) as (server, _):
            path, tokens = f"/v1/studies/{study}/queries", [token] * PEERS
            querying = Target(server.port, path, tokens, QUERY.model_dump_json())
            hostile = Target(server.port, path, tokens, _unknown(wire.LINK_HEAD_BYTES), status=422)
            beside = {"alone": None, f"{PEERS} peers that query": querying, f"{PEERS} hostile peers": hostile}
            for name, target in beside.items():
                times = _health(server.port, target)
                p50, p99 = (float(np.quantile(times, share)) for share in (0.5, 0.99))
                rows.append([name, len(times), p50, p99, p99 / float(rows[0][3] or p99) if rows else 1.0])
    return Table("/healthz beside peers", ["beside", "requests", "p50 ms", "p99 ms", "p99 to that alone"], rows)


def _health(port: int, target: Target | None) -> list[float]:
    """Milliseconds of each request, LEAST at least, until the peers have ended."""
    times: list[float] = []
    peers = threading.Thread(target=lambda: target and run(target, REQUESTS))
    client = HTTPConnection("127.0.0.1", port)
    peers.start()
    while peers.is_alive() or len(times) < LEAST:
        begun = time.perf_counter()
        client.request("GET", "/healthz")
        client.getresponse().read()
        times.append(1e3 * (time.perf_counter() - begun))
    client.close()
    return times


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
