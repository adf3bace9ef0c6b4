"""The front desk of a service: who comes in, what was answered before, what the log says."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from shared import wire
from shared.audit import Exchange, Head, sha256, verify
from shared.errors import IdempotencyKeyMissing, Unauthenticated
from shared.serving.seal import Seal
from shared.serving.store.database import Connection, Database
from shared.serving.store.tables import Clock, Log, Replies, StoredReply, Tokens, moment
from shared.serving.tokens import Principal, Role, Token, mint, parse

KEY = re.compile(r"[ -~]{1,200}")
_HOW_TO_ASK = "send a valid token: Authorization: Bearer blindopt_..."


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as far as idempotency and the log care."""

    principal: Principal
    request_id: str
    method: str
    path: str
    key: str | None
    body_sha256: str

    def exchange(self, study_id: str, status: int, reply_sha256: str, *, replayed: bool) -> Exchange:
        """The request with its reply, as the log tells it."""
        return Exchange(
            study_id=study_id,
            request_id=self.request_id,
            method=self.method,
            path=self.path,
            idempotency_key=self.key,
            request_sha256=self.body_sha256,
            status=status,
            reply_sha256=reply_sha256,
            replayed=replayed,
        )


@dataclass(frozen=True, slots=True)
class Effect:
    """What a request did: its reply, and what the log says of it (never a private value)."""

    reply: BaseModel
    kind: str
    details: dict[str, Any]
    status: int = 201


class Expired(Unauthenticated):
    """The secret is right, but the token has expired or was revoked. Told like any other 401."""

    def __init__(self, principal: Principal) -> None:
        super().__init__(_HOW_TO_ASK)
        self.principal = principal


