"""An owner's system that measures, over real HTTP: it works once for each key, and fails as a test chooses."""

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.http_receiver import Answer, Receiver
from tests.shared.service_kit.notices.notice_receiver import documented_check

KEY = "a secret of thirty-two characters"


@dataclass
class Call:
    """A request that the system got."""

    at: float
    key: str
    measurement: str
    beside: int
    """How many others were being answered."""


@dataclass
class OwnersSystem:
    """Keeps its port from one ``open`` to the next, and never forgets its results, as a database would."""

    fails: Callable[[dict[str, Any], int], Answer | None] = lambda body, before: None
    """The reply in place of a measurement, or None; ``before``: how many calls for that measurement came before."""
    port: int = 0
    calls: list[Call] = field(default_factory=list)
    done: dict[str, float] = field(default_factory=dict)
    """The value measured under each key."""
    worked: Counter[str] = field(default_factory=Counter)
    """How often each measurement was made."""
    forged: int = 0
    _receiver: Receiver | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _busy: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/measure"

    def call_count(self, measurement: str) -> int:
        """How often it was called for a measurement."""
        return sum(call.measurement == measurement for call in self.calls)

    def open(self) -> None:
        """Listen, on the port that it had before."""
        self._receiver = Receiver(lambda request, body: self.answer(request.headers, body), self.port)
        self.port = self._receiver.port

    def close(self) -> None:
        """Refuse connections."""
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def answer(self, headers: Any, body: bytes) -> Answer:
        """The reply to a call: 401 for a wrong signature, else as ``fails`` says, else the measurement."""
        if not documented_check()(headers["Blindopt-Signature"], body, KEY.encode(), math.inf):
            self.forged += 1
            return 401, b"", {}
        call, key = json.loads(body), headers["Idempotency-Key"]
        with self._lock:
            before = self.call_count(call["measurement_id"])
            self.calls.append(Call(time.monotonic(), key, call["measurement_id"], self._busy))
            self._busy += 1
        try:
            failed = self.fails(call, before)
            if failed is not None:
                return failed
            return 200, json.dumps({"value": self.measure(call, key)}).encode(), {}
        finally:
            with self._lock:
                self._busy -= 1

    def measure(self, call: dict[str, Any], key: str) -> float:
        """The value for a key: measured for a new key, else as before."""
        with self._lock:
            if key not in self.done:
                self.worked[call["measurement_id"]] += 1
                self.done[key] = call["record"] / 1000
            return self.done[key]


@contextmanager
def serve_owners_system() -> Iterator[OwnersSystem]:
    """A system that listens."""
    system = OwnersSystem()
    system.open()
    try:
        yield system
    finally:
        system.close()
