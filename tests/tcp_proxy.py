"""A TCP proxy of tests: it keeps what it carries, breaks connections where it is told, and can be cut off."""

import math
import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress


class TcpProxy:
    """Passes bytes on to ``port``: the k-th connection carries at most ``cuts[k]`` bytes back, then it breaks.

    Connections past the list are whole. ``broken`` counts those that were cut; ``forth`` and ``back`` are the bytes
    that went each way, by connection.
    """

    def __init__(self, port: int, cuts: Sequence[int | None] = ()) -> None:
        self._to, self._cuts = port, list(cuts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.connections = self.broken = 0
        self.forth: list[bytearray] = []
        self.back: list[bytearray] = []
        self._ends: list[socket.socket] = []
        self._is_cut, self._goes_on = False, threading.Event()
        self._goes_on.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *, silent: bool) -> None:
        """Carry nothing more: close all connections and take none, or keep silent on them."""
        if silent:
            self._goes_on.clear()
        else:
            self._is_cut = True
            _close(self._ends)

    def close(self) -> None:
        self._is_cut = True
        self._goes_on.set()
        _close([self._listener, *self._ends])

    def connect(self, client: socket.socket) -> socket.socket | None:
        """Connect a client; None to turn it away."""
        return connection(self._to)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                cut = self._cuts[self.connections] if self.connections < len(self._cuts) else None
                self.connections += 1
                limit = math.inf if cut is None else cut
                threading.Thread(target=self._serve, args=(client, limit), daemon=True).start()

    def _serve(self, client: socket.socket, limit: float) -> None:
        server = None if self._is_cut else self.connect(client)
        if server is None:
            client.close()
            return
        self._ends += [client, server]
        self.forth.append(forth := bytearray())
        self.back.append(back := bytearray())
        threading.Thread(target=self._carry, args=(client, server, forth, math.inf), daemon=True).start()
        self._carry(server, client, back, limit)

    def _carry(self, source: socket.socket, target: socket.socket, carried: bytearray, remaining: float) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._goes_on.wait()
                if len(data) > remaining:
                    self.broken += 1
                    target.sendall(data[: int(remaining)])
                    break
                remaining -= len(data)
                carried += data
                target.sendall(data)
        _close([source, target])


def connection(port: int) -> socket.socket | None:
    """A connection to a port of this machine, or None where nobody listens."""
    with suppress(OSError):
        return socket.create_connection(("127.0.0.1", port))
    return None


def _close(ends: Iterable[socket.socket]) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
