"""The service's own API, asked in process: the one source of what a page shows."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blindopt import wire
from blindopt.errors import NotFound
from service_kit.identity.tokens import Principal
from service_kit.web import in_process

M = TypeVar("M", bound=BaseModel)
_JSON = "application/json"
_CHUNK = 1 << 16
_LOOK_SECONDS = 2.0


class ApiProblem(Exception):
    """The API refused. ``problem`` is what it said; ``str`` is its detail, in words for people."""

    def __init__(self, problem: wire.Problem, headers: Mapping[str, str]) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.headers = headers

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.problem.status

    @property
    def code(self) -> str:
        """Stable name of the problem."""
        return self.problem.code


@dataclass(frozen=True, slots=True)
class Reply:
    """What the API answered; never an error."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    def as_(self, model: type[M]) -> M:
        """The body as a wire model."""
        return model.model_validate_json(self.body)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of a form, on its way to the API."""

    filename: str
    content: AsyncIterator[bytes]
    media_type: str = "application/octet-stream"

    @classmethod
    def of(cls, sent: UploadFile) -> Self:
        """A file as it came with a form."""

        async def parts() -> AsyncIterator[bytes]:
            await sent.seek(0)
            while part := await sent.read(_CHUNK):
                yield part

        return cls(sent.filename or "file", parts())


class Api:
    """Requests to the service's own API, as ``principal``. Each method but ``scope_of`` raises ApiProblem."""

    def __init__(self, app: ASGIApp, outer: Scope, principal: Principal, request_id: str) -> None:
        self._app = app
        self._outer = outer
        self._principal = principal
        self._request_id = request_id

    async def get(self, path: str, **query: object) -> Any:
        """The parsed JSON of a GET. A query value of None is left out."""
        return (await self.send("GET", path, query=query)).json

    async def read(self, path: str, model: type[M], **query: object) -> M:
        """A GET, as a wire model."""
        return (await self.send("GET", path, query=query)).as_(model)

    async def post(self, path: str, body: object = None, *, key: str | None = None) -> Any:
        """The parsed JSON that a POST answers. ``body`` is a wire model or what JSON can hold; ``key`` the form's."""
        reply = await self.send("POST", path, body=_json(body), key=key, headers={"content-type": _JSON})
        return reply.json if reply.body else None

    async def put(self, path: str, body: object, *, key: str) -> Any:
        """The parsed JSON that a PUT answers; as ``post``."""
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
        """Any request; the whole reply, held in memory."""
        asked = dict(headers or {}) | ({"idempotency-key": key} if key else {})
        start: dict[str, Any] = {}
        parts: list[bytes] = []

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                parts.append(message.get("body", b""))

        await self._app(self.scope_of(method, path, query or {}, asked), _receiver(body), answered)
        reply = Reply(start["status"], _headers(start), b"".join(parts))
        if reply.status >= 400:
            raise problem_of(reply, path, self._request_id)
        return reply

    async def upload(
        self, path: str, fields: Mapping[str, str], files: Mapping[str, Upload], *, key: str, **query: object
    ) -> Any:
        """POST a form with files as multipart, streamed; the parsed JSON that it answers.

        The bytes depend on what is sent and on ``key`` alone, so that a second submit is the same request.
        """
        boundary = f"blindopt-{key}"
        body = _multipart(boundary, fields, files)
        media = {"content-type": f"multipart/form-data; boundary={boundary}"}
        return (await self.send("POST", path, query=query, body=body, key=key, headers=media)).json

    def scope_of(self, method: str, path: str, query: Mapping[str, object], headers: Mapping[str, str]) -> Scope:
        """The ASGI scope of a request to ourselves."""
        chosen = {k: _text(v) for k, v in query.items() if v is not None}
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
            "query_string": urlencode(chosen).encode(),
            "headers": [(k.lower().encode("latin-1"), v.encode("latin-1", "replace")) for k, v in sent.items()],
            "client": self._outer.get("client"),
            "server": self._outer.get("server"),
        }
        in_process.mark(scope, self._principal)
        return scope


