"""What the routes of both services share: routers, roles, JSON bodies within bounds, idempotency, replies."""

import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, TypeVar, cast

from fastapi import APIRouter, Depends, Header, Path, Request
from fastapi.params import Form
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import FormData
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from blindopt import bodies, faults
from blindopt.audit.merkle_log import RECEIPT_HEADER
from blindopt.errors import BadRequest, BlindoptError, Forbidden, Invalid, NotFound, UnsupportedMediaType
from service_kit.context.request import RequestContext
from service_kit.identity.tokens import Principal, Role
from service_kit.store.stored_replies import StoredReply
from service_kit.web.problems import documented

B = TypeVar("B", bound=BaseModel)


async def body_of(request: Request, model: type[B]) -> B:
    """The JSON body of a hot route as ``model``. Raises Invalid, as the other routes do."""
    if received := await _received(request.receive):
        media_of(request, JSON)
    return cast(B, await _parsed(received, model))


async def _received(receive: Receive) -> bytes:
    """A whole body: what ``Request.body`` does, without its generator and its cache. Raises Invalid for less."""
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Invalid("the request ended before its body did: nothing happened")
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(chunks)


async def _parsed(body: bytes, annotation: Any) -> Any:
    parsed = await bodies.parse_beside(body, annotation)
    if isinstance(name := getattr(parsed, "name", None), str):  # of what is new: older names are still read and shown
        faults.check_name(name)
    return parsed


JSON = "application/json"


def media_of(request: Request, *kinds: str) -> str:
    """The media type of a body, one of ``kinds``; ``application/*+json`` is JSON. Raises UnsupportedMediaType."""
    if header(request, b"content-encoding").lower() not in ("", "identity"):
        raise UnsupportedMediaType("the body is packed: send it as it is, without Content-Encoding")
    media = header(request, b"content-type").partition(";")[0].rstrip(" \t").lower()
    media = JSON if media.startswith("application/") and media.endswith("+json") else media
    if media not in kinds:
        raise UnsupportedMediaType(f"the body is of another kind: send Content-Type: {' or '.join(kinds)}")
    return media


def header(request: Request, name: bytes) -> str:
    """The value of a header (its ``name`` in lower case), empty if there is none. Source: RFC 9110, section 5.

    Lines of one name are one value, and white space around a value is no part of it.
    """
    lines = [value.strip(b" \t") for key, value in request.scope["headers"] if key == name]
    return str(b", ".join(lines), "latin-1")


class BoundedRoute(APIRoute):
    """A route whose JSON body is parsed here, where FastAPI parses and validates any body on the event loop.

    FastAPI is given the model that was made, and takes it as it is. A refusal waits until the dependencies have
    passed: who may not send the request at all gets that reply.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of FastAPI, with another way to read JSON, and a refusal of other media types."""
        handle, field = super().get_route_handler(), self.body_field
        if field is None:
            return handle
        is_form, annotation = isinstance(field.field_info, Form), field.field_info.annotation

        async def bounded(request: Request) -> Response:
            return await handle(_FormRequest(request) if is_form else _JsonRequest(request, annotation))

        return bounded


class _BodyRequest(Request):
    """A request that notes why its body is refused, and yields then what no model is made of."""

    def __init__(self, request: Request) -> None:
        super().__init__(request.scope, request.receive)

    def _refuse(self, error: BlindoptError) -> bytes:
        self.state.wrong_body = error
        return b""


class _JsonRequest(_BodyRequest):
    def __init__(self, request: Request, annotation: Any) -> None:
        super().__init__(request)
        self._annotation = annotation

    async def body(self) -> bytes:
        """The body, which is no JSON for FastAPI either where its header says so."""
        received = await super().body()
        try:
            if received:
                media_of(self, JSON)
        except UnsupportedMediaType as error:
            self._refuse(error)
        return received

    async def json(self) -> Any:
        try:
            received = await super().body()
            media_of(self, JSON)
            return await _parsed(received, self._annotation)
        except (Invalid, UnsupportedMediaType) as error:
            return self._refuse(error)


class _FormRequest(_BodyRequest):
    async def form(self, **bounds: Any) -> FormData:  # type: ignore[override]  # FastAPI awaits it
        """The fields of a form; none where the header says that it is no form."""
        try:
            media_of(self, "multipart/form-data", "application/x-www-form-urlencoded")
        except UnsupportedMediaType as error:
            self._refuse(error)
            return FormData()
        return await super().form(**bounds)


