"""The front desk of a service: who comes in, what was answered before, what the log says."""

import base64
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel

from blindopt.audit import merkle_log
from blindopt.audit.checkpoints import Checkpoint, Signer
from blindopt.audit.merkle_log import Exchange, Head, sha256
from blindopt.audit.reconciliation import Export
from blindopt.errors import AuditUnavailable, IdempotencyKeyMissing, LogBroken, StateConflict, Unauthenticated
from service_kit.context.keys import Seal
from service_kit.context.outbox import Outbox
from service_kit.context.saved_checkpoint import Kept
from service_kit.identity.tokens import Principal, Role, Token, mint, new_principal, parse
from service_kit.store import audit_log, checkpoints, stored_replies, tokens, users
from service_kit.store.base import Clock
from service_kit.store.database import Connection, Database, StoreFault
from service_kit.store.stored_replies import StoredReply

_STUDY = re.compile(r"/v1/studies/(std_[0-9a-f]{16})(?![^/:])")
KEY = re.compile(r"[ -~]{1,200}")
LIVE_TOKENS_MAX = 2
_USED_SECONDS = 60.0
_READY_SECONDS = 1.0
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

    @property
    def is_shared(self) -> bool:
        """Whether both parties tell this exchange. What is about the log is not in it."""
        return self.principal.study_id is not None and not self.path.startswith("/v1/audit/")

    def exchange(self, position: int | None, status: int, reply_sha256: str, *, replayed: bool) -> Exchange:
        """The request with its reply, as the logs tell it."""
        # As the other party tells it: it knows what it asked for, not which study its token opens.
        asked = _STUDY.match(self.path)
        return Exchange(
            study_id=asked[1] if asked else self.principal.study_id or "",
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
    """Authentication, idempotent effects and the log, over one database.

    ``kept`` is a file outside the database that holds a checkpoint of the log, at most a second old: a
    log that was cut or put back to an older state is found at the next start.
    """

    def __init__(
        self,
        database: Database,
        seal: Seal,
        signer: Signer,
        clock: Clock,
        *,
        kept: Path,
        outbox: Outbox | None = None,
    ) -> None:
        self.database = database
        self.clock = clock
        self.signer = signer
        self.outbox = outbox or Outbox()
        """Where what people wait for is written down, to be told by webhook."""
        self._seal = seal
        self._kept = Kept(kept, signer)
        self._fault: str | None = None
        self._used: dict[str, float] = {}
        self._readying = threading.Lock()
        self._looked_at = float("-inf")
        self._unready: Exception | None = None

    @property
    def service(self) -> str:
        """Whose desk it is: ``curator`` or ``modeler``."""
        return self.signer.name.partition(".")[0]

    # --- who comes in -----------------------------------------------------------------------------

    def authenticate(self, authorization: str) -> Principal:
        """The bearer of an Authorization header. Raises Unauthenticated; Expired if the secret is right."""
        scheme, _, text = authorization.partition(" ")
        token = parse(text) if scheme.lower() == "bearer" else None
        if token is not None:
            row = self.database.look(tokens.FIND, kid=token.kid)
            # Unknown and wrong take the same path: a key id is not a secret, its secret is.
            if row is not None and token.matches(row.secret_sha256):
                principal = _principal(row)
                if not tokens.is_live(row, self.clock()):
                    raise Expired(principal)
                self._note_use(row.kid)
                return principal
        raise Unauthenticated(_HOW_TO_ASK)

    def _note_use(self, kid: str) -> None:
        """Store when a token was used, to the minute; nobody waits for it."""
        now = time.monotonic()
        if now - self._used.get(kid, -_USED_SECONDS) >= _USED_SECONDS:
            self._used[kid] = now
            at = self.clock()
            with suppress(AuditUnavailable):
                self.database.submit(lambda db: tokens.used(db, kid, at))

    def check_live(self, db: Connection, principal: Principal) -> None:
        """Unauthenticated if the token was revoked or has expired since it was shown, or the user was disabled."""
        if principal.is_user:
            live = users.is_live(db, principal.kid)
        else:
            row = tokens.find(db, principal.kid)
            live = row is not None and tokens.is_live(row, self.clock())
        if not live:
            raise Unauthenticated(_HOW_TO_ASK)

    def issue(self, role: Role, name: str, *, days: int) -> tuple[Token, Principal]:
        """A token for a new person or program, recorded in the log."""
        who = (new_principal("usr"), role, name, None)
        return self.database.write(lambda db: self._issue(db, *who, days=days, actor="cli"))

    def grant(self, db: Connection, name: str, study_id: str, *, days: int, actor: str) -> tuple[Token, Principal]:
        """A modeler's first token for a study, inside the caller's transaction."""
        return self._issue(db, new_principal("grt"), "modeler", name, study_id, days=days, actor=actor)

    def rotate(
        self, db: Connection, principal: str, *, days: int, actor: str, study_id: str | None = None
    ) -> tuple[Token, Principal]:
        """A further token of a principal; the older one stays until it is revoked. At most two are live.

        Raises NotFound, and StateConflict if there are two already or the principal was shut out.
        """
        rows = tokens.of_principal(db, principal, study_id=study_id)
        live = [row for row in rows if tokens.is_live(row, self.clock())]
        if len(live) >= LIVE_TOKENS_MAX:
            raise StateConflict(f"two tokens are live: revoke one first ({', '.join(row.kid for row in live)})")
        if all(row.revoked_at for row in rows):
            raise StateConflict("all its tokens were revoked: make a new one instead")
        row = rows[0]
        return self._issue(db, row.principal, row.role, row.name, row.study_id, days=days, actor=actor)

    def _issue(
        self, db: Connection, identity: str, role: Role, name: str, study_id: str | None, *, days: int, actor: str
    ) -> tuple[Token, Principal]:
        token, now = mint(), self.clock()
        principal = Principal(id=identity, kid=token.kid, role=role, name=name, study_id=study_id)
        tokens.add(db, token, principal, created=now, expires=now + timedelta(days=days))
        details = {"principal": identity, "kid": token.kid, "role": role, "study_id": study_id}
        audit_log.append(db, "token.issued", actor=actor, now=now, details=details)
        return token, principal

    def withdraw(self, db: Connection, kid: str, *, actor: str) -> None:
        """Refuse a token from now on, recorded in the log. NotFound if there is none."""
        tokens.revoke(db, kid, self.clock())
        audit_log.append(db, "token.revoked", actor=actor, now=self.clock(), details={"kid": kid})

    def tokens(self) -> list[Any]:
        """Tokens without their secrets, in order of creation."""
        with self.database.read() as db:
            return tokens.listed(db)

    # --- what was answered before -----------------------------------------------------------------

    def once(self, asked: Asked, effect: Callable[[Connection], Effect], *, secret: bool = False) -> StoredReply:
        """Run ``effect`` once for this principal and key; later requests get the stored bytes.

        Effect, stored reply and log record are one transaction. ``secret`` seals the stored reply.
        Raises IdempotencyKeyMissing, IdempotencyKeyReused, Unauthenticated, and whatever ``effect`` raises.
        """
        self.key_of(asked)

        def work(db: Connection) -> StoredReply:
            self.check_live(db, asked.principal)  # the body may have come long after the token was shown
            return self.stored(db, asked) or self.settle(db, asked, effect(db), secret=secret)

        return self.database.write(work)

    def key_of(self, asked: Asked) -> tuple[str, str]:
        """The idempotency key and the digest of what was asked under it."""
        if not asked.key or not KEY.fullmatch(asked.key):
            raise IdempotencyKeyMissing("send an Idempotency-Key header of 1 to 200 printable ASCII characters")
        return asked.key, _digest(asked.method, asked.path, asked.body_sha256)

    def stored(self, db: Connection, asked: Asked) -> StoredReply | None:
        """The stored reply of this request, if there is one."""
        found = stored_replies.find(db, asked.principal.id, *self.key_of(asked))
        if found is None:
            return None
        reply, sealed = found
        return replace(reply, body=self._seal.open(reply.body)) if sealed else reply

    def earlier(self, asked: Asked) -> StoredReply | None:
        """``stored`` by itself, for work too long for a transaction."""
        with self.database.read() as db:
            return self.stored(db, asked)

    def settle(self, db: Connection, asked: Asked, done: Effect, *, secret: bool = False) -> StoredReply:
        """Store the reply of an effect and record the exchange, in the effect's transaction."""
        key, digest = self.key_of(asked)
        body = done.reply.model_dump_json().encode()
        kept = StoredReply(done.status, self._seal.close(body) if secret else body)
        stored_replies.add(db, asked.principal.id, key, digest, kept, sealed=secret, now=self.clock())
        receipt = self.record(db, asked, done.status, sha256(body), kind=done.kind, details=done.details)
        return StoredReply(done.status, body, receipt=receipt)

    # --- what the log says ------------------------------------------------------------------------

    def record(
        self,
        db: Connection,
        asked: Asked,
        status: int,
        reply_sha256: str,
        *,
        replayed: bool = False,
        kind: str = "exchange",
        details: dict[str, Any] | None = None,
    ) -> str | None:
        """Record a request and its reply; for an exchange between the parties, its receipt.

        A receipt is the place in the shared log and a signed checkpoint of that log, up to this place.
        """
        self.check_sound()
        exchange = receipt = None
        if asked.is_shared:
            grant = asked.principal.id
            position = audit_log.shared_size(db, grant)
            exchange = asked.exchange(position, status, reply_sha256, replayed=replayed)
            note = self.sign(audit_log.share(db, grant, exchange.body), grant)
            receipt = f"{position} {base64.b64encode(note.encode()).decode()}"
        elif asked.principal.study_id is not None:
            exchange = asked.exchange(None, status, reply_sha256, replayed=replayed)
        actor, now = asked.principal.actor, self.clock()
        audit_log.append(db, kind, actor=actor, now=now, details=details, exchange=exchange)
        return receipt

    def sign(self, head: Head, grant_id: str | None = None) -> str:
        """A signed checkpoint of the service's own log, or of the shared one of a grant."""
        return self.signer.sign(Checkpoint(f"{self.signer.name}/{grant_id or 'log'}", head))

    def head(self, grant_id: str | None = None) -> Head:
        """Size and root of a log."""
        with self.database.read() as db:
            return audit_log.head(db, grant_id)

    def export(self, db: Connection) -> Export:
        """All that this party tells, with a checkpoint of each log as it is now and every signature it holds.

        ``db`` has read nothing yet: the checkpoint that was kept must not be newer than what it sees.
        """
        kept = self._kept.note()
        grants = audit_log.grants(db)
        own = Export(
            service=f"blindopt-{self.service}",
            key=self.signer.verifier.vkey,
            own=list(audit_log.walk(db)),
            shared={grant: list(audit_log.walk(db, grant)) for grant in grants},
            keys=dict(checkpoints.keys(db)),
            notes=[("checkpoint", None, self.sign(audit_log.head(db)))],
        )
        if kept is not None:
            own.notes.append(("checkpoint", None, kept))
        for grant in grants:
            if self.service == "curator":  # who keeps the log signs it
                own.notes.append(("checkpoint", grant, self.sign(audit_log.head(db, grant), grant)))
            own.notes += [("receipt", grant, row.note) for row in checkpoints.receipts(db, grant)]
            own.notes += [("countersignature", grant, note) for note in checkpoints.countersignatures(db, grant)]
        return own

    def guard(self) -> None:
        """Verify the end of the log, now, and keep checkpoints of it outside the database from now on.

        What is wrong makes the service refuse to serve (``check_sound``), not to start: its log can be
        looked at.
        """
        try:
            with self.database.read() as db:
                audit_log.check_gaps(db)
                self._kept.check(db, audit_log.check_end(db))
        except LogBroken as error:
            self._fault = str(error)
            self.tell_broken(str(error))
        else:
            self.database.after_commit(self._keep)

    def _keep(self) -> None:
        if self._kept.is_due():
            self._keep_now()

    def _keep_now(self) -> None:
        # On a connection that is open: after a commit there may be none left, nor a file to open one with.
        self._kept.keep(self.sign(audit_log.head_of(self.database.look(audit_log.LAST))))

    def verify(self) -> tuple[Head, int]:
        """Walk every record of every log, against the checkpoint that was kept; seconds for a long one.

        Size and root, and how many logs of grants there are. Raises LogBroken.
        """
        told = self._kept.head()
        with self.database.read() as db:
            head = merkle_log.verify(audit_log.walk(db), signed={} if told is None else {told.size: told.root})
            grants = audit_log.grants(db)
            for grant in grants:
                merkle_log.verify(audit_log.walk(db, grant), place="position")
        return head, len(grants)

    @property
    def is_sound(self) -> bool:
        """Whether the log verified when the service started."""
        return self._fault is None

    def check_sound(self) -> None:
        """AuditUnavailable if the log did not verify when the service started."""
        if self._fault is not None:
            raise AuditUnavailable(f"the audit log does not verify: {self._fault}")

    def ready(self) -> None:
        """Raise if the database cannot be written or the log's head does not verify.

        The verdict is at most ``_READY_SECONDS`` old: anybody may ask, and each look writes to the disk.
        """
        self.check_sound()
        with self._readying:
            if time.monotonic() - self._looked_at >= _READY_SECONDS:
                self._unready = None
                try:
                    self._look_ready()
                except Exception as error:
                    self._unready = error
                self._looked_at = time.monotonic()
            if self._unready is not None:
                raise self._unready.with_traceback(None)

    def _look_ready(self) -> None:
        try:
            self.database.check_writable()
            with self.database.read() as db:
                audit_log.check_end(db, records=1)
        except (LogBroken, StoreFault) as error:
            self.tell_broken(str(error))
            raise

    def tell_broken(self, fault: str) -> None:
        """Tell by webhook that the log does not verify: each fault once a day while it is found."""
        if not self.outbox.tells("log_failed"):
            return
        now = self.clock()
        once = f"log_failed {now:%Y-%m-%d} {sha256(fault.encode())}"
        with suppress(AuditUnavailable, StoreFault):  # then only its replies say so
            self.database.write(lambda db: self.outbox.tell(db, "log_failed", once=once))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.database.close()

    def close(self) -> None:
        """Finish writes under way, keep a last checkpoint, release the files."""
        try:
            if self._fault is None:
                self._keep_now()
        finally:
            self.database.close()

    def note_restored(self, db: Connection, details: dict[str, Any]) -> None:
        """Record that this is a state from a backup: what came after it is lost."""
        audit_log.append(db, "log.restored", actor="cli", now=self.clock(), details=details)

    def seal(self, clear: bytes) -> bytes:
        """Encrypt a secret for the database."""
        return self._seal.close(clear)

    def unseal(self, sealed: bytes) -> bytes:
        """Read a secret from the database."""
        return self._seal.open(sealed)


@lru_cache(maxsize=1024)  # asked several times for one request
def _digest(method: str, path: str, body_sha256: str) -> str:
    return sha256(f"{method} {path} {body_sha256}".encode())


def _principal(row: Any) -> Principal:
    return Principal(id=row.principal, kid=row.kid, role=row.role, name=row.name, study_id=row.study_id)
