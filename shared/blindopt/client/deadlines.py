"""Deadlines of exchanges: the connection of an exchange that takes too long is cut.

httpx bounds only single reads, so a peer that sends a byte now and then, even of the headers, would hold its reader
for ever. A thread for each exchange costs more than the exchange; so one thread waits for all deadlines of a process,
and wakes about once a timeout.
"""

import itertools
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from blindopt.errors import Unreachable

_IDLE_SECONDS = 30.0
LINK_POSTED = "link.posted"
"""The event of ``trace`` for a request over a link, which has no socket: ``end`` of its details ends the exchange."""
_CONNECTED = frozenset(
    f"{event}.complete" for event in ("connection.connect_tcp", "connection.start_tls", "proxy.start_tls")
)


class _Scheduler:
    """Calls functions at given times, on one thread that ends after a while without any. Safe to use in any thread."""

    def __init__(self) -> None:
        self._due: dict[int, tuple[float, Callable[[], None]]] = {}
        self._ids = itertools.count()
        self._changed = threading.Condition()
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None

    def add(self, at: float, act: Callable[[], None]) -> int:
        """Call ``act``, which is quick and raises nothing, at a time of the monotonic clock. Returns the call's id."""
        with self._changed:
            call = next(self._ids)
            self._due[call] = at, act
            if self._thread is None or not self._thread.is_alive():  # as in a forked process
                self._wakes_at = at
                self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)
                self._thread.start()
            elif at < self._wakes_at:
                self._wakes_at = at
                self._changed.notify()
        return call

    def cancel(self, call: int) -> None:
        """Drop a call: it does not happen after this returns."""
        with self._changed:
            self._due.pop(call, None)

    def _run(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for call in [call for call, (at, _) in self._due.items() if at <= now]:
                    self._due.pop(call)[1]()
                idle = not self._due
                self._wakes_at = now + _IDLE_SECONDS if idle else min(at for at, _ in self._due.values())
                woken = self._changed.wait(self._wakes_at - now)
                if idle and not woken and not self._due:
                    self._thread = None
                    return


_SCHEDULER = _Scheduler()


class Sockets:
    """The open sockets of one client, collected while httpx opens them (``trace``), so that they can be cut."""

    def __init__(self) -> None:
        self._open: list[socket.socket] = []
        self._end_linked: Callable[[], None] = lambda: None
        self._is_cut = False

    def trace(self, event: str, details: dict[str, Any]) -> None:
        """Collect a new connection: httpx and links call this as the extension ``trace`` of a request."""
        if event in _CONNECTED:
            self._open = [sock for sock in self._open if sock.fileno() >= 0]
            self._open.append(details["return_value"].get_extra_info("socket"))
        elif event == LINK_POSTED:
            self._end_linked = details["end"]
        else:
            return
        if self._is_cut:
            self.cut()

    def cut(self) -> None:
        """Shut all sockets down, and those opened from now on, so that a reader gets the end of the stream.

        A reader of a reply over a link waits no longer.
        """
        self._is_cut = True
        self._end_linked()
        for sock in self._open:
            with suppress(OSError):  # it is closed already
                # Not SSLSocket's own shutdown, which would drop its TLS state under the thread that reads.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def within(self, seconds: float) -> "Deadline":
        """Return a context for one exchange: Unreachable if it takes longer."""
        self._is_cut = False
        return Deadline(self, seconds)


class Deadline:
    """The time limit of one exchange."""

    __slots__ = ("_at", "_call", "_is_late", "_sockets")

    def __init__(self, sockets: Sockets, seconds: float) -> None:
        self._sockets = sockets
        self._at = time.monotonic() + seconds
        self._call = -1
        self._is_late = False

    def _cut(self) -> None:
        self._is_late = True
        self._sockets.cut()

    def extend(self, seconds: float) -> None:
        """Set the deadline to ``seconds`` from now."""
        _SCHEDULER.cancel(self._call)
        self._call = _SCHEDULER.add(time.monotonic() + seconds, self._cut)

    def __enter__(self) -> Self:
        self._call = _SCHEDULER.add(self._at, self._cut)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _SCHEDULER.cancel(self._call)
        if self._is_late and (error is None or isinstance(error, Unreachable)):  # a reply that was cut may look whole
            raise Unreachable("the other party did not answer in time") from TimeoutError()
