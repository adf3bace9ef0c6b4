"""The HTTP protocol of one connection: uvicorn's, with deadlines, limits, TLS and problem documents."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from blindopt.errors import BadRequest, BlindoptError, Busy, ClientCertificateNeeded, HeadTooLarge, RequestTimeout
from service_kit.listener.connections import Connections, Standing, TrustedProxies, counted_address
from service_kit.web import problems

BYTES_PER_SECOND = 4096
"""How fast the rest of a body must come, and a reply must be read, on average over the seconds for a head."""
HEAD_MAX_BYTES = 32 << 10
HEAD_MAX_LINES = 100
PIPELINE_MAX = 8
DRAIN_SECONDS = 0.3
"""How long a kept connection stays open for a request that is on its way when the service ends."""
HEALTH = (b"/healthz", b"/readyz")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds that peers have."""

    head: float = 10.0
    """Within so long a TLS handshake, and the head of a request, must be complete; and a body or a reply must move."""
    linger: float = 1.0
    """How long a refused connection stays open, so that its peer can read why; and the end of TLS may last."""
    tick: float = 1.0
    """How often it is looked who is late."""


class ListenerState(ServerState):
    """What the connections of a service share.

    ``tls`` returns the context for a new connection, or None without TLS; ``needs_certificate`` is whether a client
    must show a certificate. ``proxies`` may say for whom they ask. ``deadlines`` are those of every connection.
    """

    def __init__(
        self,
        open_connections: Connections,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        needs_certificate: bool = False,
        proxies: TrustedProxies,
        deadlines: Deadlines,
    ) -> None:
        super().__init__()
        self.open_connections = open_connections
        self.tls = tls
        self.needs_certificate = needs_certificate
        self.proxies = proxies
        self.deadlines = deadlines
        self.is_draining = False


@dataclass(slots=True)
class _Pace:
    """How fast a peer sends or reads: ``moved`` bytes until ``since``, when it was last fast enough."""

    kind: str
    since: float
    moved: int

    def is_late(self, now: float, moved: int, seconds: float) -> bool:
        if moved - self.moved >= BYTES_PER_SECOND * (now - self.since):
            self.since, self.moved = now, moved
        return now - self.since > seconds


@dataclass(slots=True)
class _Counts:
    """Bytes of the message that is being received: all but its body, and its body."""

    framing: int = 0
    body: int = 0
    is_head: bool = True
    total_body: int = field(default=0)
    """Bytes of all bodies of the connection."""


