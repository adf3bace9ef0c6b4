"""What every request passes, outermost first: its name and headers, its bearer and rate, its size."""

import errno
import hashlib
import logging
import re
import secrets
import time
import traceback
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.audit import RECEIPT_HEADER
from shared.errors import BlindoptError, BodyTooLarge, Invalid, StorageUnavailable, Unauthenticated
from shared.serving import problems
from shared.serving.desk import KEY, Asked, Desk, Expired
from shared.serving.rates import Buckets
from shared.serving.tokens import Principal

log = logging.getLogger("blindopt.access")
_REQUEST_ID = re.compile(r"[0-9a-f-]{8,64}")
_OPEN = ("/healthz", "/readyz", "/openapi.json", "/v1/meta")
_HEADERS = {
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


class RequestContext:
    """Names the request, adds the security headers, logs one line.

    The line holds the route's template, never the path, the query string or a value.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = Headers(scope=scope).get("x-request-id", "")
        request_id = asked if _REQUEST_ID.fullmatch(asked) else secrets.token_hex(16)
        scope.setdefault("state", {}).update(request_id=request_id, body_sha256=_unread)
        started, status = time.perf_counter(), 0

        async def dressed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                headers.setdefault("Cache-Control", "no-store")
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, dressed)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            took = round((time.perf_counter() - started) * 1000, 2)
            log.info(
                "request",
                extra={
                    "request_id": request_id,
                    "method": scope["method"],
                    "route": route,
                    "status": status,
                    "ms": took,
                },
            )


class Faults:
    """Turns a fault of ours into a 500 that shows nothing of it.

    It is logged by type and place, because its text may quote a record.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except OSError as error:
            if started or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                await self._fault(error, started, scope, receive, send)
            else:
                await _refuse(StorageUnavailable("a file cannot be written: the disk is full"), scope, receive, send)
        except Exception as error:
            await self._fault(error, started, scope, receive, send)

    async def _fault(self, error: Exception, started: bool, scope: Scope, receive: Receive, send: Send) -> None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        found = {"kind": type(error).__name__, "at": f"{frame.name}:{frame.lineno}"}
        log.error("fault", extra={"request_id": scope.get("state", {}).get("request_id"), **found})
        if started or scope["type"] != "http":
            raise ConnectionAbortedError("the reply was cut after its start") from None
        told = BlindoptError("a fault on our side; the log has it under this request_id")
        await _refuse(told, scope, receive, send)


async def _refuse(error: BlindoptError, scope: Scope, receive: Receive, send: Send) -> None:
    request_id = scope["state"]["request_id"]
    await problems.response(error, path=scope["path"], request_id=request_id)(scope, receive, send)


class Identify:
    """Sets ``state.principal`` before anything reads the body; 401 for every path but the open ones.

    The bearer of an expired or revoked token is known: ``Admit`` refuses it, inside the log's reach. 429
    for a principal that asks too often, and for an address that keeps sending bad tokens: such requests
    are not looked at, so the log does not tell of them.
    """

    def __init__(self, app: ASGIApp, desk: Desk, asking: Buckets, failing: Buckets) -> None:
        self._app = app
        self._desk = desk
        self._asking = asking
        self._failing = failing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            try:
                self._identify(scope)
            except BlindoptError as error:
                await _refuse(error, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _identify(self, scope: Scope) -> None:
        address = (scope.get("client") or ("",))[0]
        self._failing.check(address)
        try:
            principal = self._desk.authenticate(Headers(scope=scope).get("authorization", ""))
        except Expired as error:
            principal, scope["state"]["expired"] = error.principal, error
        except Unauthenticated:
            self._failing.take(address)
            raise
        self._asking.take(principal.id)
        scope["state"]["principal"] = principal


class Admit:
    """Refuses a principal whose token has expired or was revoked."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = scope.get("state", {}).get("expired")
        if error is None:
            await self._app(scope, receive, send)
        else:
            await _refuse(error, scope, receive, send)


async def _unread(*, strict: bool = False) -> str:
    return hashlib.sha256().hexdigest()


class BodyLimit:
    """413 for a body over the limit of its path, announced or not, before it is held in memory.

    Leaves in ``state.body_sha256`` a coroutine function that reads what is left and tells the digest;
    ``strict`` raises for a body that is too large or was cut.
    """

    def __init__(self, app: ASGIApp, limit_of: Callable[[str, Principal | None], int]) -> None:
        self._app = app
        self._limit_of = limit_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit_of(scope["path"], scope["state"].get("principal"))
        error = BodyTooLarge(f"this path takes at most {limit} bytes")
        announced = Headers(scope=scope).get("content-length", "0")
        if not announced.isdecimal() or int(announced) > limit:
            await _refuse(error, scope, receive, send)
            return
        got, over, whole, sha = 0, False, False, hashlib.sha256()

        async def take() -> Message:
            nonlocal got, whole
            message = await receive()
            whole = not message.get("more_body")
            if message["type"] == "http.request":
                body = message.get("body", b"")
                got += len(body)
                sha.update(body)
            return message

        async def counted() -> Message:
            nonlocal over
            message = await take()
            if got > limit:
                over = True
                raise error
            return message

        async def digest(*, strict: bool = False) -> str:
            nonlocal over
            while not (whole or over) and got <= limit:  # a reply may come before the body was read
                gone = (await take())["type"] == "http.disconnect"
                if gone and strict:
                    raise Invalid("the request ended before its body did: nothing happened")
            if got > limit and strict:
                over = True
                raise error
            return sha.hexdigest()

        scope["state"]["body_sha256"] = digest

        async def answered(message: Message) -> None:
            if not over:  # else the framework's own word for our exception: ours follows below
                await send(message)

        try:
            await self._app(scope, counted, answered)
        except BlindoptError:
            if not over:
                raise
        if over:
            await _refuse(error, scope, receive, send)


class RecordExchanges:
    """Records every reply to a modeler in the log before it leaves; 503 if that is not possible.

    A reply that was recorded with its effect (``state.recorded``) passes. A reply with a digest as its
    ETag streams; any other is held back until it is whole, for its digest.
    """

    def __init__(self, app: ASGIApp, desk: Desk) -> None:
        self._app = app
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = scope.get("state", {}).get("principal")
        if scope["type"] != "http" or principal is None or principal.study_id is None:
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _Recorder(self._desk, scope, receive, send))


class _Recorder:
    def __init__(self, desk: Desk, scope: Scope, receive: Receive, send: Send) -> None:
        self._desk, self._scope, self._receive, self._send = desk, scope, receive, send
        self._held: list[Message] = []
        self._passing = False
        self._refused = False

    async def __call__(self, message: Message) -> None:
        if self._refused:
            return
        if message["type"] == "http.response.start":
            etag = Headers(raw=message["headers"]).get("etag", "")
            if self._scope["state"].get("recorded"):
                self._passing = True
            elif etag.startswith('"sha256-'):
                self._passing = await self._record(message, etag.strip('"').removeprefix("sha256-"))
                if not self._passing:
                    return
        if self._passing:
            await self._send(message)
            return
        self._held.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            body = b"".join(m.get("body", b"") for m in self._held)
            if await self._record(self._held[0], hashlib.sha256(body).hexdigest()):
                for held in self._held:
                    await self._send(held)

    async def _record(self, start: Message, reply_sha256: str) -> bool:
        state = self._scope["state"]
        headers = Headers(scope=self._scope)
        asked = Asked(
            principal=state["principal"],
            request_id=state["request_id"],
            method=self._scope["method"],
            path=self._scope["path"],
            key=headers.get("idempotency-key") if KEY.fullmatch(headers.get("idempotency-key", "")) else None,
            body_sha256=await state["body_sha256"](),
        )
        replayed = Headers(raw=start["headers"]).get("idempotency-replayed") == "true"
        desk, status = self._desk, start["status"]
        try:
            receipt = await desk.database.write_soon(
                lambda db: desk.record(db, asked, status, reply_sha256, replayed=replayed)
            )
        except BlindoptError as error:
            self._refused = True
            await _refuse(error, self._scope, self._receive, self._send)
            return False
        if receipt is not None:
            MutableHeaders(scope=start)[RECEIPT_HEADER] = receipt
        return True
