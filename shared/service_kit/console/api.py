"""Requests to the service's own API, in process. Pages show only what it replies."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blindopt import wire
from blindopt.errors import NotFound
from service_kit.console.words import plain
from service_kit.identity.tokens import Principal
from service_kit.web.middleware import mark_inside

M = TypeVar("M", bound=BaseModel)
_JSON = "application/json"
_CHUNK = 1 << 16
_POLL_SECONDS = 2.0


class ApiProblem(Exception):
    """The API refused a request. ``problem`` is its problem document; ``str`` is the detail, in words for people."""

    def __init__(self, problem: wire.Problem, headers: Mapping[str, str]) -> None:
        super().__init__(problem.detail)
        self.problem, self.headers = problem, headers
        self.status, self.code = problem.status, problem.code

    @property
    def in_words(self) -> str:
        """What is wrong, as a page without the form's fields shows it."""
        faults = [plain(fault.message) for fault in self.problem.errors or []]
        return "; ".join(faults[:3]) or plain(self.problem.detail)


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of the API that is not an error."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def parse(self, model: type[M]) -> M:
        return model.model_validate_json(self.body)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of a form, to be sent to the API."""

    filename: str
    content: AsyncIterator[bytes]
    media_type: str = "application/octet-stream"

    @classmethod
    def of(cls, file: UploadFile) -> Self:
        async def parts() -> AsyncIterator[bytes]:
            await file.seek(0)
            while part := await file.read(_CHUNK):
                yield part

        return cls(file.filename or "file", parts())


class Api:
    """Sends requests to the service's own API as ``principal``. Each method except ``scope_of`` raises ApiProblem."""

    def __init__(self, app: ASGIApp, outer: Scope, principal: Principal, request_id: str) -> None:
        self._app = app
        self._outer = outer
        self._principal = principal
        self._request_id = request_id

    async def get(self, path: str, **query: object) -> Any:
        """The parsed JSON of a GET. Query values that are None are left out."""
        return (await self.send("GET", path, query=query)).json

    async def read(self, path: str, model: type[M], **query: object) -> M:
        return (await self.send("GET", path, query=query)).parse(model)

    async def post(self, path: str, body: object = None, *, key: str | None = None) -> Any:
        """The parsed JSON of a POST. ``body`` is a wire model or a JSON value; ``key`` is that of the form."""
        reply = await self.send("POST", path, body=_json(body), key=key, headers={"content-type": _JSON})
        return reply.json if reply.body else None

    async def ask(
        self, path: str, model: type[M], body: object = None, *, key: str | None = None, **query: object
    ) -> M:
        headers = {"content-type": _JSON}
        return (await self.send("POST", path, query=query, body=_json(body), key=key, headers=headers)).parse(model)

    async def put(self, path: str, body: object, *, key: str) -> Any:
        return (await self.send("PUT", path, body=_json(body), key=key, headers={"content-type": _JSON})).json

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: bytes | AsyncIterator[bytes] = b"",
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send any request, and return the whole reply, which is held in memory."""
        request_headers = dict(headers or {}) | ({"idempotency-key": key} if key else {})
        start: dict[str, Any] = {}
        chunks: list[bytes] = []

        async def collect(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                chunks.append(message.get("body", b""))

        await self._app(self.scope_of(method, path, query or {}, request_headers), _receiver(body), collect)
        reply = Reply(start["status"], _headers(start), b"".join(chunks))
        if reply.status >= 400:
            raise problem_of(reply, path, self._request_id)
        return reply

    async def upload(
        self, path: str, fields: Mapping[str, str], files: Mapping[str, Upload], *, key: str, **query: object
    ) -> Any:
        """POST a form with files as multipart, streamed, and return the parsed JSON of the reply.

        The bytes depend only on the form and on ``key``, so that a second submit is the same request.
        """
        boundary = f"blindopt-{key}"
        body = _multipart(boundary, fields, files)
        media = {"content-type": f"multipart/form-data; boundary={boundary}"}
        return (await self.send("POST", path, query=query, body=body, key=key, headers=media)).json

    def scope_of(self, method: str, path: str, query: Mapping[str, object], headers: Mapping[str, str]) -> Scope:
        query_texts = {k: _text(v) for k, v in query.items() if v is not None}
        sent = {"host": "inside", "x-request-id": self._request_id, **headers}
        scope: Scope = {
            "type": "http",
            "asgi": self._outer["asgi"],
            "http_version": "1.1",
            "method": method,
            "scheme": self._outer["scheme"],
            "path": path,
            "raw_path": quote(path, safe="/:").encode(),
            "root_path": "",
            "query_string": urlencode(query_texts, doseq=True).encode(),
            "headers": [(k.lower().encode("latin-1"), v.encode("latin-1", "replace")) for k, v in sent.items()],
            "client": self._outer.get("client"),
            "server": self._outer.get("server"),
        }
        mark_inside(scope, self._principal)
        return scope


def id_of(kind: str, text: str) -> str:
    """Check an id (``std``, ``ds``, ...) of a link or form before it is put in a path of the API. Raises NotFound."""
    if not re.fullmatch(f"{kind}_[0-9a-f]{{16}}", text):
        raise NotFound(f"this is no id: {kind}_ and 16 digits are one")
    return text


def problem_of(reply: Reply, path: str, request_id: str) -> ApiProblem:
    """The problem of a refusal, also if the reply is no problem document."""
    try:
        problem = wire.Problem.model_validate_json(reply.body)
    except ValidationError:
        problem = wire.Problem(
            type="about:blank",
            title="The service answered with an error",
            status=reply.status,
            detail=f"the service answered with status {reply.status}",
            instance=path[:200],
            code=f"http_{reply.status}",
            retryable=False,
            request_id=request_id,
        )
    return ApiProblem(problem, reply.headers)


def _text(value: object) -> str | list[str]:
    if isinstance(value, (list, tuple)):
        return [str(item) for item in value]
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _json(body: object) -> bytes:
    if isinstance(body, BaseModel):
        return body.model_dump_json(exclude_none=True).encode()
    return b"" if body is None else json.dumps(body, allow_nan=False, sort_keys=True).encode()


def _receiver(body: bytes | AsyncIterator[bytes]) -> Receive:
    chunks = _whole(body) if isinstance(body, bytes) else body

    async def receive() -> Message:
        chunk = await anext(chunks, None)
        return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}

    return receive


async def _whole(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _CHUNK):
        yield body[start : start + _CHUNK]


async def _multipart(boundary: str, fields: Mapping[str, str], files: Mapping[str, Upload]) -> AsyncIterator[bytes]:
    """A multipart body (RFC 7578). Quotes and line ends in names, which people choose, are percent-encoded."""
    for name, value in fields.items():
        yield f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(name)}"\r\n\r\n{value}\r\n'.encode()
    for name, file in files.items():
        disposition = f'form-data; name="{_quoted(name)}"; filename="{_quoted(file.filename)}"'
        yield f"--{boundary}\r\nContent-Disposition: {disposition}\r\nContent-Type: {file.media_type}\r\n\r\n".encode()
        async for chunk in file.content:
            yield chunk
        yield b"\r\n"
    yield f"--{boundary}--\r\n".encode()


def _quoted(name: str) -> str:
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


class Relay(Response):
    """A response that relays a reply of the API to the browser as it comes: an export, a stream of events.

    Headers that the middleware adds to every reply are not sent twice. A refusal is buffered and handed to
    ``refusal_page``. When ``is_live`` returns False, the API is told that the browser has disconnected.
    """

    def __init__(
        self,
        app: ASGIApp,
        inner: Scope,
        refusal_page: Callable[[Reply], ASGIApp],
        is_live: Callable[[], Awaitable[bool]],
    ) -> None:
        self._app, self._inner = app, inner
        self._refusal_page, self._is_live = refusal_page, is_live
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_read = started = ended = False
        refusal: list[Message] = []

        async def inner_receive() -> Message:
            nonlocal has_read
            if has_read:
                return await self._disconnect(receive)
            has_read = True
            return {"type": "http.request", "body": b"", "more_body": False}

        async def inner_send(message: Message) -> None:
            nonlocal started, ended
            if refusal or (message["type"] == "http.response.start" and message["status"] >= 400):
                refusal.append(message)
                return
            if message["type"] == "http.response.start":
                message = {**message, "headers": [h for h in message["headers"] if h[0] not in _MIDDLEWARE_HEADERS]}
            started, ended = True, message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        await self._app(self._inner, inner_receive, inner_send)
        if refusal:
            start, *messages = refusal
            body = b"".join(part.get("body", b"") for part in messages)
            await self._refusal_page(Reply(start["status"], _headers(start), body))(scope, receive, send)
        elif started and not ended:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _disconnect(self, receive: Receive) -> Message:
        """Wait until the browser has disconnected, or the session has ended."""
        while await self._is_live():
            with suppress(TimeoutError):
                message = await asyncio.wait_for(receive(), _POLL_SECONDS)
                if message["type"] == "http.disconnect":
                    break
        return {"type": "http.disconnect"}


def _headers(start: Message) -> dict[str, str]:
    return {k.decode("latin-1"): v.decode("latin-1") for k, v in start["headers"]}


_MIDDLEWARE_HEADERS = frozenset(
    {
        b"x-request-id",
        b"cross-origin-resource-policy",
        b"x-content-type-options",
        b"content-security-policy",
        b"referrer-policy",
        b"strict-transport-security",
    }
)
