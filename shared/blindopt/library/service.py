"""What all objects of the library share: a connection to one service, and the same methods for asyncio.

The library has one implementation, the synchronous one. An asynchronous class names those of its methods that send
requests, and each of them runs in a thread (``asyncio.to_thread``): nothing is written twice, mypy checks parameters
and results, and the synchronous httpx client is the faster one.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar

from blindopt.addresses import is_plain_abroad
from blindopt.client import Client
from blindopt.errors import Invalid

C = TypeVar("C", bound=Client)
S = TypeVar("S")
R = TypeVar("R")
P = ParamSpec("P")


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


class AsyncOf(Generic[S]):
    """The same object for asyncio. ``sync`` is the synchronous one, whose properties may be read."""

    def __init__(self, sync: S) -> None:
        self.sync = sync

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sync!r})"

    def _repr_html_(self) -> str:
        show: Callable[[], str] = getattr(self.sync, "_repr_html_", lambda: "")
        return show()

    async def _read(self, read: Callable[[S], R]) -> R:
        """Run what sends a request, such as a property, in a thread."""
        return await asyncio.to_thread(read, self.sync)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if (close := getattr(self.sync, "close", None)) is not None:
            await asyncio.to_thread(close)


class Awaited(Generic[S, P, R]):
    """A method of an asynchronous class: ``stop = Awaited(Run.stop)`` runs that method in a thread.

    What a method returns can be wrapped: ``start = Awaited(then(Vendor.start, AsyncRun))``.
    """

    def __init__(self, method: Callable[Concatenate[S, P], R]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: AsyncOf[S], owner: type | None = None) -> Callable[P, Coroutine[Any, Any, R]]:
        async def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return await asyncio.to_thread(self._method, instance.sync, *args, **kwargs)

        return call


W = TypeVar("W")


def then(method: Callable[Concatenate[S, P], R], wrap: Callable[[R], W]) -> Callable[Concatenate[S, P], W]:
    """Return ``method`` followed by ``wrap``."""

    def both(sync: S, /, *args: P.args, **kwargs: P.kwargs) -> W:
        return wrap(method(sync, *args, **kwargs))

    both.__doc__ = method.__doc__
    return both
