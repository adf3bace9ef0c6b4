"""Assigns a request id, authenticates, enforces size and rate limits, and logs the exchange.

This is one ASGI layer and not one for each concern: an exchange takes 200 microseconds, so every layer would count.
"""

import hashlib
import logging
import math
import re
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blindopt.audit.merkle_log import RECEIPT_HEADER
from blindopt.errors import (
    BlindoptError,
    BodyTooLarge,
    Invalid,
    MethodNotAllowed,
    NotFound,
    RateLimited,
    StorageUnavailable,
    Unauthenticated,
)
from service_kit.context.authentication import Expired
from service_kit.context.context import ServiceContext
from service_kit.context.idempotency import KEY
from service_kit.context.log_quotas import counted_as
from service_kit.context.request import RequestContext
from service_kit.identity.tokens import Principal
from service_kit.web import problems
from service_kit.web.peers import PeerErrors, PeerGone
from service_kit.web.reply_pacing import ReplyPacing

log = logging.getLogger("blindopt.access")
_DISCARDED_BYTES = 4 << 20
_NAMES_MAX = 10_000
_INSIDE = "blindopt.inside"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_OPEN = ("/healthz", "/readyz", "/openapi.json", "/docs", "/v1/meta")
_HEADERS = (
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)


class RateLimit:
    """A token bucket for each name, in memory: ``burst`` requests at once, and ``per_second`` in the long run.

    It bounds load; the privacy budget bounds disclosure.
    """

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        """By name: the tokens in the bucket, and when they were counted."""

    def _count(self, name: str) -> tuple[float, float]:
        """The tokens that ``name`` has now, and the time."""
        now = self._clock()
        tokens, counted_at = self._buckets.get(name, (float(self._burst), now))
        return min(float(self._burst), tokens + (now - counted_at) * self._per_second), now

    def check(self, name: str) -> None:
        """Raise RateLimited if ``name`` has no token."""
        self._counted(name)

    def _counted(self, name: str) -> tuple[float, float]:
        tokens, now = self._count(name)
        if tokens < 1:
            raise RateLimited(math.ceil((1 - tokens) / self._per_second))
        return tokens, now

    def take(self, name: str) -> None:
        """Take a token of ``name``. Raises RateLimited if it has none."""
        tokens, now = self._counted(name)
        if name not in self._buckets and len(self._buckets) >= _NAMES_MAX:
            # A full bucket holds no information. If none is full, the oldest is dropped.
            self._buckets = {n: bucket for n, bucket in self._buckets.items() if self._count(n)[0] < self._burst}
            while len(self._buckets) >= _NAMES_MAX:
                del self._buckets[next(iter(self._buckets))]
        self._buckets[name] = (tokens - 1, now)


class ConsoleHook(Protocol):
    """Pages beside the API, for users that a session cookie authenticates. They reply in HTML."""

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Headers of each of its replies, in place of those of the API."""

    @property
    def paths(self) -> re.Pattern[str]:
        """The paths of the pages."""

    async def admit(self, scope: Scope, cookies: str) -> Principal | None:
        """The user who is logged in, or None. Each page itself checks the role."""

    def refusal(self, scope: Scope, error: BlindoptError) -> Response:
        """A page that shows an error."""


PeriodOf = Callable[[str, str, Principal], Awaitable[float | None]]
"""For method, path and principal: the seconds that replies are sent at whole multiples of, or None."""


async def at_once(method: str, path: str, principal: Principal) -> None:
    return None


class RequestMiddleware:
    """The outermost layer of a service."""

    def __init__(
        self,
        app: ASGIApp,
        context: ServiceContext,
        principal_rate: RateLimit,
        bad_token_rate: RateLimit,
        limit_of: Callable[[str, Principal | None], int],
        period_of: PeriodOf = at_once,
        count: Callable[[str, str, int, float], None] | None = None,
        console: ConsoleHook | None = None,
        peers: PeerErrors | None = None,
    ) -> None:
        self.app = app
        self.context = context
        self.principal_rate = principal_rate
        self.bad_token_rate = bad_token_rate
        self.limit_of = limit_of
        self.period_of = period_of
        self.count = count
        """Called after each request with its method, route template, status (0: none) and seconds."""
        self.console = console
        self.peers = peers or PeerErrors()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _Request(self, scope, receive, send).handle()
        else:
            await self.app(scope, receive, send)


@dataclass(frozen=True, slots=True)
class _Inside:
    """A type of its own, so that text under the same key is no mark."""

    principal: Principal


def mark_inside(scope: Scope, principal: Principal) -> None:
    """Mark the scope of a request that the service sends to its own API, whose principal needs no token.

    The server builds the scope, and puts what it reads from a network under ``headers``, ``path`` and the like, as
    text: nothing sent gets here. Roles, limits of rate and size, idempotency and the log apply as to any other request.
    """
    scope[_INSIDE] = _Inside(principal)


class HotRoutes:
    """Serves the busiest routes without the framework's layers, a twelfth of an exchange; passes on all others."""

    def __init__(self, routes: Sequence[Route], around: Callable[[ASGIApp], ASGIApp]) -> None:
        self._routes, self._serve = routes, around(_answer)

    def serve(self, app: object, scope: Scope, receive: Receive, send: Send) -> Awaitable[None] | None:
        """Serve a request of ``app`` to one of the routes; None for any other."""
        if scope["type"] == "http" and not scope.get("root_path"):
            for route in self._routes:
                match = route.path_regex.match(scope["path"])
                if match is not None and scope["method"] in (route.methods or ()):
                    scope.update(app=app, endpoint=route.endpoint, path_params=match.groupdict())
                    return self._serve(scope, receive, send)
        return None


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    response = await scope["endpoint"](Request(scope, receive, send))
    await response(scope, receive, send)


