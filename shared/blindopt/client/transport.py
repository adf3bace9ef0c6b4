"""What all clients share: the kept connection, its deadline, errors in plain words, bounded unencoded replies."""

import itertools
import logging
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, Self

import httpcore
import httpx

from blindopt.addresses import is_localhost_name
from blindopt.certificates import CertificateFiles, FileWatch, causes, expires_at, file_problem, tls_problem
from blindopt.errors import ProtocolViolated, StateConflict, Unreachable
from blindopt.version import VERSION

_IDLE_SECONDS = 30.0
LINK_POSTED = "link.posted"
"""The event of ``trace`` for a request over a link, which has no socket: ``end`` of its details ends the exchange."""
_CONNECTED = frozenset(
    f"{event}.complete" for event in ("connection.connect_tcp", "connection.start_tls", "proxy.start_tls")
)


_CONNECTING = "connection.connect_tcp.started"
SAID_AFTER_S = 1.0
"""How long a service may be silent before a person is told, in seconds."""


class _Scheduler:
    """Calls functions at given times, on one thread that ends after a while without any. Safe to use in any thread.

    httpx bounds only single reads, so a peer that sends a byte now and then, even of the headers, would hold its reader
    for ever. A thread for each exchange costs more than the exchange; so one thread waits for all deadlines of a
    process, and wakes about once a timeout.
    """

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

    def __init__(self, address: str = "") -> None:
        self.address = address or "the other party"
        self.is_connecting = False
        self._open: list[socket.socket] = []
        self._end_linked: Callable[[], None] = lambda: None
        self._is_cut = False

    def trace(self, event: str, details: dict[str, Any]) -> None:
        """Collect a new connection: httpx and links call this as the extension ``trace`` of a request."""
        if event == _CONNECTING:
            self.is_connecting = True
            return
        if event in _CONNECTED:
            self.is_connecting = False
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
            raise Unreachable(f"{self._sockets.address} did not answer in time") from TimeoutError()


class Patience:
    """Says once on standard error that a service does not answer, if that lasts for a second. For one request.

    ``url`` and ``tries_s``, how long it is tried, are for the sentence. One that answers slowly is not meant.
    """

    def __init__(self, url: str, tries_s: float, sockets: Sockets) -> None:
        self._words = f"{url} does not answer", f"Trying for {tries_s:.0f} s.\n"
        self._sockets, self._reason, self._begin, self._is_said = sockets, "", time.monotonic(), False
        sockets.is_connecting = False
        self._call = _SCHEDULER.add(self._begin + SAID_AFTER_S, self._say)

    def failed(self, error: Unreachable) -> None:
        """Take note that a try failed, and that another one follows."""
        is_refused = any(isinstance(cause, ConnectionRefusedError) for cause in causes(error))
        self._reason = "connection refused" if is_refused else "the connection failed"
        self._sockets.is_connecting = False
        if time.monotonic() - self._begin > SAID_AFTER_S:
            self._say()

    def _say(self) -> None:
        reason = self._reason or ("no connection yet" if self._sockets.is_connecting else "")
        if reason and not self._is_said:
            self._is_said = True
            with suppress(OSError, ValueError, AttributeError):  # a closed stream, or none
                sys.stderr.write(f" ({reason}). ".join(self._words))

    def end(self) -> None:
        """Say nothing from now on."""
        _SCHEDULER.cancel(self._call)


REPLY_MAX_BYTES = 64 << 20
ClientCertificate = tuple[str, str]
"""Files in PEM: a certificate, and its key."""
_CERTIFICATE = "blindopt.client_certificate"
log = logging.getLogger("blindopt.certificates")


_is_localhost_name = lru_cache(maxsize=64)(is_localhost_name)


Reach = Callable[[str], list[str]]
"""Looks up a host once, and returns the addresses to connect to. Raises OSError, and Unreachable for none of them."""


class _Judged(httpcore.SyncBackend):
    """Connects to addresses that were judged: at another question the name may mean another machine."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    def connect_tcp(self, host: str, *args: Any, **options: Any) -> httpcore.NetworkStream:
        try:
            addresses = self._reach(host)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        failure: Exception = httpcore.ConnectError("the name has no address")
        for address in addresses:
            try:
                return super().connect_tcp(address, *args, **options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure


class _Transport(httpx.HTTPTransport):
    """Sends requests to names under localhost to 127.0.0.1: browsers resolve these names, most systems do not.

    The Host header and the name that a certificate must have stay those of the URL.
    """

    def __init__(self, *, proxy: str | None, reach: Reach | None, **options: Any) -> None:
        super().__init__(proxy=proxy, **options)
        if reach is not None and proxy is None:  # a proxy looks names up itself
            self._pool._network_backend = _Judged(reach)  # httpx has no way to pass one

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        _resolve_localhost(request)
        return super().handle_request(request)


class AsyncTransport(httpx.AsyncHTTPTransport):
    """The same for an asynchronous client."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        _resolve_localhost(request)
        return await super().handle_async_request(request)


