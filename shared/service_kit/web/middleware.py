"""What every request passes: it gets a name, its bearer is known, its size and rate are bounded, its exchange is told.

One ASGI layer, not one for each concern: at 200 microseconds an exchange every layer would count.
"""

import hashlib
import logging
import re
import secrets
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blindopt.audit.merkle_log import RECEIPT_HEADER
from blindopt.errors import BlindoptError, BodyTooLarge, Invalid, StorageUnavailable, Unauthenticated
from service_kit.context.authentication import Expired
from service_kit.context.context import ServiceContext
from service_kit.context.idempotency import KEY
from service_kit.context.request import RequestContext
from service_kit.identity.tokens import Principal
from service_kit.web import in_process, problems
from service_kit.web.rate_limit import Buckets
from service_kit.web.reply_pacing import Pace

log = logging.getLogger("blindopt.access")
_REQUEST_ID = re.compile(r"[0-9a-f-]{8,64}")
_OPEN = ("/healthz", "/readyz", "/openapi.json", "/v1/meta")
_HEADERS = (
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)


class Front(Protocol):
    """Pages for people beside the API: they know who asks by a cookie, and answer in HTML."""

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """On each of its replies, in place of the API's."""

    def owns(self, path: str) -> bool:
        """Whether a path is a page's."""

    def admit(self, scope: Scope, cookies: str) -> Principal | None:
        """Who is logged in, if anyone; the pages themselves say who may see what."""

    def refusal(self, scope: Scope, error: BlindoptError) -> Response:
        """A page that tells an error."""


class Gate:
    """The outermost layer of a service."""

    def __init__(
        self,
        app: ASGIApp,
        context: ServiceContext,
        asking: Buckets,
        failing: Buckets,
        limit_of: Callable[[str, Principal | None], int],
        period_of: Callable[[str, str, Principal], float | None] = lambda method, path, principal: None,
        count: Callable[[str, str, int, float], None] | None = None,
        front: Front | None = None,
    ) -> None:
        self.app = app
        self.context = context
        self.asking = asking
        self.failing = failing
        self.limit_of = limit_of
        self.period_of = period_of
        self.count = count
        """Is told method, route template, status (0: none) and seconds of each request that is over."""
        self.front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _Passage(self, scope, receive, send).go()
        else:
            await self.app(scope, receive, send)


