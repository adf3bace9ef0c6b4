"""Hostile files and JSON beside an exchange: ``python -m tests.system.hostile_load --seconds 120``.

One modeler queries all the time, and a monitor asks for the health, each in a process of its own: one that sends files
is busy, and would be what is measured. First alone; then while a large table is uploaded; then while files and bodies
that were made to hurt come in, too. Everything hostile must be refused as it should be, the service must stay small,
and its health must be reported soon. Prints what was measured; exits 1 with the first thing that does not hold.
"""

import argparse
import gzip
import io
import json
import multiprocessing
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from blindopt import wire
from blindopt.client import Owner
from tests.conftest import Service
from tests.system.crashes import crash_checks as checks
from tests.system.crashes.soak import small

MIB = 1 << 20
PEAK_MIB, REST_MIB = 200, 50
P99_SECONDS = 2.0
JSON = {"content-type": "application/json"}
FORK = multiprocessing.get_context("fork")
Report = Callable[[float, float], None]
"""Takes when a request began, and its seconds."""


def parquet_of(table: pa.Table, **options: object) -> bytes:
    """A Parquet file in memory."""
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd", **options)
    return file.getvalue()


def table(rows: int) -> bytes:
    """A CSV file of four columns of numbers."""
    x = np.random.default_rng(1).normal(size=(min(rows, 10_000), 4)).round(6).tolist()
    body = "\n".join(",".join(map(repr, row)) for row in x) + "\n"
    return b"a,b,c,d\n" + (body * (rows // len(x))).encode()


def hostile_files(scale: float) -> dict[str, tuple[str, bytes, tuple[int, ...]]]:
    """Name, content, and the statuses that are right for each; ``scale`` 1 is full size."""
    long = int(300e6 * scale)
    text = "x" * int(100e6 * scale)
    same, few = pa.array(np.zeros(int(5e6 * scale))), pa.array(np.zeros(int(1e5 * scale)))
    return {
        "a line without an end": ("a.csv", b"a,b\n" + b"7" * long, (422,)),
        "a header without an end": ("a.csv", b"a" * long, (422,)),
        "blank lines": ("a.csv", b"a,b\n1,2\n" + b"\n" * (long // 10), (422,)),
        "one quote": ("a.csv", b'a,b\n1,"' + b"2,\n" * (long // 30), (422,)),
        "commas": ("a.csv", b"a,b\n" + (b"," * 900_000 + b"\n") * max(1, long // 9_000_000), (422,)),
        "wrong cells": ("a.csv", b"a,b\n" + b"x,y\n" * (long // 300), (201, 422)),
        "packed blanks": ("a.csv.gz", gzip.compress(b"a\n" + b" " * long), (422,)),
        "long texts of Parquet": ("a.parquet", parquet_of(pa.table({"a": [text] * 8})), (422,)),
        "texts without a dictionary": (
            "a.parquet",
            parquet_of(pa.table({"a": [text] * 8}), use_dictionary=False),
            (422,),
        ),
        "rows all alike": ("a.parquet", parquet_of(pa.table({"a": same, "b": same})), (201,)),
        "columns all alike": ("a.parquet", parquet_of(pa.table({f"c{i}": few for i in range(300)})), (201, 422)),
    }


def hostile_bodies() -> dict[str, tuple[str, bytes, int]]:
    """Whose token, path and body; the right status."""
    keys = json.dumps({f"{i:05}": 1 for i in range(85_000)}).encode()
    rows = json.dumps({"rows": [{"row": i} | {f"k{j}": 1 for j in range(100)} for i in range(600)]}).encode()
    fewer = keys[:60_000].rpartition(b",")[0] + b"}"
    return {
        "keys to queries": ("modeler", "/v1/studies/{study}/queries", keys, 413),
        "5,000 keys to queries": ("modeler", "/v1/studies/{study}/queries", fewer, 422),
        "keys in rows": ("modeler", "/v1/studies/{study}/queries", rows, 413),
        "keys to countersignatures": ("modeler", "/v1/audit/countersignatures", keys, 413),
        "keys to a study": ("owner", "/v1/studies", keys, 422),
        "keys to a check": ("owner", "/v1/studies:check", keys, 422),
        "depth": ("owner", "/v1/studies", b"[" * 900_000, 422),
        "digits": ("owner", "/v1/studies", b'{"name": ' + b"1" * 900_000 + b"}", 422),
    }


class Client:
    """A process that does one thing until it is ended: forked before any thread of this one."""

    def __init__(self, work: Callable[[Report, Callable[[], bool]], None]) -> None:
        self._over, self._reported = FORK.Event(), FORK.Event()
        self._reports = FORK.SimpleQueue()
        self._process = FORK.Process(target=self._run, args=(work,), daemon=True)
        self._process.start()

    def _run(self, work: Callable[[Report, Callable[[], bool]], None]) -> None:
        seen: list[tuple[float, float]] = []

        def report(begun: float, seconds: float) -> None:
            seen.append((begun, seconds))
            self._reported.set()

        try:
            work(report, self._over.is_set)
        finally:
            self._reports.put(seen)

    def wait_for_request(self) -> None:
        """Wait for the end of a request that begins from now on, or of the process."""
        for _ in range(2):  # the first may have begun before
            self._reported.clear()
            while self._process.is_alive() and not self._reported.wait(1.0):
                pass

    def end(self) -> list[tuple[float, float]]:
        """End it; when each of its requests began, and its seconds."""
        self._over.set()
        seen: list[tuple[float, float]] = self._reports.get()
        self._process.join()
        assert self._process.exitcode == 0, "a client was refused: its error is above"
        return seen


@dataclass
class Load:
    """A curator with an open study, and what was measured of it."""

    folder: Path
    fresh: bool = True
    pause: float = 0.0
    """Seconds between two queries."""
    latencies: dict[str, list[float]] = field(default_factory=dict)
    health: dict[str, list[float]] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)
    peak: dict[str, int] = field(default_factory=dict)
    phase: str = "begin"
    over: threading.Event = field(default_factory=threading.Event)
    failures: list[BaseException] = field(default_factory=list)
    begun: list[tuple[float, str]] = field(default_factory=list)
    """When each phase began, by the clock that all processes share."""

    def begin(self) -> None:
        """Start it, and open a study."""
        self.curator = Service("curator", self.folder / "curator", fresh=self.fresh).start()
        with Owner(self.curator.url, self.curator.token, timeout_s=240) as owner:
            data = small()
            dataset = owner.register("small", data.csv, public=True).id
            self.study = owner.create_study(checks.draft(data, dataset, epsilon="0.1", answers=10**6)).id
            owner.release(self.study)
            self.token = owner.grant(self.study, wire.GrantCreate(name="load")).token

    def http(self, token: str = "") -> httpx.Client:
        """A client of the curator."""
        headers = {"Authorization": f"Bearer {token or self.curator.token}"}
        return httpx.Client(base_url=self.curator.url, headers=headers, timeout=600)

    def memory(self) -> int:
        """MiB of the service and its children; what they share counts once."""
        pid, total = self.curator.process.pid, 0
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                if int(status.parent.name) == pid or int(status.read_text().rpartition(")")[2].split()[1]) == pid:
                    total += int((status.parent / "smaps_rollup").read_text().partition("Pss:")[2].split()[0])
            except (OSError, IndexError, ValueError):  # it ended meanwhile
                continue
        return total // 1_024

    # --- what runs all the time -------------------------------------------------------------------

    def exchange(self, report: Report, is_over: Callable[[], bool]) -> None:
        """Query one row after another."""
        with self.http(self.token) as http:
            row = 0
            while not is_over():
                row, begun = (row + 1) % 400, time.monotonic()
                headers = {"Idempotency-Key": secrets.token_hex(8)}
                reply = http.post(f"/v1/studies/{self.study}/queries", json={"rows": [{"row": row}]}, headers=headers)
                assert reply.status_code == 201, reply.text
                report(begun, time.monotonic() - begun)
                time.sleep(self.pause)

    def monitor(self, report: Report, is_over: Callable[[], bool]) -> None:
        """Health, ten times a second."""
        with self.http() as http:
            while not is_over():
                for path in ("/healthz", "/readyz"):
                    begun = time.monotonic()
                    assert http.get(path).status_code == 200
                    report(begun, time.monotonic() - begun)
                time.sleep(0.1)

    def watch(self) -> None:
        """Memory, ten times a second."""
        while not self.over.wait(0.1):
            self.peak[self.phase] = max(self.peak.get(self.phase, 0), self.memory())

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self.phase = phase
        self.begun.append((time.monotonic(), phase))

    def phase_at(self, moment: float) -> str:
        """The phase under way at a moment."""
        return next(phase for begun, phase in reversed(self.begun) if begun <= moment)

    def guarded(self, work: Callable[[], None]) -> threading.Thread:
        """A thread whose error ends the load."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.failures.append(error)
                self.over.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    # --- what comes in ----------------------------------------------------------------------------

    def upload(self, name: str, filename: str, content: bytes, right: tuple[int, ...]) -> None:
        """Send a file, discard what is kept of it, and check the reply."""
        with self.http() as http:
            headers = {"Idempotency-Key": secrets.token_hex(8)}
            reply = http.post("/v1/uploads", files={"file": (filename, content)}, headers=headers)
            while reply.status_code == 408:  # this process sends too slowly: four large files at once
                reply = http.post("/v1/uploads", files={"file": (filename, content)}, headers=headers)
            assert reply.status_code in right, f"{name}: {reply.status_code} {reply.text[:300]}"
            self.statuses[f"{name}: {reply.status_code}"] += 1
            if reply.status_code == 201:
                headers = {"Idempotency-Key": secrets.token_hex(8)}
                http.post(f"/v1/uploads/{reply.json()['id']}:discard", headers=headers).raise_for_status()

    def send(self, who: str, path: str, body: bytes, right: int) -> None:
        """Send a body, and check the reply."""
        with self.http(self.token if who == "modeler" else "") as http:
            headers = JSON | {"Idempotency-Key": secrets.token_hex(8)}
            reply = http.post(path.format(study=self.study), content=body, headers=headers)
            assert reply.status_code == right, f"{path}: {reply.status_code} {reply.text[:300]}"
            self.statuses[f"bodies: {reply.status_code}"] += 1

    def last(self, seconds: float, scale: float) -> None:
        """Alone, with a large table, with hostile files, with hostile bodies; each about a quarter of the time."""
        large, files = table(int(1e6 * scale)), hostile_files(scale)  # beforehand: it takes this process a while
        self.enter("alone")
        clients = [Client(self.exchange), Client(self.monitor)]
        threads = [self.guarded(self.watch)]
        self.over.wait(seconds / 4)
        for client in clients:
            client.wait_for_request()
        self.enter("a large table")
        self.upload("a large table", "large.csv", large, (201,))
        self.enter("hostile files")
        for name, (filename, content, right) in files.items():
            at_once = 4 if name == "a line without an end" else 1
            works = [
                self.guarded(lambda n=name, f=filename, c=content, r=right: self.upload(n, f, c, r))
                for _ in range(at_once)
            ]
            for work in works:
                work.join()
        for client in clients:
            client.wait_for_request()
        self.enter("hostile bodies")
        until = time.monotonic() + seconds / 4
        while time.monotonic() < until and not self.over.is_set():
            for who, path, body, right in hostile_bodies().values():
                self.send(who, path, body, right)
                time.sleep(0.1)
        self.enter("after")
        self.over.wait(min(2.0, seconds))
        self.over.set()
        for thread in threads:
            thread.join()
        queries, health = (client.end() for client in clients)
        for begun, seconds in queries:
            self.latencies.setdefault(self.phase_at(begun), []).append(seconds)
        for begun, seconds in health:
            self.health.setdefault(self.phase_at(begun), []).append(seconds)
        if self.failures:
            raise self.failures[0]

    def check(self, idle: int) -> None:
        """What must hold whatever the machine's speed: memory, what is left, the log."""
        peak = max(self.peak.values()) - idle
        rest = self.memory() - idle
        print(f"memory over idle ({idle} MiB): peak {peak} MiB, after {rest} MiB; by phase {self.peak}")
        leftover = [path.name for name in ("tmp", "pending") for path in (self.curator.data / "files" / name).iterdir()]
        assert leftover == [], leftover
        assert peak <= PEAK_MIB, peak
        assert rest <= REST_MIB, rest
        checks.check_service(self.curator)


def milliseconds(values: list[float]) -> str:
    """Median, 99th percentile and largest."""
    p50, p99, top = np.quantile(values, [0.5, 0.99, 1.0]) * 1_000
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {top:.0f} ms of {len(values)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--scale", type=float, default=1.0, help="of the files")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        load = Load(Path(folder))
        try:
            load.begin()
            time.sleep(1.0)
            idle = load.memory()
            load.last(chosen.seconds, chosen.scale)
            for phase, values in load.latencies.items():
                print(f"queries, {phase}: {milliseconds(values)}")
            for phase, values in load.health.items():
                print(f"health, {phase}: {milliseconds(values)}")
            print(dict(load.statuses))
            assert max(np.quantile(values, 0.99) for values in load.latencies.values()) < P99_SECONDS
            load.check(idle)
        finally:
            if load.curator.process is not None:
                load.curator.process.kill()


if __name__ == "__main__":
    sys.exit(main())