class _Request:
    """One request and its reply.

    Every reply to a modeler is recorded in the log before it is sent; if that fails, the reply is a 503. A reply that
    was recorded with its effect (``state.recorded``) is sent at once, and one with a digest as its ETag is streamed.
    Any other is buffered until it is complete, because the log holds its digest. The reply to a poll of a pending
    query (GET, 202) holds no result and is not recorded.
    """

    def __init__(self, middleware: RequestMiddleware, scope: Scope, receive: Receive, send: Send) -> None:
        self._middleware, self._receive, self._send = middleware, receive, send
        scope.setdefault("state", {})
        self._is_head = scope["method"] == "HEAD"  # the server sends no body of its reply
        self._scope: Scope = {**scope, "method": "GET"} if self._is_head else scope
        self._headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # the first of repeated ones
        proposed = self._header(b"x-request-id")
        self._request_id = proposed if problems.REQUEST_ID.fullmatch(proposed) else secrets.token_hex(16)
        self._state: dict[str, Any] = scope["state"]
        self._client = (scope.get("client") or ("",))[0]
        self._state["request_id"] = self._request_id
        self._state["body_sha256"] = self.digest
        self._principal: Principal | None = None
        console = middleware.console
        self._console = console if console is not None and console.paths.fullmatch(scope["path"]) else None
        self._pacing: ReplyPacing | None = None
        self._limit = 0
        self._received = 0
        self._is_complete = False
        self._sha = hashlib.sha256()
        self._too_large: BodyTooLarge | None = None
        self._record_error: Exception | None = None
        self._buffered: list[Message] | None = None
        self._must_record = False  # whether the reply must be in the log before it is sent
        self._has_started = False
        self._status = 0

    def _header(self, name: bytes) -> str:
        return self._headers.get(name, b"").decode("latin-1")

    async def handle(self) -> None:
        """Handle or refuse the request; write one line to the access log, without path, query string or any value."""
        started = time.perf_counter()
        try:
            await self._handle()
        finally:
            if self._pacing is not None:
                self._pacing.stop()
            route = getattr(self._scope.get("route"), "path", "unmatched")
            took_s = time.perf_counter() - started
            fields = {
                "request_id": self._request_id,
                "client": self._client,
                "method": self._scope["method"],
                "route": route,
                "status": self._status,
                "ms": round(took_s * 1000, 2),
            }
            log.info("request", extra={"fields": fields})
            if self._middleware.count is not None:
                self._middleware.count(self._scope["method"], route, self._status, took_s)

    async def _handle(self) -> None:
        try:
            await self._authenticate()
            await self._middleware.app(self._scope, self.receive, self.send)
            if self._too_large is not None:
                raise self._too_large
        except Exception as error:
            # The framework wraps what ``send`` raised in an error of its own.
            await self._fail(self._record_error or error)

    async def _fail(self, error: Exception) -> None:
        if isinstance(error, ClientDisconnect | PeerGone):
            self._middleware.peers.note("disconnected", self._client, request_id=self._request_id)
        elif isinstance(error, BlindoptError):
            await self._refuse(error)
        elif (unavailable := StorageUnavailable.of(error)) is not None and not self._has_started:
            await self._refuse(unavailable)
        else:
            await self._fault(error)

    # --- the request ------------------------------------------------------------------------------

    async def _authenticate(self) -> None:
        """Set ``state.principal`` before anything reads the body. Raises for a request that is not let in.

        A principal that sends too many requests gets 429, and so does an address that keeps sending bad tokens;
        neither is logged. A refused token that has expired or was revoked still names its principal, and is logged.
        """
        path, middleware = self._scope["path"], self._middleware
        expired: Expired | None = None
        if self._console is not None:  # its requests to the API, in process, are rate limited
            self._principal = await self._console.admit(self._scope, self._header(b"cookie"))
        elif path not in _OPEN:
            try:
                if isinstance(inside := self._scope.get(_INSIDE), _Inside):
                    principal = inside.principal
                else:
                    authentication = middleware.context.authentication
                    principal = await authentication.authenticate(self._header(b"authorization"))
            except Expired as error:
                principal, expired = error.principal, error
            except Unauthenticated:
                # Good tokens from the same address as a guesser are not refused.
                middleware.bad_token_rate.take(self._client)
                raise
            period_s = None if expired else await middleware.period_of(self._scope["method"], path, principal)
            if period_s is not None:
                self._pacing = self._state["pacing"] = ReplyPacing(period_s)
            name = counted_as(principal.id, is_live=expired is None)
            middleware.principal_rate.take(name)
            if principal.study_id is not None:
                middleware.context.audit_trail.quotas.check(name)
            writes = middleware.context.database.foreign_writes
            if not writes.are_verified and (principal.study_id is not None or self._scope["method"] != "GET"):
                await writes.settle()
            if principal.study_id is None:  # its own people read on
                middleware.context.audit_trail.check_named(principal.id)
            else:
                writes.check_verified()
                middleware.context.audit_trail.check_unchanged(principal.id, principal.study_id)
            self._principal = self._state["principal"] = principal
            self._must_record = principal.study_id is not None
            if self._is_head and self._must_record:  # the log holds the digest of what was sent
                raise MethodNotAllowed("this path does not take this method")
        self._state["authenticated"] = self._principal is not None  # for the listener
        self._limit = middleware.limit_of(path, self._principal)
        announced = self._header(b"content-length") or "0"
        if not announced.isdecimal() or int(announced) > self._limit:
            raise self._body_too_large()
        if expired is not None:
            raise expired
        # A line end after a path fits the framework's patterns, but not what chooses a path's deadline.
        if _CONTROL.search(path):
            raise NotFound("there is no such path")

    def _body_too_large(self) -> BodyTooLarge:
        self._too_large = BodyTooLarge(f"this path takes at most {self._limit} bytes")
        return self._too_large

    async def receive(self) -> Message:
        """The next message for the application. Raises BodyTooLarge before too much is held in memory."""
        message = await self._read()
        if self._received > self._limit:
            raise self._body_too_large()
        return message

    async def _read(self) -> Message:
        message = await self._receive()
        self._is_complete = not message.get("more_body")
        if message["type"] == "http.request":
            body = message.get("body", b"")
            self._received += len(body)
            self._sha.update(body)
        return message

    async def digest(self, *, strict: bool = False) -> str:
        """Read the rest of the body, and return its digest. ``strict`` raises if it is too large or incomplete."""
        # The application may reply before it has read all of it.
        while not (self._is_complete or self._too_large or self._received > self._limit):
            disconnected = (await self._read())["type"] == "http.disconnect"
            if disconnected and strict:
                raise Invalid("the request ended before its body did: nothing happened")
        if self._received > self._limit and strict:
            raise self._body_too_large()
        return self._sha.hexdigest()

    # --- the reply --------------------------------------------------------------------------------

    async def send(self, message: Message, *, is_refusal: bool = False) -> None:
        """Send what the application replies, except the framework's own reply to a body that was too large."""
        if self._too_large is not None and not is_refusal:
            return
        if self._buffered is None and message["type"] == "http.response.start":
            is_pending = (self._scope["method"], message["status"]) == ("GET", 202)
            if not self._must_record or self._state.get("recorded") or is_pending:
                await self._start(message)
            elif etag := _etag(message):
                await self._record(message, etag)
                await self._start(message)
            else:
                self._buffered = [message]
        elif self._buffered is not None:
            self._buffered.append(message)
            if not message.get("more_body"):
                (start, *body_messages), self._buffered = self._buffered, None
                await self._record(
                    start, hashlib.sha256(b"".join(body_message["body"] for body_message in body_messages)).hexdigest()
                )
                await self._start(start)
                for body_message in body_messages:
                    await self._send(body_message)
        else:
            await self._send(message)

    async def _start(self, message: Message) -> None:
        headers = message["headers"] = list(message["headers"])
        headers.append((b"x-request-id", self._request_id.encode()))
        if b"cache-control" not in dict(headers):
            headers.append((b"cache-control", b"no-store"))
        headers.extend(_HEADERS if self._console is None else self._console.headers)
        if self._scope["scheme"] == "https":
            headers.append((b"strict-transport-security", b"max-age=31536000"))
        if self._pacing is not None:
            await self._pacing.full_period()  # also for refusals
        self._has_started = True
        self._status = message["status"]
        await self._send(message)

    async def _record(self, start: Message, reply_sha256: str) -> None:
        """Log the exchange, and add its receipt to the reply. Raises what a write raises."""
        assert self._principal is not None
        self._must_record = False  # if it fails, the refusal is sent without a record
        key = self._header(b"idempotency-key")
        request = RequestContext(
            principal=self._principal,
            request_id=self._request_id,
            method=self._scope["method"],
            path=self._scope["path"],
            key=key if KEY.fullmatch(key) else None,
            body_sha256=await self.digest(),
        )
        replayed = (b"idempotency-replayed", b"true") in start["headers"]
        context, status = self._middleware.context, start["status"]
        try:
            recorded = await context.database.write_soon(
                lambda db: context.audit_trail.record(db, request, status, reply_sha256, replayed=replayed)
            )
        except Exception as error:
            self._record_error = error
            raise
        if recorded.receipt is not None:
            start["headers"] = [*start["headers"], (RECEIPT_HEADER.lower().encode(), recorded.receipt.encode())]

    async def _refuse(self, error: BlindoptError) -> None:
        if self._has_started:
            raise ConnectionAbortedError("the reply was cut after its start") from None
        self._buffered = None
        if self._console is not None:
            reply = self._console.refusal(self._scope, error)
        else:
            reply = problems.response(error, path=self._scope["path"], request_id=self._request_id)
        await self._discard()
        try:
            head = {"type": "http.response.start", "status": reply.status_code, "headers": reply.raw_headers}
            await self.send(head, is_refusal=True)
            body = {"type": "http.response.body", "body": bytes(reply.body), "more_body": False}
            await self.send(body, is_refusal=True)
        except BlindoptError as failure:  # the refusal could not be recorded
            await self._refuse(failure)
        except Exception as failure:
            await self._fault(failure)

    async def _discard(self) -> None:
        """Read a short body to its end: proxies lose a reply after which they cannot send the rest."""
        announced = self._header(b"content-length")
        if not announced.isdecimal() or int(announced) > _DISCARDED_BYTES or self._header(b"expect"):
            return
        while not self._is_complete:
            await self._read()

    async def _fault(self, error: Exception) -> None:
        """Reply 500, which shows nothing of the error. It is logged by type and line: its text may quote a record."""
        frames = [f"{Path(f.filename).name}:{f.name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
        where = {"kind": type(error).__name__, "at": frames[-1].partition(":")[2], "through": frames[-8:-1]}
        log.error("fault", extra={"fields": {"request_id": self._request_id, **where}})
        if self._has_started:
            raise ConnectionAbortedError("the reply was cut after its start") from None
        await self._refuse(BlindoptError("a fault on our side; the log has it under this request_id"))


def _etag(start: Message) -> str | None:
    for name, value in start["headers"]:
        if name == b"etag" and value.startswith(b'"sha256-'):
            return str(value.decode("latin-1").strip('"').removeprefix("sha256-"))
    return None
