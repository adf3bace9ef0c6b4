"""What the routes of both services share: routers, roles, idempotency, replies."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from blindopt.audit.merkle_log import RECEIPT_HEADER
from blindopt.errors import Forbidden, NotFound
from service_kit.context.request import RequestContext
from service_kit.identity.tokens import Principal, Role
from service_kit.store.stored_replies import StoredReply
from service_kit.web.bodies import BoundedRoute
from service_kit.web.problems import documented


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
    return {each[1].lower() for line in headers for each in _PREFERENCE.finditer(line)}


IdempotencyKey = Annotated[
    str | None,
    Header(description="Required, 1 to 200 characters: the same key with the same body gets the stored reply."),
]


async def request_context(request: Request, idempotency_key: IdempotencyKey = None) -> RequestContext:
    """The request as idempotency and the log see it. Reads the body to its end."""
    scope = request.scope
    state = scope["state"]
    return RequestContext(
        principal=state["principal"],
        request_id=state["request_id"],
        method=scope["method"],
        path=scope["path"],
        key=idempotency_key,
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