def id_of(kind: str, text: str) -> str:
    """An id (``std``, ``ds``, ...) that came with a link or a form, to go into a path of the API. Raises NotFound."""
    if not re.fullmatch(f"{kind}_[0-9a-f]{{16}}", text):
        raise NotFound(f"this is no id: {kind}_ and 16 digits are one")
    return text


def problem_of(reply: Reply, path: str, request_id: str) -> ApiProblem:
    """What a refusal says, also where it is no problem document."""
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


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _json(body: object) -> bytes:
    if isinstance(body, BaseModel):
        return body.model_dump_json(exclude_none=True).encode()
    return b"" if body is None else json.dumps(body, allow_nan=False, sort_keys=True).encode()


def _receiver(body: bytes | AsyncIterator[bytes]) -> Receive:
    parts = _whole(body) if isinstance(body, bytes) else body

    async def receive() -> Message:
        part = await anext(parts, None)
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    return receive


async def _whole(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _CHUNK):
        yield body[start : start + _CHUNK]


async def _multipart(boundary: str, fields: Mapping[str, str], files: Mapping[str, Upload]) -> AsyncIterator[bytes]:
    """RFC 7578. Names and file names come from people: quotes and line ends in them are percent-encoded."""
    for name, value in fields.items():
        yield f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(name)}"\r\n\r\n{value}\r\n'.encode()
    for name, file in files.items():
        disposition = f'form-data; name="{_quoted(name)}"; filename="{_quoted(file.filename)}"'
        yield f"--{boundary}\r\nContent-Disposition: {disposition}\r\nContent-Type: {file.media_type}\r\n\r\n".encode()
        async for part in file.content:
            yield part
        yield b"\r\n"
    yield f"--{boundary}--\r\n".encode()


def _quoted(text: str) -> str:
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


class Passed:
    """A reply of the API that goes through to the browser as it comes: an export, a stream of events.

    What the outer gate adds to every reply is not sent twice. A refusal is held, for ``refused`` to tell. Once
    ``is_live`` is False, the API is told that the browser has gone.
    """

    def __init__(
        self, app: ASGIApp, asked: Scope, refused: Callable[[Reply], ASGIApp], is_live: Callable[[], bool]
    ) -> None:
        self._app = app
        self._asked = asked
        self._refused = refused
        self._is_live = is_live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = started = ended = False
        held: list[Message] = []

        async def asks() -> Message:
            nonlocal asked
            if asked:
                return await self._end(receive)
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}

        async def answers(message: Message) -> None:
            nonlocal started, ended
            if held or (message["type"] == "http.response.start" and message["status"] >= 400):
                held.append(message)
                return
            if message["type"] == "http.response.start":
                message = {**message, "headers": [h for h in message["headers"] if h[0] not in _OF_THE_GATE]}
            started, ended = True, message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        await self._app(self._asked, asks, answers)
        if held:
            body = b"".join(m.get("body", b"") for m in held[1:])
            await self._refused(Reply(held[0]["status"], _headers(held[0]), body))(scope, receive, send)
        elif started and not ended:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _end(self, receive: Receive) -> Message:
        """Wait until the browser has gone, or the session has ended."""
        while self._is_live():
            with suppress(TimeoutError):
                message = await asyncio.wait_for(receive(), _LOOK_SECONDS)
                if message["type"] == "http.disconnect":
                    break
        return {"type": "http.disconnect"}


def _headers(start: Message) -> dict[str, str]:
    return {k.decode("latin-1"): v.decode("latin-1") for k, v in start["headers"]}


_OF_THE_GATE = frozenset(
    {
        b"x-request-id",
        b"cross-origin-resource-policy",
        b"x-content-type-options",
        b"content-security-policy",
        b"referrer-policy",
        b"strict-transport-security",
    }
)
