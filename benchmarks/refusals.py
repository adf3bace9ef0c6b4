"""What the refusal of a hostile message costs, beside a query, and how long others wait beside hostile peers.

How long others wait is a time by the clock: on a machine with other work run this under ``chrt --rr 1``.
"""

import json
import multiprocessing
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import link
from benchmarks.exchange import QUERY, SETTINGS, study_of
from benchmarks.filled_curator import FilledCurator
from benchmarks.load import Target, run
from benchmarks.server import Failed, Server, curator, modeler, scratch
from benchmarks.table import Cell, Table
from blindopt import bodies, wire
from blindopt.client.link import PULLED_MAX_BYTES
from blindopt.errors import Invalid
from blindopt.wire.answer import NONE

QUERIES, ROUNDS = 2_000, 20
PEERS, REQUESTS, SECONDS, LEAST = 3, 3_000, 6.0, 1_000
"""Peers at once, their requests or time, and the fewest requests of another client for /healthz."""
OF_MODELER = {name.replace("CURATOR", "MODELER"): value for name, value in SETTINGS.items()}
UNKNOWN = {
    "the head of a frame": (wire.LinkReply, wire.LINK_HEAD_BYTES),
    "the body of a query": (wire.QueryRequest, wire.LINK_HEAD_BYTES),
    "requests over a link": (wire.LinkRequests, PULLED_MAX_BYTES),
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
    """Measure /healthz for one client, alone, and beside peers at each input: some that query, others hostile."""
    head, rows = _unknown(wire.LINK_HEAD_BYTES), list[list[Cell]]()
    with scratch() as folder, curator(folder, SETTINGS) as (owner, token), modeler(folder, OF_MODELER) as (vendor, _):
        study, grants = study_of(owner.url, token, 1)
        link.linked(folder, owner, token, vendor)
        own = wire.LinkFile.model_validate_json((folder / "link.json").read_bytes())
        queries = Target(owner.port, f"/v1/studies/{study}/queries", grants * PEERS, QUERY.model_dump_json())
        unread = replace(queries, body=head, status=422)
        at_link = replace(unread, port=vendor.port, path=f"/v1/links/{own.id}:pull", tokens=[own.token] * PEERS)
        replies = replace(at_link, path=at_link.path.replace("pull", "reply"), media="application/octet-stream")
        notes = replace(unread, path="/v1/audit/countersignatures", body=_unknown(16 << 10))
        works: list[tuple[str, Server, Callable[[], object]]] = [
            ("curator, alone", owner, lambda: None),
            ("curator, peers that query", owner, lambda: run(queries, REQUESTS)),
            ("curator, hostile queries", owner, lambda: run(unread, REQUESTS)),
            ("curator, hostile countersignatures", owner, lambda: run(notes, REQUESTS)),
            ("curator, hostile modelers over links", owner, lambda: _pulled(folder, own)),
            ("modeler, alone", vendor, lambda: None),
            ("modeler, hostile pulls of a link", vendor, lambda: run(at_link, REQUESTS)),
            ("modeler, hostile replies over a link", vendor, lambda: run(replies, REQUESTS)),
        ]
        alone = 1.0
        for name, server, work in works:
            times = _health(server.port, work)
            p50, p99 = (float(np.quantile(times, share)) for share in (0.5, 0.99))
            alone = p99 if name.endswith("alone") else alone
            rows.append([name, len(times), p50, p99, p99 / alone])
    return Table("/healthz beside peers", ["what", "requests", "p50 ms", "p99 ms", "p99 to that alone"], rows)


def _pulled(folder: Path, own: wire.LinkFile) -> None:
    """Let the curator have links to modelers that answer each pull at once with all that it may hold, for a while."""
    request = {"method": "GET", "target": "/", "headers": {}, "body": "A" * 80_000}
    requests = [request | {"id": secrets.token_hex(16)} for _ in range(wire.LINK_PULLED_MAX)]
    body = json.dumps({"requests": requests}).encode()

    class Modeler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Modeler) as hostile:
        process = multiprocessing.get_context("fork").Process(target=hostile.serve_forever)
        process.start()
        links = [
            own.model_dump() | {"id": f"usr_{number:016x}", "url": f"http://127.0.0.1:{hostile.server_port}"}
            for number in range(PEERS)
        ]
        (folder / "curator-data" / "links.json").write_text(json.dumps(links), encoding="utf-8")
        time.sleep(SECONDS)
        process.kill()
        process.join()


def _health(port: int, work: Callable[[], object]) -> list[float]:
    """Milliseconds of each request, LEAST at least, until what is done beside has ended."""
    times: list[float] = []
    peers = threading.Thread(target=work)
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