def _resolve_localhost(request: httpx.Request) -> None:
    host = request.url.host
    if host != "localhost" and _is_localhost_name(host):
        request.extensions = {**request.extensions, "sni_hostname": host}
        request.url = request.url.copy_with(host="127.0.0.1")


class _FilesTransport(httpx.BaseTransport):
    """A transport with certificates in files. New connections take those that the files hold now.

    Files that changed into something unusable leave the old ones.
    """

    def __init__(self, files: CertificateFiles, proxy: str | None, reach: Reach | None) -> None:
        self._files, self._proxy, self._reach = files, proxy, reach
        self._watch = FileWatch(files.names)
        self._current = self._opened()
        self._before: _Transport | None = None

    def _opened(self) -> _Transport:
        trusted = None if self._files.ca is not None else httpx.create_ssl_context(trust_env=False)
        context = self._files.client_context(trusted)
        return _Transport(verify=context, trust_env=False, proxy=self._proxy, reach=self._reach)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self._watch.has_changed():
            self._renew()
        if self._files.cert is not None:
            request.extensions = {**request.extensions, _CERTIFICATE: self._files.cert}
        return self._current.handle_request(request)

    def _renew(self) -> None:
        try:
            renewed = self._opened()
        except OSError as error:
            log.warning("certificate files are not usable, the old ones stay: %s", file_problem(error))
            return
        self.close_before()
        self._before, self._current = self._current, renewed

    def close_before(self) -> None:
        """Close the transport before the current one; an exchange of it may last for as long as it is still there."""
        if self._before is not None:
            self._before.close()

    def close(self) -> None:
        self.close_before()
        self._current.close()


class Connection:
    """An httpx client that is kept open, with limits on the time and size of a reply. For one thread.

    ``verify`` is a file of authorities, True for those of certifi, or False; ``client_cert`` are the files of a
    certificate to show. Files are read again when they change.
    """

    def __init__(
        self,
        base_url: str = "",
        *,
        headers: dict[str, str] | None = None,
        timeout_s: float,
        verify: str | bool,
        reply_max_bytes: int,
        proxy: str | None = None,
        client_cert: ClientCertificate | None = None,
        transport: httpx.BaseTransport | None = None,
        reach: Reach | None = None,
    ) -> None:
        if transport is None and base_url.startswith("link://"):
            raise StateConflict(
                f"{base_url} is the address of a link: only the modeler that made the link reaches that curator; "
                "start a run there"
            )
        with transport_errors():
            self._transport = transport or _transport(verify, base_url, proxy, client_cert, reach)
            self.http = httpx.Client(
                base_url=base_url,
                headers={"Accept-Encoding": "identity", "User-Agent": f"blindopt/{VERSION}"} | (headers or {}),
                timeout=timeout_s,
                transport=self._transport,
                trust_env=False,  # a proxy of the environment would read the token
            )
        self._url_of = lru_cache(maxsize=16)(lambda path: httpx.URL(f"{base_url.rstrip('/')}{path}"))
        self.sockets = Sockets(base_url.rstrip("/"))
        self.timeout_s = timeout_s
        self._reply_max_bytes = reply_max_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.http.close()

    @contextmanager
    def exchange(
        self, method: str, path: str, headers: dict[str, str], content: bytes | None, timeout_s: float
    ) -> Iterator[httpx.Response]:
        """Send a request by the client's transport, without what ``httpx.Client`` does before and after.

        That costs more than the request, and is not needed: neither redirects, cookies nor authentication.
        """
        timeout = dict.fromkeys(("connect", "read", "write", "pool"), timeout_s)
        request = httpx.Request(
            method,
            self._url_of(path),
            headers=[*self.http.headers.raw, *((name.encode(), value.encode()) for name, value in headers.items())],
            content=content,
            extensions={"timeout": timeout, "trace": self.sockets.trace},
        )
        try:
            response = self._transport.handle_request(request)
        except httpx.RequestError as error:
            error.request = request  # for the reason that is stated
            raise
        response.request = request
        try:
            yield response
        finally:
            response.close()

    def body_of(self, response: httpx.Response, max_bytes: int | None = None) -> bytes:
        """Read the body. Raises Unreachable if it is encoded, ProtocolViolated if it is too long."""
        require_identity(response)
        most = self._reply_max_bytes if max_bytes is None else max_bytes
        body = bytearray()
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > most:
                raise ProtocolViolated(f"the reply is larger than {most} bytes")
        return bytes(body)


