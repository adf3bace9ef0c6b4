"""Tables that both services have: tokens, stored replies, the audit log."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    bindparam,
    select,
    update,
)

from shared import audit
from shared.audit import Entry, Exchange, Head
from shared.errors import IdempotencyKeyReused, NotFound
from shared.serving.tokens import Principal, Token

Clock = Callable[[], datetime]
METADATA = MetaData()
APPEND_ONLY = ("log", "replies")

_tokens = Table(
    "tokens",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("kid", Text, nullable=False, unique=True),
    Column("role", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("study_id", Text),
    Column("secret_sha256", LargeBinary, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("expires_at", Text, nullable=False),
    Column("revoked_at", Text),
)
_replies = Table(
    "replies",
    METADATA,
    Column("kid", Text, ForeignKey("tokens.kid"), nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("request_sha256", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("sealed", Integer, nullable=False),
    Column("created_at", Text, nullable=False),
    PrimaryKeyConstraint("kid", "idempotency_key"),
)
_log = Table(
    "log",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    Column("leaf", LargeBinary, nullable=False),
    Column("peaks", LargeBinary, nullable=False),
)

# Made once: building a statement costs more than running it.
_FIND_TOKEN = select(_tokens).where(_tokens.c.kid == bindparam("kid"))
_FIND_REPLY = select(_replies).where(_replies.c.kid == bindparam("kid"), _replies.c.idempotency_key == bindparam("key"))
_ADD_REPLY = _replies.insert()
_LAST_RECORD = select(_log).order_by(_log.c.seq.desc()).limit(1)
_ADD_RECORD = _log.insert()


def stamp(moment: datetime) -> str:
    """RFC 3339 UTC with microseconds: sorts as text."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def moment(text: str) -> datetime:
    """The reverse of ``stamp``."""
    return datetime.fromisoformat(text)


class Tokens:
    """Tokens by key id. Holds hashes, never secrets."""

    @staticmethod
    def add(db: Connection, token: Token, principal: Principal, *, created: datetime, expires: datetime) -> None:
        """Store the hash of a new token."""
        db.execute(
            _tokens.insert().values(
                kid=principal.kid,
                role=principal.role,
                name=principal.name,
                study_id=principal.study_id,
                secret_sha256=token.secret_sha256,
                created_at=stamp(created),
                expires_at=stamp(expires),
            )
        )

    @staticmethod
    def find(db: Connection, kid: str) -> Any:
        """The row of a key id, or None."""
        return db.execute(_FIND_TOKEN, {"kid": kid}).one_or_none()

    @staticmethod
    def listed(db: Connection, *, study_id: str | None = None, after: int = 0, limit: int = 1_000) -> list[Any]:
        """Rows in order of creation; those of one study where given."""
        query = select(_tokens).where(_tokens.c.seq > after).order_by(_tokens.c.seq).limit(limit)
        if study_id is not None:
            query = query.where(_tokens.c.study_id == study_id)
        return list(db.execute(query))

    @staticmethod
    def revoke(db: Connection, kid: str, *, study_id: str | None, now: datetime) -> Any:
        """Refuse the token from now on; again changes nothing. NotFound if there is none (of that study)."""
        row = Tokens.find(db, kid)
        if row is None or study_id not in (None, row.study_id):
            raise NotFound("there is no such token")
        if row.revoked_at is None:
            db.execute(update(_tokens).where(_tokens.c.kid == kid).values(revoked_at=stamp(now)))
        return Tokens.find(db, kid)


@dataclass(frozen=True, slots=True)
class StoredReply:
    """The exact bytes of a reply, and whether they were stored by an earlier request."""

    status: int
    body: bytes
    replayed: bool = False


class Replies:
    """Replies by principal and idempotency key, kept for the life of the database."""

    @staticmethod
    def find(db: Connection, kid: str, key: str, request_sha256: str) -> tuple[StoredReply, bool] | None:
        """The stored reply and whether it is sealed; IdempotencyKeyReused for another request."""
        row = db.execute(_FIND_REPLY, {"kid": kid, "key": key}).one_or_none()
        if row is None:
            return None
        if row.request_sha256 != request_sha256:
            raise IdempotencyKeyReused("this Idempotency-Key belongs to another request: take a new one")
        return StoredReply(row.status, row.body, replayed=True), bool(row.sealed)

    @staticmethod
    def add(
        db: Connection, kid: str, key: str, request_sha256: str, reply: StoredReply, *, sealed: bool, now: datetime
    ) -> None:
        """Store a reply, in the transaction of its effect."""
        values = {
            "kid": kid,
            "idempotency_key": key,
            "request_sha256": request_sha256,
            "status": reply.status,
            "body": reply.body,
            "sealed": int(sealed),
            "created_at": stamp(now),
        }
        db.execute(_ADD_REPLY, values)


class Log:
    """The audit log of one service. ``append`` takes part in the caller's transaction."""

    @staticmethod
    def append(
        db: Connection,
        kind: str,
        *,
        actor: str,
        now: datetime,
        details: dict[str, Any] | None = None,
        exchange: Exchange | None = None,
    ) -> Entry:
        """Add one record. ``details`` must hold no private value: auditors read the log."""
        last = db.execute(_LAST_RECORD).one_or_none()
        seq = 0 if last is None else last.seq + 1
        peaks = [] if last is None else _frontier(last.peaks)
        record: dict[str, Any] = {"v": 1, "seq": seq, "time": stamp(now), "kind": kind, "actor": actor}
        if details:
            record["details"] = details
        if exchange is not None:
            record["exchange"] = exchange.as_json()
        body = audit.canonical(record)
        leaf = audit.leaf_hash(body)
        entry = Entry(seq=seq, body=body, leaf=leaf, peaks=b"".join(audit.grow(peaks, seq, leaf)))
        db.execute(_ADD_RECORD, {"seq": seq, "body": body, "leaf": leaf, "peaks": entry.peaks})
        return entry

    @staticmethod
    def walk(db: Connection, *, after: int = -1, limit: int = -1) -> Iterator[Entry]:
        """Entries in order, streamed."""
        query = select(_log).where(_log.c.seq > after).order_by(_log.c.seq).limit(limit)
        for row in db.execute(query):
            yield Entry(seq=row.seq, body=row.body, leaf=row.leaf, peaks=row.peaks)

    @staticmethod
    def head(db: Connection) -> Head:
        """Size and root, from the last stored frontier."""
        last = db.execute(_LAST_RECORD).one_or_none()
        if last is None:
            return Head(size=0, root=audit.root([]).hex())
        return Head(size=last.seq + 1, root=audit.root(_frontier(last.peaks)).hex())


def _frontier(peaks: bytes) -> list[bytes]:
    return [peaks[i : i + 32] for i in range(0, len(peaks), 32)]
