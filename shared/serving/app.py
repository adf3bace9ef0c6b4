"""Builds the FastAPI application of a service, and what its routes need."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request
from starlette.responses import Response

from shared import wire
from shared.errors import AuditUnavailable, Forbidden
from shared.serving import problems
from shared.serving.desk import Asked, Desk
from shared.serving.middleware import Admit, BodyLimit, Faults, Identify, RecordExchanges, RequestContext
from shared.serving.store.tables import StoredReply
from shared.serving.tokens import Principal, Role

VERSION = "0.1.0"
T = TypeVar("T")


def build(
    *,
    title: str,
    description: str,
    desk: Desk,
    routers: list[APIRouter],
    limit_of: Callable[[str, Principal | None], int],
    auditors: tuple[Role, ...],
    lifespan: Any = None,
) -> FastAPI:
    """The application: middleware, problem documents, health, the log, the service's own routes.

    FastAPI's documentation pages load outside resources, so only /openapi.json is served.
    """
    app = FastAPI(
        title=title,
        description=description,
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        separate_input_output_schemas=False,
        redirect_slashes=False,  # a redirect would repeat the Host header
    )
    app.state.desk = desk
    problems.install(app)
    # The last one added is the outermost.
    app.add_middleware(Admit)
    app.add_middleware(BodyLimit, limit_of=limit_of)
    app.add_middleware(Faults)  # within the log's reach
    app.add_middleware(RecordExchanges, desk=desk)
    app.add_middleware(Identify, desk=desk)
    app.add_middleware(Faults)
    app.add_middleware(RequestContext)
    for router in [_health(), _audit(auditors), *routers]:
        app.include_router(router)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


# A space at an end is not part of a header's value.
_KEY_SCHEMA = {"type": "string", "pattern": r"^[!-~]([ -~]{0,198}[!-~])?$", "minLength": 1, "maxLength": 200}


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = FastAPI.openapi(app)
        problems.add_schema(document, (wire.Problem,))
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        for name, schema in document["components"]["schemas"].items():
            if name.startswith("Body_"):  # a form
                for field in schema["properties"].values():
                    _drop_null(field)
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in document["paths"].items():
            for operation in operations.values():
                for parameter in operation.get("parameters", []):
                    _drop_null(parameter["schema"])
                    if parameter["name"] == "idempotency-key":
                        parameter["required"] = True  # 400, not 422, where it is missing
                        parameter["schema"] = _KEY_SCHEMA
                operation["security"] = [{"token": []}] if path.startswith("/v1/") and path != "/v1/meta" else []
        app.openapi_schema = document
    return app.openapi_schema


def _drop_null(schema: dict[str, Any]) -> None:
    """A parameter or a field of a form is sent or is left out: there is no null to send."""
    kept = [option for option in schema.pop("anyOf", []) if option != {"type": "null"}]
    if kept:
        (only,) = kept
        schema |= only


def allowed(*roles: Role) -> Any:
    """A dependency: the principal, if it has one of ``roles``; else Forbidden."""

    def check(request: Request) -> Principal:
        principal: Principal = request.state.principal
        if principal.role not in roles:
            raise Forbidden(f"this needs the role {' or '.join(roles)}")
        return principal

    check.__dict__["roles"] = roles  # a test walks every route and reads this
    return Depends(check)


IdempotencyKey = Annotated[
    str | None,
    Header(description="Required, 1 to 200 characters: the same key with the same body gets the stored reply."),
]


async def asked(request: Request, idempotency_key: IdempotencyKey = None) -> Asked:
    """The request as far as idempotency and the log care; reads the body to its end."""
    return Asked(
        principal=request.state.principal,
        request_id=request.state.request_id,
        method=request.method,
        path=request.url.path,
        key=idempotency_key,
        body_sha256=await request.state.body_sha256(strict=True),
    )


AskedDep = Annotated[Asked, Depends(asked)]
PageSize = Annotated[int, Query(ge=1, le=1_000, description="Most items of one page.")]
PageToken = Annotated[str | None, Query(pattern=r"^[0-9]{1,15}$", description="next_page_token of the page before.")]


def answer(request: Request, reply: StoredReply) -> Response:
    """The exact bytes of a reply that ``Desk.once`` made or found."""
    headers = {}
    if reply.replayed:
        headers["Idempotency-Replayed"] = "true"
    else:
        request.state.recorded = True  # in the transaction of its effect
    return Response(reply.body, reply.status, headers, media_type="application/json")


def page_of(items: list[T], size: int, seq_of: Callable[[T], int]) -> tuple[list[T], str | None]:
    """The first ``size`` of ``items`` (asked one more), and the token of the next page."""
    more = len(items) > size
    return items[:size], str(seq_of(items[size - 1])) if more else None


def _health() -> APIRouter:
    router = APIRouter(tags=["health"])
    unready: dict[int | str, dict[str, Any]] = {
        503: {"description": "The database cannot be written.", **problems.documented()[503]}
    }

    @router.get("/healthz", response_model=wire.Health, operation_id="healthz")
    def healthz() -> wire.Health:
        """The process is up."""
        return wire.Health(status="ok")

    @router.get("/readyz", response_model=wire.Health, operation_id="readyz", responses=unready)
    def readyz(request: Request) -> wire.Health:
        """The database can be written and the log's head loads."""
        desk: Desk = request.app.state.desk
        try:
            desk.ready()
        except Exception:
            raise AuditUnavailable("the database cannot be written") from None
        return wire.Health(status="ok")

    return router


def _audit(auditors: tuple[Role, ...]) -> APIRouter:
    router = APIRouter(prefix="/v1/audit", tags=["audit"], dependencies=[allowed(*auditors)])

    @router.get(
        "/entries", response_model=wire.AuditPage, responses=problems.documented(), operation_id="list_audit_entries"
    )
    def entries(request: Request, page_size: PageSize = 50, page_token: PageToken = None) -> wire.AuditPage:
        """The audit log, from its first record."""
        desk: Desk = request.app.state.desk
        found = desk.entries(-1 if page_token is None else int(page_token), page_size + 1)
        listed, token = page_of(found, page_size, lambda entry: entry.seq)
        return wire.AuditPage(entries=listed, next_page_token=token)

    @router.get(
        "/checkpoint",
        response_model=wire.Checkpoint,
        responses=problems.documented(),
        operation_id="get_audit_checkpoint",
    )
    def checkpoint(request: Request) -> wire.Checkpoint:
        """Size and root of the log."""
        desk: Desk = request.app.state.desk
        head = desk.head()
        return wire.Checkpoint(size=head.size, root=head.root)

    return router
