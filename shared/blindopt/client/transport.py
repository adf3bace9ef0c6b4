"""What all clients share: the kept connection, errors of the transport in plain words, bounded unencoded replies."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import httpx

from blindopt.addresses import is_localhost_name
from blindopt.client.deadlines import Sockets
from blindopt.errors import ProtocolViolated, Unreachable
from blindopt.version import VERSION

REPLY_MAX_BYTES = 64 << 20


class _Transport(httpx.HTTPTransport):
    """Sends requests to names under localhost to 127.0.0.1: browsers resolve these names, most systems do not.

    The Host header and the name that a certificate must have stay those of the URL.
    """

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        if is_localhost_name(host) and host != "localhost":
            request.extensions = {**request.extensions, "sni_hostname": host}
            request.url = request.url.copy_with(host="127.0.0.1")
        return super().handle_request(request)


class Connection:
    """An httpx client that is kept open, with limits on the time and size of a reply. For one thread."""

    def __init__(
        self,
        base_url: str = "",
        *,
        headers: dict[str, str] | None = None,
        timeout_s: float,
        verify: str | bool,
        reply_max_bytes: int,
        proxy: str | None = None,
    ) -> None:
        with transport_errors():
            self._http = httpx.Client(
                base_url=base_url,
                headers={"Accept-Encoding": "identity", "User-Agent": f"blindopt/{VERSION}"} | (headers or {}),
                timeout=timeout_s,
                transport=_Transport(verify=_tls_context(verify, base_url), trust_env=False, proxy=proxy),
                trust_env=False,  # a proxy of the environment would read the token
            )
        self._sockets = Sockets()
        self._timeout_s = timeout_s
        self._reply_max_bytes = reply_max_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _body(self, response: httpx.Response) -> bytes:
        """Read the body. Raises Unreachable if it is encoded, ProtocolViolated if it is too long."""
        require_identity(response)
        body = bytearray()
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > self._reply_max_bytes:
                raise ProtocolViolated(f"the reply is larger than {self._reply_max_bytes} bytes")
        return bytes(body)


_OF_THREAD = threading.local()


def _default_tls_context() -> ssl.SSLContext:
    """The context of this thread: each connection sets the protocols that its context offers, which is not atomic."""
    if not hasattr(_OF_THREAD, "context"):
        _OF_THREAD.context = httpx.create_ssl_context(trust_env=False)
    context: ssl.SSLContext = _OF_THREAD.context
    return context


def _tls_context(verify: str | bool, base_url: str) -> ssl.SSLContext | bool:
    """Return the TLS context for a file of authorities, for httpx's default ones (True), or False for no check.

    A connection to a base URL without TLS gets one that trusts nobody, which takes no time to make.

    The connections of a thread share the default context: it takes 20 ms to make and does not change while a process
    runs. A file is read for each connection, because its operator may replace it.
    """
    if verify is True and base_url.startswith("http://"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if isinstance(verify, str):
        return ssl.create_default_context(cafile=verify)
    return verify and _default_tls_context()


def is_ready(base_url: str) -> bool:
    """Whether a service at this address can take requests."""
    try:
        context = _tls_context(True, base_url)
        with httpx.Client(transport=_Transport(verify=context, trust_env=False), timeout=5.0) as client:
            reply = client.get(f"{base_url}/readyz")
    except httpx.TransportError:
        return False
    return reply.status_code == 200


def require_identity(response: httpx.Response) -> None:
    """Raise Unreachable if the body is encoded, such as by gzip."""
    # A few bytes of gzip inside gzip unfold to gigabytes; and digests are of the bytes as sent.
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise Unreachable("the reply is encoded, though identity was requested: something on the way encoded it")


@contextmanager
def transport_errors() -> Iterator[None]:
    """Turn errors of httpx into Unreachable, in plain words."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise Unreachable("the other party did not answer in time") from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: a name that has no encoding
        raise Unreachable(f"the connection to the other party failed ({type(error).__name__})") from error
