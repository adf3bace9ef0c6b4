"""A proxy between a service and PostgreSQL: it counts round trips, makes each longer, or holds one."""

import heapq
import select
import socket
import tempfile
import threading
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Self

_PORT = ".s.PGSQL.5432"


class PostgresProxy:
    """Passes bytes between clients and the server whose socket is in ``folder``, each ``delay_s`` seconds late.

    A round trip is counted where a client sends bytes after it was sent some. From bytes of a client on that have
    ``hold_at`` in them, nothing passes until ``release``; ``is_holding`` is set then.
    """

    def __init__(self, folder: Path, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.round_trips = 0
        self.hold_at: bytes | None = None
        self.is_holding = threading.Event()
        self._server = folder / _PORT
        self._own = tempfile.TemporaryDirectory(prefix="pgproxy", dir="/tmp")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(Path(self._own.name) / _PORT))
        self._listener.listen()
        self._others: dict[socket.socket, socket.socket] = {}
        self._ends: list[socket.socket] = []
        self._clients: set[socket.socket] = set()
        self._listened: set[socket.socket] = set()
        self._late: list[tuple[float, int, socket.socket, bytes]] = []
        self._order = count()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._wake.close()
        self._thread.join()
        for each in (self._listener, self._woken, *self._ends):
            each.close()
        self._own.cleanup()

    def url(self, direct: str) -> str:
        """The address by way of this proxy of a database whose address is ``direct``."""
        return f"{direct.partition('?')[0]}?host={self._own.name}"

    def release(self) -> None:
        """Pass what was held, and all that follows."""
        self.hold_at = None
        self.is_holding.clear()
        self._wake.send(b"x")

    def _run(self) -> None:
        while True:
            is_next = self._late and not self.is_holding.is_set()
            wait = max(0.0, self._late[0][0] - time.monotonic()) if is_next else None
            ready, _, _ = select.select([self._listener, self._woken, *self._others], [], [], wait)
            if self._woken in ready and not self._woken.recv(1):
                return
            for each in ready:
                if each is self._listener:
                    self._accept()
                elif each in self._others:
                    self._read(each)
            while self._late and self._late[0][0] <= time.monotonic() and not self.is_holding.is_set():
                _, _, target, data = heapq.heappop(self._late)
                self._send(target, data)

    def _accept(self) -> None:
        client, server = self._listener.accept()[0], socket.socket(socket.AF_UNIX)
        try:
            server.connect(str(self._server))
        except OSError:
            client.close()
            return
        self._others |= {client: server, server: client}
        self._ends += [client, server]
        self._clients.add(client)

    def _read(self, source: socket.socket) -> None:
        data = b""
        with suppress(OSError):
            data = source.recv(1 << 16)
        target = self._others[source]
        if source in self._clients:
            self.round_trips += source in self._listened
            self._listened.discard(source)
            if self.hold_at is not None and self.hold_at in data:
                self.is_holding.set()
        if not data:
            del self._others[source]
        if self.delay_s or self.is_holding.is_set():
            heapq.heappush(self._late, (time.monotonic() + self.delay_s, next(self._order), target, data))
        else:
            self._send(target, data)

    def _send(self, target: socket.socket, data: bytes) -> None:
        if target in self._clients:
            self._listened.add(target)
        with suppress(OSError):
            if data:
                target.sendall(data)
            else:
                target.shutdown(socket.SHUT_RDWR)