class Desk:
    """Authentication, idempotent effects and the log, over one database."""

    def __init__(self, database: Database, seal: Seal, clock: Clock) -> None:
        self.database = database
        self.clock = clock
        self._seal = seal

    def authenticate(self, authorization: str) -> Principal:
        """The bearer of an Authorization header. Raises Unauthenticated; Expired if the secret is right."""
        scheme, _, text = authorization.partition(" ")
        token = parse(text) if scheme.lower() == "bearer" else None
        if token is not None:
            with self.database.read() as db:
                row = Tokens.find(db, token.kid)
            # Unknown and wrong take the same path: a key id is not a secret, its secret is.
            if row is not None and token.matches(row.secret_sha256):
                principal = Principal(kid=row.kid, role=row.role, name=row.name, study_id=row.study_id)
                if not self._live(row):
                    raise Expired(principal)
                return principal
        raise Unauthenticated(_HOW_TO_ASK)

    def _live(self, row: Any) -> bool:
        return row.revoked_at is None and self.clock() < moment(row.expires_at)

    def issue(self, role: Role, name: str, *, days: int) -> tuple[Token, Principal]:
        """A new token for a person or a program, recorded in the log."""
        return self.database.write(lambda db: self.issue_in(db, role, name, days=days, actor="cli"))

    def issue_in(
        self, db: Connection, role: Role, name: str, *, days: int, actor: str, study_id: str | None = None
    ) -> tuple[Token, Principal]:
        """The same inside the caller's transaction."""
        token, now = mint(), self.clock()
        principal = Principal(kid=token.kid, role=role, name=name, study_id=study_id)
        Tokens.add(db, token, principal, created=now, expires=now + timedelta(days=days))
        details = {"kid": token.kid, "role": role, "study_id": study_id}
        Log.append(db, "token.issued", actor=actor, now=now, details=details)
        return token, principal

    def withdraw(self, kid: str, *, study_id: str | None = None, actor: str = "cli") -> Any:
        """Refuse a token from now on, recorded in the log. NotFound if there is none."""
        return self.database.write(lambda db: self.withdraw_in(db, kid, study_id=study_id, actor=actor))

    def withdraw_in(self, db: Connection, kid: str, *, study_id: str | None, actor: str) -> Any:
        """The same inside the caller's transaction."""
        row = Tokens.revoke(db, kid, study_id=study_id, now=self.clock())
        Log.append(db, "token.revoked", actor=actor, now=self.clock(), details={"kid": kid})
        return row

    def tokens(self, *, study_id: str | None = None, after: int = 0, limit: int = 1_000) -> list[Any]:
        """Tokens without their secrets, in order of creation."""
        with self.database.read() as db:
            return Tokens.listed(db, study_id=study_id, after=after, limit=limit)

    def once(self, asked: Asked, effect: Callable[[Connection], Effect], *, secret: bool = False) -> StoredReply:
        """Run ``effect`` once for this principal and key; later requests get the stored bytes.

        Effect, stored reply and log record are one transaction. ``secret`` seals the stored reply.
        Raises IdempotencyKeyMissing, IdempotencyKeyReused, and whatever ``effect`` raises.
        """
        key, digest = self.key_of(asked)

        def work(db: Connection) -> StoredReply:
            found = Replies.find(db, asked.principal.kid, key, digest)
            if found is not None:
                stored, sealed = found
                return replace(stored, body=self._seal.open(stored.body)) if sealed else stored
            done = effect(db)
            body = done.reply.model_dump_json().encode()
            now = self.clock()
            kept = StoredReply(done.status, self._seal.close(body) if secret else body)
            Replies.add(db, asked.principal.kid, key, digest, kept, sealed=secret, now=now)
            study = asked.principal.study_id
            told = asked.exchange(study, done.status, sha256(body), replayed=False) if study else None
            Log.append(db, done.kind, actor=asked.principal.actor, now=now, details=done.details, exchange=told)
            return StoredReply(done.status, body)

        return self.database.write(work)

    def key_of(self, asked: Asked) -> tuple[str, str]:
        """The idempotency key and the digest of what was asked under it."""
        if not asked.key or not KEY.fullmatch(asked.key):
            raise IdempotencyKeyMissing("send an Idempotency-Key header of 1 to 200 printable ASCII characters")
        return asked.key, sha256(f"{asked.method} {asked.path} {asked.body_sha256}".encode())

    def earlier(self, asked: Asked) -> StoredReply | None:
        """The stored reply of this request, if there is one; for work too long for a transaction."""
        key, digest = self.key_of(asked)
        with self.database.read() as db:
            found = Replies.find(db, asked.principal.kid, key, digest)
        if found is None:
            return None
        stored, sealed = found
        return replace(stored, body=self._seal.open(stored.body)) if sealed else stored

    def tell(self, exchange: Exchange, actor: str) -> None:
        """Record an exchange that has no effect of its own: a read, a refusal, a replay."""
        self.database.write(lambda db: Log.append(db, "exchange", actor=actor, now=self.clock(), exchange=exchange))

    def seal(self, clear: bytes) -> bytes:
        """Encrypt a secret for the database."""
        return self._seal.close(clear)

    def unseal(self, sealed: bytes) -> bytes:
        """Read a secret from the database."""
        return self._seal.open(sealed)

    def ready(self) -> None:
        """Raise if the database cannot be written or the log's head does not load."""
        self.database.check_writable()
        self.head()

    def entries(self, after: int, limit: int) -> list[wire.AuditEntry]:
        """A page of the log."""
        with self.database.read() as db:
            return [
                wire.AuditEntry(seq=entry.seq, body=entry.body.decode(), leaf=entry.leaf.hex(), peaks=entry.peaks.hex())
                for entry in Log.walk(db, after=after, limit=limit)
            ]

    def head(self) -> Head:
        """Size and root of the log."""
        with self.database.read() as db:
            return Log.head(db)

    def verify(self) -> Head:
        """Walk the whole log; LogBroken names the first record that is wrong."""
        with self.database.read() as db:
            return verify(Log.walk(db))

    def records(self) -> Iterator[dict[str, Any]]:
        """Every record, parsed."""
        with self.database.read() as db:
            for entry in Log.walk(db):
                yield entry.record
