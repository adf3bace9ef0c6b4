"""A forward proxy: it takes CONNECT, checks a user, resolves names itself, and keeps every byte that it passes on."""

import base64
import socket

from tests.tcp_proxy import TcpProxy, connection


class ForwardProxy(TcpProxy):
    """Connects its clients to ``names``: from HOST:PORT, as a client writes it, to a port of this machine."""

    def __init__(self, names: dict[str, int], user: str) -> None:
        self._names = names
        self._authorization = f"basic {base64.b64encode(user.encode()).decode()}".lower()
        self.heads: list[str] = []
        super().__init__(0)

    @property
    def passed_on(self) -> bytes:
        return b"".join([*self.forth, *self.back])

    def connect(self, client: socket.socket) -> socket.socket | None:
        received = b""
        while b"\r\n\r\n" not in received:
            if not (part := client.recv(4096)):
                return None
            received += part
        head = received.partition(b"\r\n\r\n")[0].decode()
        self.heads.append(head)
        method, target, _ = head.splitlines()[0].split()
        if f"proxy-authorization: {self._authorization}" not in head.lower():
            client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
        elif method != "CONNECT" or target not in self._names:
            client.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
        else:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            return connection(self._names[target])
        return None
