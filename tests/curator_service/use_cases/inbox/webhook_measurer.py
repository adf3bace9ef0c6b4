"""An owner's system that measures, over real HTTP: it works once for each key that it sees, and fails as it is told."""

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.shared.service_kit.notices.notice_receiver import documented_check

KEY = "a secret of thirty-two characters"
Reply = tuple[int, bytes, dict[str, str]]


@dataclass
class Call:
    """One request that was heard."""

    at: float
    key: str
    measurement: str
    beside: int
    """How many others were being answered."""


@dataclass
class Lab:
    """Stays on its port between ``open`` and ``close``; what it has done it knows for good, as a database would."""

    fails: Callable[[dict[str, Any], int], Reply | None] = lambda said, before: None
    """What it answers in place of a measurement; ``before``: how often it heard of that measurement before."""
    port: int = 0
    calls: list[Call] = field(default_factory=list)
    done: dict[str, float] = field(default_factory=dict)
    """The value measured under each key."""
    worked: Counter[str] = field(default_factory=Counter)
    """How often each measurement was made."""
    forged: int = 0
    _server: ThreadingHTTPServer | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _busy: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/measure"

    def heard(self, measurement: str) -> int:
        """How often it was asked for a measurement."""
        return sum(call.measurement == measurement for call in self.calls)

    def open(self) -> None:
        """Listen, on the port that it had before."""
        lab = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, told, headers = lab._answer(self.headers, body)
                with suppress(BrokenPipeError, ConnectionResetError):  # nobody waits any more
                    self.send_response(status)
                    for name, value in {**headers, "Content-Length": str(len(told))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(told)

            def log_message(self, *told: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            allow_reuse_address = True
            daemon_threads = True

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Be gone: a connection is refused."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _answer(self, headers: Any, body: bytes) -> Reply:
        if not documented_check()(headers["Blindopt-Signature"], body, KEY.encode(), math.inf):
            self.forged += 1
            return 401, b"", {}
        said, key = json.loads(body), headers["Idempotency-Key"]
        with self._lock:
            before = self.heard(said["measurement_id"])
            self.calls.append(Call(time.monotonic(), key, said["measurement_id"], self._busy))
            self._busy += 1
        try:
            failed = self.fails(said, before)
            if failed is not None:
                return failed
            return 200, json.dumps({"value": self.measure(said, key)}).encode(), {}
        finally:
            with self._lock:
                self._busy -= 1

    def measure(self, said: dict[str, Any], key: str) -> float:
        """The value for a key: it works only for one that it has not seen."""
        with self._lock:
            if key not in self.done:
                self.worked[said["measurement_id"]] += 1
                self.done[key] = said["record"] / 1000
            return self.done[key]


@contextmanager
def opened_lab() -> Iterator[Lab]:
    """A lab that is there."""
    lab = Lab()
    lab.open()
    try:
        yield lab
    finally:
        lab.close()
