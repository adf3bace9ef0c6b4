"""Deadlines of exchanges: where one is not over in time, its connection is cut.

httpx bounds each read alone: a byte now and then, of the head too, would hold its reader for ever. A thread for each
exchange costs more than the exchange; here one thread waits for all of a process, and is woken about once a timeout.
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
_CONNECTED = frozenset({"connection.connect_tcp.complete", "connection.start_tls.complete"})


class _Watch:
    """Acts when something is due. Its thread ends where nothing has been for a while. Safe to call from any thread."""

    def __init__(self) -> None:
        self._due: dict[int, tuple[float, Callable[[], None]]] = {}
        self._places = itertools.count()
        self._changed = threading.Condition()
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None

    def add(self, at: float, act: Callable[[], None]) -> int:
        """Call ``act`` at a time of the monotonic clock; its place. ``act`` is quick and raises nothing."""
        with self._changed:
            place = next(self._places)
            self._due[place] = at, act
            if self._thread is None or not self._thread.is_alive():  # as in a forked process
                self._wakes_at = at
                self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)
                self._thread.start()
            elif at < self._wakes_at:
                self._wakes_at = at
                self._changed.notify()
        return place

    def drop(self, place: int) -> None:
        """Forget it: once this returns it is not called any more."""
        with self._changed:
            self._due.pop(place, None)

    def _run(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for place in [place for place, (at, _) in self._due.items() if at <= now]:
                    self._due.pop(place)[1]()
                idle = not self._due
                self._wakes_at = now + _IDLE_SECONDS if idle else min(at for at, _ in self._due.values())
                woken = self._changed.wait(self._wakes_at - now)
                if idle and not woken and not self._due:
                    self._thread = None
                    return


_WATCH = _Watch()


class Sockets:
    """The open connections of one client: which it learns as httpx makes them (``trace``), so that they can be cut."""

    def __init__(self) -> None:
        self._open: list[socket.socket] = []
        self._late = False

    def trace(self, event: str, told: dict[str, Any]) -> None:
        """The extension of this name, for httpx."""
        if event in _CONNECTED:
            self._open = [one for one in self._open if one.fileno() >= 0]
            self._open.append(told["return_value"].get_extra_info("socket"))
            if self._late:
                self.cut()

    def cut(self) -> None:
        """Whoever reads from them, or connects now, reads the end."""
        self._late = True
        for one in self._open:
            with suppress(OSError):  # it is closed already
                # Not SSLSocket's own, which would take its state from under the thread that reads.
                socket.socket.shutdown(one, socket.SHUT_RDWR)

    def within(self, seconds: float) -> "Deadline":
        """A context in which an exchange has so long; Unreachable if it takes longer."""
        self._late = False
        return Deadline(self, seconds)


class Deadline:
    """Of one exchange."""

    __slots__ = ("_at", "_late", "_place", "_sockets")

    def __init__(self, sockets: Sockets, seconds: float) -> None:
        self._sockets = sockets
        self._at = time.monotonic() + seconds
        self._place = -1
        self._late = False

    def _cut(self) -> None:
        self._late = True
        self._sockets.cut()

    def extend(self, seconds: float) -> None:
        """So long from now on."""
        _WATCH.drop(self._place)
        self._place = _WATCH.add(time.monotonic() + seconds, self._cut)

    def __enter__(self) -> Self:
        self._place = _WATCH.add(self._at, self._cut)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _WATCH.drop(self._place)
        if self._late and (error is None or isinstance(error, Unreachable)):  # a reply that was cut may look whole
            raise Unreachable("the other party did not answer in time") from TimeoutError()