class _Passage:
    """One request on its way in, and its reply on its way out.

    Every reply to a modeler is recorded in the log before it leaves; 503 if that is not possible. One that
    was recorded with its effect (``state.recorded``) passes; one with a digest as its ETag streams; any
    other is held back until it is whole, for its digest. A look at what is still pending (GET, 202) tells nothing, and
    is not recorded.
    """

    def __init__(self, gate: Gate, scope: Scope, receive: Receive, send: Send) -> None:
        self._gate, self._scope, self._receive, self._send = gate, scope, receive, send
        self._headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # of repeated ones, the first
        asked = self._header(b"x-request-id")
        self._request_id = asked if _REQUEST_ID.fullmatch(asked) else secrets.token_hex(16)
        self._state: dict[str, Any] = scope.setdefault("state", {})
        self._state["request_id"] = self._request_id
        self._state["body_sha256"] = self.digest
        self._principal: Principal | None = None
        self._front = gate.front if gate.front is not None and gate.front.owns(scope["path"]) else None
        self._pace: Pace | None = None
        self._limit = 0
        self._got = 0
        self._whole = False
        self._sha = hashlib.sha256()
        self._too_large: BodyTooLarge | None = None
        self._unrecorded: Exception | None = None
        self._held: list[Message] | None = None
        self._tells = False  # whether what goes out must be in the log first
        self._started = False
        self._status = 0

    def _header(self, name: bytes) -> str:
        return self._headers.get(name, b"").decode("latin-1")

    async def go(self) -> None:
        """Pass, or refuse; one line in the access log, without path, query string or any value."""
        started = time.perf_counter()
        try:
            await self._pass()
        finally:
            if self._pace is not None:
                self._pace.stop()
            route = getattr(self._scope.get("route"), "path", None) or self._state.get("route", "unmatched")
            fields = {"request_id": self._request_id, "method": self._scope["method"], "route": route}
            took_s = time.perf_counter() - started
            log.info("request", extra={"fields": {**fields, "status": self._status, "ms": round(took_s * 1000, 2)}})
            if self._gate.count is not None:
                self._gate.count(self._scope["method"], route, self._status, took_s)

    async def _pass(self) -> None:
        try:
            self._identify()
            await self._gate.app(self._scope, self.receive, self.send)
            if self._too_large is not None:
                raise self._too_large
        except Exception as error:
            # What ``send`` raised comes back as an error of the framework's own.
            await self._failed(self._unrecorded or error)

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, BlindoptError):
            await self._refuse(error)
        elif (told := StorageUnavailable.of(error)) is not None and not self._started:
            await self._refuse(told)
        else:
            await self._fault(error)

    # --- the way in -------------------------------------------------------------------------------

    def _identify(self) -> None:
        """Set ``state.principal`` before anything reads the body. Raises for whom and what is not let in.

        A principal that asks too often gets 429, and so do bad tokens of an address that keeps sending them:
        the log does not tell of these. The bearer of an expired or revoked token is known: the log does.
        """
        path, gate = self._scope["path"], self._gate
        expired: Expired | None = None
        if self._front is not None:  # a page asks the API in process, where the rate is bounded
            self._principal = self._front.admit(self._scope, self._header(b"cookie"))
        elif path not in _OPEN:
            try:
                principal = in_process.principal_of(self._scope) or gate.context.authentication.authenticate(
                    self._header(b"authorization")
                )
            except Expired as error:
                principal, expired = error.principal, error
            except Unauthenticated:
                # Bad tokens alone: whoever shares an address with a guesser must not be shut out by it.
                gate.failing.take((self._scope.get("client") or ("",))[0])
                raise
            if expired is None and (period_s := gate.period_of(self._scope["method"], path, principal)) is not None:
                self._pace = self._state["pace"] = Pace(period_s)
            gate.asking.take(principal.id)
            self._principal = self._state["principal"] = principal
            self._tells = principal.study_id is not None
        self._limit = gate.limit_of(path, self._principal)
        announced = self._header(b"content-length") or "0"
        if not announced.isdecimal() or int(announced) > self._limit:
            raise self._over()
        if expired is not None:
            raise expired

    def _over(self) -> BodyTooLarge:
        self._too_large = BodyTooLarge(f"this path takes at most {self._limit} bytes")
        return self._too_large

    async def receive(self) -> Message:
        """What the application reads; BodyTooLarge before too much is held in memory."""
        message = await self._take()
        if self._got > self._limit:
            raise self._over()
        return message

    async def _take(self) -> Message:
        message = await self._receive()
        self._whole = not message.get("more_body")
        if message["type"] == "http.request":
            body = message.get("body", b"")
            self._got += len(body)
            self._sha.update(body)
        return message

    async def digest(self, *, strict: bool = False) -> str:
        """Read what is left of the body; the digest of all. ``strict`` raises for one too large or cut."""
        while not (self._whole or self._too_large) and self._got <= self._limit:  # a reply may come before
            gone = (await self._take())["type"] == "http.disconnect"
            if gone and strict:
                raise Invalid("the request ended before its body did: nothing happened")
        if self._got > self._limit and strict:
            raise self._over()
        return self._sha.hexdigest()

    # --- the way out ------------------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """What the application answers; not the framework's own word for a body that was too large."""
        if self._too_large is None:
            await self._out(message)

    async def _out(self, message: Message) -> None:
        if self._held is None and message["type"] == "http.response.start":
            if not self._tells or self._state.get("recorded") or self._is_pending(message):
                await self._start(message)
            elif etag := _etag(message):
                await self._record(message, etag)
                await self._start(message)
            else:
                self._held = [message]
        elif self._held is not None:
            self._held.append(message)
            if not message.get("more_body"):
                held, self._held = self._held, None
                await self._record(held[0], hashlib.sha256(b"".join(m["body"] for m in held[1:])).hexdigest())
                await self._start(held[0])
                for part in held[1:]:
                    await self._send(part)
        else:
            await self._send(message)

    def _is_pending(self, start: Message) -> bool:
        return (self._scope["method"], start["status"]) == ("GET", 202)

    async def _start(self, message: Message) -> None:
        headers = message["headers"] = list(message["headers"])
        headers.append((b"x-request-id", self._request_id.encode()))
        if not any(name == b"cache-control" for name, _ in headers):
            headers.append((b"cache-control", b"no-store"))
        headers.extend(_HEADERS if self._front is None else self._front.headers)
        if self._scope["scheme"] == "https":
            headers.append((b"strict-transport-security", b"max-age=31536000"))
        if self._pace is not None:
            await self._pace.whole()  # whatever was answered or refused
        self._started = True
        self._status = message["status"]
        await self._send(message)

    async def _record(self, start: Message, reply_sha256: str) -> None:
        """Tell the exchange, and add its receipt to the reply. Raises what a write raises."""
        assert self._principal is not None
        self._tells = False  # should it fail, the refusal goes out untold
        key = self._header(b"idempotency-key")
        asked = RequestContext(
            principal=self._principal,
            request_id=self._request_id,
            method=self._scope["method"],
            path=self._scope["path"],
            key=key if KEY.fullmatch(key) else None,
            body_sha256=await self.digest(),
        )
        replayed = (b"idempotency-replayed", b"true") in start["headers"]
        context, status = self._gate.context, start["status"]
        try:
            receipt = await context.database.write_soon(
                lambda db: context.audit_trail.record(db, asked, status, reply_sha256, replayed=replayed)
            )
        except Exception as error:
            self._unrecorded = error
            raise
        if receipt is not None:
            start["headers"] = [*start["headers"], (RECEIPT_HEADER.lower().encode(), receipt.encode())]

    async def _refuse(self, error: BlindoptError) -> None:
        if self._started:
            raise ConnectionAbortedError("the reply was cut after its start") from None
        self._held = None
        if self._front is not None:
            reply = self._front.refusal(self._scope, error)
        else:
            reply = problems.response(error, path=self._scope["path"], request_id=self._request_id)
        try:
            await self._out({"type": "http.response.start", "status": reply.status_code, "headers": reply.raw_headers})
            await self._out({"type": "http.response.body", "body": bytes(reply.body), "more_body": False})
        except BlindoptError as failure:  # the refusal could not be recorded: that is the news
            await self._refuse(failure)
        except Exception as failure:
            await self._fault(failure)

    async def _fault(self, error: Exception) -> None:
        """A fault of ours: a 500 that shows nothing of it. Logged by type and place, as its text may quote a record."""
        frames = [f"{Path(f.filename).name}:{f.name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
        found = {"kind": type(error).__name__, "at": frames[-1].partition(":")[2], "through": frames[-8:-1]}
        log.error("fault", extra={"fields": {"request_id": self._request_id, **found}})
        if self._started:
            raise ConnectionAbortedError("the reply was cut after its start") from None
        await self._refuse(BlindoptError("a fault on our side; the log has it under this request_id"))


def _etag(start: Message) -> str | None:
    """The digest in a reply's ETag, where it is one."""
    for name, value in start["headers"]:
        if name == b"etag" and value.startswith(b'"sha256-'):
            return str(value.decode("latin-1").strip('"').removeprefix("sha256-"))
    return None
