"""A request as idempotency and the audit log see it, and the effect of a request."""

from typing import Any

from pydantic import BaseModel

from blindopt.values import value
from service_kit.identity.tokens import Principal


@value
class RequestContext:
    """The principal, idempotency key, path and body digest of a request."""

    principal: Principal
    request_id: str
    method: str
    path: str
    key: str | None
    body_sha256: str


@value
class Effect:
    """The reply to a request, and the kind and details of its log record, which hold no private value."""

    reply: BaseModel
    kind: str
    details: dict[str, Any]
    status: int = 201
    reserved: int = 0
    """The bytes of a grant's log quota that were counted for it before."""
