"""A forward proxy: it takes CONNECT, checks a user, resolves names itself, and keeps every byte that it passes on."""

import base64
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class ForwardProxy:
    """Connects its clients to ``names``: from HOST:PORT, as a client writes it, to a port of this machine."""

    def __init__(self, names: dict[str, int], user: str) -> None:
        self._names = names
        self._authorization = f"basic {base64.b64encode(user.encode()).decode()}".lower()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.heads: list[str] = []
        self.passed_on = bytearray()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._handle, args=(client,), daemon=True).start()

    def _handle(self, client: socket.socket) -> None:
        with client:
            received = b""
            while b"\r\n\r\n" not in received:
                if not (part := client.recv(4096)):
                    return
                received += part
            head = received.partition(b"\r\n\r\n")[0].decode()
            self.heads.append(head)
            method, target, _ = head.splitlines()[0].split()
            if f"proxy-authorization: {self._authorization}" not in head.lower():
                client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            elif method != "CONNECT" or target not in self._names:
                client.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            else:
                with socket.create_connection(("127.0.0.1", self._names[target])) as server:
                    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                    back = threading.Thread(target=self._pass_on, args=(server, client), daemon=True)
                    back.start()
                    self._pass_on(client, server)
                    back.join()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(1 << 16):
                self.passed_on += part
                sink.sendall(part)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


@contextmanager
def forward_proxy(names: dict[str, int], user: str) -> Iterator[ForwardProxy]:
    """A forward proxy while the block lasts."""
    proxy = ForwardProxy(names, user)
    try:
        yield proxy
    finally:
        proxy.close()
