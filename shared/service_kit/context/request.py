"""A request as idempotency and the audit log see it, and the effect of a request."""

import re
from typing import Any

from pydantic import BaseModel

from blindopt.audit.merkle_log import Exchange
from blindopt.values import value
from service_kit.identity.tokens import Principal

_STUDY = re.compile(r"/v1/studies/(std_[0-9a-f]{16})(?![^/:])")


@value
class RequestContext:
    """The principal, idempotency key, path and body digest of a request."""

    principal: Principal
    request_id: str
    method: str
    path: str
    key: str | None
    body_sha256: str

    @property
    def is_shared(self) -> bool:
        """Whether both parties log this exchange. Requests about the log itself are not logged in it."""
        return self.principal.study_id is not None and not self.path.startswith("/v1/audit/")

    def exchange(self, position: int | None, status: int, reply_sha256: str, *, replayed: bool) -> Exchange:
        """The request with its reply, as the logs record it."""
        # The study in the path comes first: the other party records it, and does not know the study of its token.
        in_path = _STUDY.match(self.path)
        return Exchange(
            study_id=in_path[1] if in_path else self.principal.study_id or "",
            grant_id=self.principal.id,
            position=position,
            request_id=self.request_id,
            method=self.method,
            path=self.path,
            idempotency_key=self.key,
            request_sha256=self.body_sha256,
            status=status,
            reply_sha256=reply_sha256,
            replayed=replayed,
        )


@value
class Effect:
    """The reply to a request, and the kind and details of its log record, which hold no private value."""

    reply: BaseModel
    kind: str
    details: dict[str, Any]
    status: int = 201