class Protocol(HttpToolsProtocol):
    """A connection that cannot be held open by a peer that sends or reads nothing, nor fill the memory."""

    server_state: ListenerState

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open = self.server_state.open_connections
        self._connecting: asyncio.Task[None] | None = None
        self._since = self.loop.time()
        self._pace: _Pace | None = None
        self._counts = _Counts()
        self._only_health: BlindoptError | None = None
        self._refusal: BlindoptError | None = None
        self._is_refused = False
        self._postponed: BlindoptError | None = None
        self._answered: RequestResponseCycle | None = None
        self.address = ""

    # --- the connection ---------------------------------------------------------------------------

    async def connect(self, accepted: socket.socket, peer: object) -> None:
        """Take an accepted connection: count it; then TLS, if the service has it, within its deadline."""
        self._connecting = asyncio.current_task()
        host = peer[0] if isinstance(peer, tuple) else ""
        self.address = counted_address(host) if host else "local"
        if not self._open.enter(self, serves_many=self.server_state.proxies.has(host)):
            self._only_health = Busy("too many connections are open", seconds=5)
        options: dict[str, Any] = {}
        if self.server_state.tls is not None:
            deadlines = self.server_state.deadlines
            options = {"ssl_handshake_timeout": deadlines.head, "ssl_shutdown_timeout": deadlines.linger}
            options["ssl"] = self.server_state.tls()
        try:
            await self.loop.connect_accepted_socket(lambda: self, accepted, **options)
        except (OSError, asyncio.CancelledError) as error:  # TLS's own errors are OSErrors
            accepted.close()
            reason = getattr(error, "verify_message", None) or getattr(error, "reason", None) or "handshake"
            self._open.turned_away[f"tls: {reason.lower().replace('_', ' ')}"] += 1
            self._open.leave(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._since = self.loop.time()
        if self.server_state.needs_certificate and not transport.get_extra_info("peercert"):
            self._only_health = ClientCertificateNeeded("this service needs a client certificate, and got none")
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.leave(self)
        self.pipeline.clear()
        if self._answered is not None:  # uvicorn marks the last request alone, of several that wait
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    @property
    def standing(self) -> Standing:
        if self._answered is None or not self._answered.scope["state"].get("authenticated"):
            return Standing.NOBODY
        return Standing.KEPT if self._is_idle() else Standing.BUSY

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        elif self._connecting is not None:
            self._connecting.cancel()

    def check(self) -> None:
        """Refuse or cut a connection whose peer is late. Called once a second."""
        now, transport, cycle = self.loop.time(), self.transport, self.cycle
        if transport is None:  # the handshake has a deadline of its own
            return
        if transport.is_closing() or self.flow.write_paused:
            if self._is_late("reply", now, -transport.get_write_buffer_size()):
                self._open.turned_away["reply not read"] += 1
                transport.abort()
        elif cycle is None or cycle.response_complete:
            self._pace = None
            if now - self._since > (seconds := self.server_state.deadlines.head):
                self._open.turned_away["head not whole"] += 1
                if self._counts.is_head and self._counts.framing:
                    self.refuse(RequestTimeout(f"the head was not complete within {seconds:.0f} s"))
                else:  # an unexpected reply might be taken for that of the next request
                    transport.close()
        elif cycle.more_body and not self.flow.read_paused:
            if self._is_late("body", now, self._counts.total_body):
                self._open.turned_away["body not whole"] += 1
                self.refuse(RequestTimeout("the request's body came too slowly, or not at all"))
        else:
            self._pace = None

    def _is_late(self, kind: str, now: float, moved: int) -> bool:
        if self._pace is None or self._pace.kind != kind:
            self._pace = _Pace(kind, now, moved)
        return self._pace.is_late(now, moved, self.server_state.deadlines.head)

    def shutdown(self) -> None:
        """End the connection after the request that is under way, or one that comes within ``DRAIN_SECONDS``."""
        if self._is_idle():
            self.loop.call_later(DRAIN_SECONDS, self._close_if_idle)
        else:
            self.cycle.keep_alive = False

    def _close_if_idle(self) -> None:
        if self._is_idle():
            self.transport.close()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    # --- what arrives -----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived. What is no HTTP, or too much beside a body, is refused with a problem document."""
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        received = self._counts.total_body
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # answered as any other request; what follows it is not read
            self._is_refused = True
            self.cycle.keep_alive = False
        except httptools.HttpParserError:
            refusal = self._refusal or BadRequest("this is no HTTP/1.1 request")
            self._open.turned_away[refusal.code] += 1
            self.refuse(refusal)
        else:
            counts = self._counts
            counts.framing += len(data) - (counts.total_body - received)
            if counts.framing > HEAD_MAX_BYTES + counts.body:
                self.refuse(_too_long())

    def on_message_begin(self) -> None:
        self._counts = _Counts(total_body=self._counts.total_body)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Check the head, and pass the request on."""
        version = self.parser.get_http_version()
        size, hosts = len(self.url), 0
        for name, value in self.headers:
            size += len(name) + len(value)
            hosts += name == b"host"
        if version not in ("1.0", "1.1") or hosts > 1 or (version == "1.1" and not hosts):
            self._stop(BadRequest("a request of HTTP/1.1 has one Host header"))
        if size > HEAD_MAX_BYTES or len(self.headers) > HEAD_MAX_LINES:
            self._stop(_too_long())
        if self._only_health is not None and self.url.partition(b"?")[0] not in HEALTH:
            self._stop(self._only_health)
        if len(self.pipeline) >= PIPELINE_MAX:
            self._stop(BadRequest(f"more than {PIPELINE_MAX} requests wait for their replies"))
        if self.client is not None:
            self.scope["client"] = (self.server_state.proxies.client_of(self.client[0], self.headers), self.client[1])
        super().on_headers_complete()
        self.headers = []  # those of the request stay as they are: what comes now are trailers, which are ignored
        self._counts.is_head = False
        if self._only_health is not None or self.server_state.is_draining:
            self.cycle.keep_alive = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._counts.body += len(body)
        self._counts.total_body += len(body)
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Wait for the next request, if there is none yet."""
        super().on_response_complete()
        if self._is_idle():
            self._since = self.loop.time()
            self._open.rest(self)
            if self._postponed is not None and not self.transport.is_closing():
                self._write(self._postponed)

    def _stop(self, refusal: BlindoptError) -> None:
        self._refusal = refusal
        raise refusal

    # --- refusals ---------------------------------------------------------------------------------

    def refuse(self, error: BlindoptError) -> None:
        """Reply with a problem document where that is possible, and close the connection."""
        self._is_refused = True
        cycle = self.cycle
        if self._is_idle() and not self._counts.is_head:  # the reply was sent before the whole body came
            self.transport.close()
            return
        if not self._is_idle():
            if self._counts.is_head or self.pipeline:  # the replies to earlier requests come first
                if not self._counts.is_head:
                    self.pipeline.popleft()
                    earlier = self.pipeline[0][0] if self.pipeline else self._answered
                    assert earlier is not None
                    self.cycle = earlier
                self._postponed = error
                return
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
        self._write(error)

    def _write(self, error: BlindoptError) -> None:
        head = self.scope["headers"] if self.scope else ()
        proposed = dict(head).get(b"x-request-id", b"").decode("latin-1")
        reply = problems.refusal(error, proposed)
        lines = [STATUS_LINE[reply.status_code], b"connection: close\r\n"]
        for name, value in [*self.server_state.default_headers, *reply.raw_headers]:
            lines += [name, b": ", value, b"\r\n"]
        self.transport.write(b"".join([*lines, b"\r\n", bytes(reply.body)]))
        self._since = self.loop.time()
        self.loop.call_later(self.server_state.deadlines.linger, self.transport.close)


def _too_long() -> BlindoptError:
    return HeadTooLarge(f"a head has at most {HEAD_MAX_LINES} lines and {HEAD_MAX_BYTES} bytes")