def api_router(tag: str, *roles: Role, prefix: str = "", dependencies: tuple[Any, ...] = ()) -> APIRouter:
    """A router whose routes are for ``roles``, document every common error, and are named as their functions are.

    Without ``roles``, each route says by ``allowed`` whom it is for.
    """
    return APIRouter(
        prefix=prefix,
        tags=[tag],
        dependencies=[*dependencies, *([allowed(*roles)] if roles else [])],
        responses=documented(),
        generate_unique_id_function=lambda route: route.name,
        route_class=BoundedRoute,
    )


async def of_own_study(request: Request, study_id: Annotated[str, Path(description="std_...")]) -> None:
    """Raise NotFound for a modeler's token on another study, as for a study that does not exist."""
    principal: Principal = request.scope["state"]["principal"]
    if principal.study_id is not None and principal.study_id != study_id:
        raise NotFound("there is no such study")


def allowed(*roles: Role) -> Any:
    """A dependency that returns the principal if it has one of ``roles``, and raises Forbidden otherwise."""

    async def check(request: Request) -> Principal:  # a plain function would run in a thread each time
        return permitted(request.state.principal, *roles)

    check.__dict__["roles"] = roles  # a test walks every route and reads this
    return Depends(check)


async def _check_room(request: Request) -> None:
    request.app.state.disk.check()


NEEDS_ROOM = Depends(_check_room)
"""Of a route that begins new work: it raises StorageUnavailable while the disk is nearly full."""


def permitted(principal: Principal, *roles: Role) -> Principal:
    """Return the principal if it has one of ``roles``. Raises Forbidden otherwise."""
    if principal.role not in roles:
        raise Forbidden(f"this needs the role {' or '.join(roles)}")
    return principal


_PREFERENCE = re.compile(
    r"""[ \t]*+([\w!#$%&'*+.^`|~-]++)     # its name: a token
        (?:[^",]|"(?:[^"\\]|\\.)*+")*+(?:,|$)  # a value and parameters, which may be quoted, up to the next one""",
    re.ASCII | re.VERBOSE,
)


def preferences(headers: Sequence[str]) -> set[str]:
    """The names of the preferences in ``Prefer``, in lower case, without values and parameters. Source: RFC 7240."""
    return {preference[1].lower() for line in headers for preference in _PREFERENCE.finditer(line)}


IdempotencyKey = Annotated[
    str | None,
    Header(description="Required, 1 to 200 characters: the same key with the same body gets the stored reply."),
]


async def request_context(request: Request, idempotency_key: IdempotencyKey = None) -> RequestContext:
    """The request as idempotency and the log see it. Reads the body to its end.

    Raises BadRequest for a key that is sent twice: parties in between may take the first, the last, or both.
    """
    if [name for name, _ in request.scope["headers"]].count(b"idempotency-key") > 1:
        raise BadRequest("Idempotency-Key must be sent once")
    key = None if idempotency_key is None else header(request, b"idempotency-key")
    scope = request.scope
    state = scope["state"]
    return RequestContext(
        principal=state["principal"],
        request_id=state["request_id"],
        method=scope["method"],
        path=scope["path"],
        key=key,
        body_sha256=await state["body_sha256"](strict=True),
    )


async def unkeyed_context(request: Request) -> RequestContext:
    """The request as the log sees it, where a repetition does no more than the first time."""
    return await request_context(request)


RequestContextDep = Annotated[RequestContext, Depends(request_context)]
UnkeyedContextDep = Annotated[RequestContext, Depends(unkeyed_context)]


_RECEIPT = RECEIPT_HEADER.lower().encode()


class RecordedReply(Response):
    """The exact bytes of a reply that ``Idempotency.once`` stored now or earlier."""

    def __init__(self, reply: StoredReply) -> None:
        self.body, self.status_code, self.background = reply.body, reply.status, None
        self.raw_headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(reply.body))]
        if reply.replayed:
            self.raw_headers.append((b"idempotency-replayed", b"true"))
        elif reply.receipt is not None:
            self.raw_headers.append((_RECEIPT, reply.receipt.encode()))
        self._is_recorded = not reply.replayed  # in the transaction of its effect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["recorded"] = self._is_recorded
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})
