"""What all objects of the library share: a connection to one service, for each thread its own."""

import threading
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from blindopt.addresses import is_plain_abroad
from blindopt.client import Client
from blindopt.errors import Invalid

C = TypeVar("C", bound=Client)


class Service(Generic[C]):
    """One service, by its address and a token. Threads may share it: each has a connection of its own.

    ``verify`` is a file of certificate authorities, or False for no check of the certificate. ``timeout_s`` bounds one
    reply. For ``patience_s`` a request is repeated, with the same idempotency key, while that may help. ``proxy`` is
    the address of an HTTP proxy; none is taken from the environment, because it would read the token. Raises Invalid
    for plain http to another machine, unless ``plain_http`` allows it.
    """

    client_type: ClassVar[type[Client]]

    def __init__(
        self,
        url: str,
        token: str,
        *,
        verify: str | Path | bool = True,
        timeout_s: float = 30.0,
        patience_s: float = 60.0,
        proxy: str | None = None,
        plain_http: bool = False,
    ) -> None:
        if is_plain_abroad(url) and not plain_http:
            raise Invalid(f"a token is not sent over plain http to another machine: use https for {url}")
        self.url = url.rstrip("/")
        self._token = token
        self._options: dict[str, Any] = {
            "verify": str(verify) if isinstance(verify, Path) else verify,
            "timeout_s": timeout_s,
            "patience_s": patience_s,
            "proxy": proxy,
        }
        self._clients: dict[int, C] = {}
        self._lock = threading.Lock()

    @property
    def client(self) -> C:
        """The client of this thread, with every request of the service's REST interface for this role."""
        with self._lock:
            identity = threading.get_ident()
            if identity not in self._clients:
                self._clients[identity] = self._connect()
            return self._clients[identity]

    def _connect(self) -> C:
        client: Any = self.client_type(self.url, self._token, **self._options)
        made: C = client
        return made

    def close(self) -> None:
        """Close the connections. A later request opens one again."""
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url})"