_OF_THREAD = threading.local()


def _default_tls_context() -> ssl.SSLContext:
    """The context of this thread: each connection sets the protocols that its context offers, which is not atomic."""
    if not hasattr(_OF_THREAD, "context"):
        _OF_THREAD.context = httpx.create_ssl_context(trust_env=False)
    context: ssl.SSLContext = _OF_THREAD.context
    return context


def _transport(
    verify: str | bool,
    base_url: str,
    proxy: str | None,
    client_cert: ClientCertificate | None = None,
    reach: Reach | None = None,
) -> httpx.BaseTransport:
    """Return the transport for a file of authorities, for httpx's default ones (True), or False for no check.

    A connection to a base URL without TLS gets a context that trusts nobody, which takes no time to make.

    The connections of a thread share the default context: it takes 20 ms to make and does not change while a process
    runs. Files are read for each connection, because their operator may replace them.
    """
    if verify and not base_url.startswith("http://") and (client_cert is not None or isinstance(verify, str)):
        cert, key = client_cert or (None, None)
        return _FilesTransport(CertificateFiles(verify if isinstance(verify, str) else None, cert, key), proxy, reach)
    context: ssl.SSLContext | bool = False
    if verify:
        is_plain = base_url.startswith("http://")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_plain else _default_tls_context()
    return _Transport(verify=context, trust_env=False, proxy=proxy, reach=reach)


def is_ready(base_url: str, *, verify: bool = True) -> bool:
    """Whether a service at this address can take requests; ``verify``: whether its certificate is looked at."""
    try:
        with httpx.Client(transport=_transport(verify, base_url, None), timeout=5.0) as client:
            reply = client.get(f"{base_url.rstrip('/')}/readyz")
    except httpx.TransportError:
        return False
    return reply.status_code == 200


def require_identity(response: httpx.Response) -> None:
    """Raise Unreachable if the body is encoded, such as by gzip."""
    # A few bytes of gzip inside gzip unfold to gigabytes; and digests are of the bytes as sent.
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise Unreachable("the reply is encoded, though identity was requested: something on the way encoded it")


@contextmanager
def transport_errors(start: str = "") -> Iterator[None]:
    """Turn errors of httpx into Unreachable, in plain words, with the address but for its path.

    ``start`` is what starts the other party, said where nothing listens.
    """
    try:
        yield
    except httpx.ConnectTimeout as error:
        detail = "check the address and its port, and that a firewall lets this machine through"
        raise Unreachable(f"nothing answered at {_address(error)} in time: {detail}") from error
    except httpx.TimeoutException as error:
        raise Unreachable(f"{_address(error)} did not answer in time") from error
    except ssl.SSLError as error:
        raise Unreachable(f"the files of certificates are not usable: {file_problem(error)}") from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: a name that has no encoding
        raise Unreachable(_reason(error, start)) from error


def _address(error: Exception) -> str:
    """Where a request was sent: scheme, host and port."""
    request = getattr(error, "_request", None)  # ``request`` raises without one
    if request is None:
        return "the other party"
    return f"{request.url.scheme}://{request.headers.get('Host') or request.url.netloc.decode()}"


def _reason(error: Exception, start: str) -> str:
    address = _address(error)
    failed = f"the connection to {address} failed"
    if (problem := tls_problem(error)) is not None:
        return f"{failed}: {problem}"
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL | UnicodeError):
        return "this is no address: one begins with http:// or https://"
    if isinstance(error, httpx.ProxyError):
        status = re.match("[0-9]{3}", str(error))
        return f"{failed}: the forward proxy refused it ({status.group() if status else 'no status'})"
    if isinstance(error, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError):
        certificate = error.request.extensions.get(_CERTIFICATE)
        if certificate is not None:
            return f"{failed} ({type(error).__name__}). It may not take our client certificate{_validity(certificate)}"
        return f"{failed}: it was cut ({type(error).__name__})"
    for cause in causes(error):
        if isinstance(cause, socket.gaierror):
            return f"there is no machine of the name in {address}: check its spelling"
        if isinstance(cause, ConnectionRefusedError):
            return f"nothing listens at {address}: check the address and its port{start}"
    return f"{failed}: check the address and its port, and that a firewall lets this machine through"


def _validity(certificate: str) -> str:
    try:
        end = expires_at(certificate)
    except (OSError, ValueError):
        return ", which cannot be read"
    if end < datetime.now(UTC):
        return f", which has expired: it was valid until {end:%Y-%m-%d}"
    return f", valid until {end:%Y-%m-%d}: ask its owner which authority must sign it"
