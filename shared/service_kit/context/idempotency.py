"""Effects that happen once: a repeated request gets the stored reply to the first.

Bodies of owners and measurers have private values, which a plain digest beside a stored reply would confirm: it is
keyed. Those of modelers have none, and the log shared with them has their digests.
"""

import hmac
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from blindopt.audit.merkle_log import sha256
from blindopt.errors import IdempotencyKeyMissing
from service_kit.context.audit_trail import AuditTrail
from service_kit.context.authentication import Authentication
from service_kit.context.keys import Seal
from service_kit.context.request import Effect, RequestContext
from service_kit.store import stored_replies
from service_kit.store.database import Connection, Database
from service_kit.store.stored_replies import StoredReply

KEY = re.compile(r"[ -~]{1,200}")


class Idempotency:
    """Stored replies by principal and key, each stored and logged in the transaction of its effect."""

    def __init__(self, database: Database, seal: Seal, authentication: Authentication, audit_trail: AuditTrail) -> None:
        self._database = database
        self._seal = seal
        self._authentication = authentication
        self._audit_trail = audit_trail

    def once(
        self, request: RequestContext, effect: Callable[[Connection], Effect], *, secret: bool = False
    ) -> StoredReply:
        """Run ``effect`` once for this principal and key; later requests get the stored reply.

        Effect, stored reply and log record are one transaction. ``secret`` seals the stored reply.
        Raises IdempotencyKeyMissing, IdempotencyKeyReused, Unauthenticated, and whatever ``effect`` raises.
        """
        self.key_of(request)

        def work(db: Connection) -> StoredReply:
            self._authentication.check_live(db, request.principal)  # the body may arrive long after the head
            return self.stored(db, request) or self.settle(db, request, effect(db), secret=secret)

        return self._database.write(work)

    def key_of(self, request: RequestContext) -> tuple[str, str]:
        """The idempotency key and the digest of the request under it. Raises IdempotencyKeyMissing."""
        return _key_of(request.key, request.method, request.path, request.body_sha256)

    def stored(self, db: Connection, request: RequestContext) -> StoredReply | None:
        """The stored reply to this request, or None.

        Raises IdempotencyKeyReused for another request's key, RecordChanged for a reply that is not the one in the log.
        """
        key, digest = self.key_of(request)
        row = stored_replies.find(db, request.principal.id, key, (self._stored_digest(request, digest), digest))
        if row is None:
            return None
        reply = row.reply
        if row.sealed:
            reply = StoredReply(reply.status, self._seal.open(reply.body), replayed=True)
        if request.principal.study_id is not None:
            self._audit_trail.check_reply(db, request.principal.id, key, row.log_seq, reply)
        return reply

    def earlier(self, request: RequestContext) -> StoredReply | None:
        """``stored`` in a transaction of its own, before work that is too long for a transaction.

        Raises Unauthenticated for a token that was revoked since the head of the request, as ``once`` does.
        """
        with self._database.read() as db:
            self._authentication.check_live(db, request.principal)
            return self.stored(db, request)

    def settle(self, db: Connection, request: RequestContext, effect: Effect, *, secret: bool = False) -> StoredReply:
        """Store the reply of an effect and log the exchange, in the effect's transaction."""
        key, digest = self.key_of(request)
        body = effect.reply.__pydantic_serializer__.to_json(effect.reply)  # as model_dump_json, without its options
        stored = StoredReply(effect.status, self._seal.close(body) if secret else body)
        principal, sha, digest = request.principal.id, sha256(body), self._stored_digest(request, digest)
        of_effect: dict[str, Any] = {"kind": effect.kind, "details": effect.details}
        of_effect["stored_bytes"] = len(stored.body) - effect.reserved
        recorded = self._audit_trail.record(db, request, effect.status, sha, **of_effect)
        at, log_seq = recorded.at, recorded.seq
        stored_replies.add(db, principal, key, digest, stored, sealed=secret, at=at, log_seq=log_seq)
        return StoredReply(effect.status, body, receipt=recorded.receipt)

    def _stored_digest(self, request: RequestContext, digest: str) -> str:
        """What is stored of a request's digest; earlier versions stored it plain."""
        if request.principal.study_id is not None:
            return digest
        return hmac.digest(self._seal.key_for("requests"), digest.encode(), "sha256").hex()


@lru_cache(maxsize=1024)  # computed several times for each request
def _key_of(key: str | None, method: str, path: str, body_sha256: str) -> tuple[str, str]:
    if not key or not KEY.fullmatch(key):
        raise IdempotencyKeyMissing("send an Idempotency-Key header of 1 to 200 printable ASCII characters")
    return key, sha256(f"{method} {path} {body_sha256}".encode())
