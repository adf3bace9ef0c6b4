"""Stored replies by principal and idempotency key, kept for the life of the database."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    bindparam,
    cast,
    func,
    literal_column,
    or_,
    select,
    update,
)

from blindopt.errors import Erased, IdempotencyKeyReused
from blindopt.values import value
from service_kit.store.base import ERASABLE, METADATA
from service_kit.store.prepared_statement import Ahead, PreparedStatement
from service_kit.store.schema import unguarded

_replies = Table(
    "replies",
    METADATA,
    Column("principal", Text, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("request_sha256", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False, info=ERASABLE),
    Column("sealed", Integer, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("log_seq", Integer),  # of the record of this exchange; a reply of before schema 13 has none
    PrimaryKeyConstraint("principal", "idempotency_key"),
)
_FIND = PreparedStatement(
    select(_replies).where(
        _replies.c.principal == bindparam("principal"), _replies.c.idempotency_key == bindparam("key")
    )
)
_ADD = PreparedStatement(_replies.insert())


@value
class StoredReply:
    """The exact bytes of a reply, whether an earlier request stored them, and the receipt of the exchange if any."""

    status: int
    body: bytes
    replayed: bool = False
    receipt: str | None = None


_ERASED, _DESCRIBES = b'{"erased":"', b'{"id":"'


def erased_marker(identity: str) -> bytes:
    """What takes the place of a reply that was erased with what has this id; no reply begins so."""
    return _ERASED + identity.encode() + b'"}'


def is_erased(body: object) -> bool:
    return isinstance(body, bytes) and body.startswith(_ERASED)


def describes(body: bytes) -> bool:
    """Whether a stored body describes anything with an id, so that an erasure takes it."""
    return body.startswith(_DESCRIBES)


def check_not_erased(body: bytes) -> None:
    """Raise Erased if a marker is in the place of a stored body."""
    if is_erased(body):
        raise Erased("the reply to this request was erased, with the records that it was about")


def check_same_request(stored_digest: str, *digests: str) -> None:
    """Raise IdempotencyKeyReused if the key was stored with another request than has one of these ``digests``."""
    if stored_digest not in digests:
        raise IdempotencyKeyReused("this Idempotency-Key belongs to another request: take a new one")


def ahead_of(principal: str, key: str) -> Ahead:
    """What ``find`` will read."""
    return _FIND, {"principal": principal, "key": key}


class Stored(NamedTuple):
    """A stored reply, whether it is sealed, and the position of its record in the log."""

    reply: StoredReply
    sealed: bool
    log_seq: int | None


def find(db: Connection, principal: str, key: str, digests: Iterable[str] | None) -> Stored | None:
    """The stored reply; None if there is none. Raises IdempotencyKeyReused unless ``digests`` is None, and Erased."""
    row = _FIND.row(db, principal=principal, key=key)
    if row is None:
        return None
    if digests is not None:
        check_same_request(row.request_sha256, *digests)
    check_not_erased(row.body)
    return Stored(StoredReply(row.status, row.body, replayed=True), bool(row.sealed), row.log_seq)


def add(
    db: Connection,
    principal: str,
    key: str,
    request_sha256: str,
    reply: StoredReply,
    *,
    sealed: bool,
    at: str,
    log_seq: int,
) -> None:
    """Store a reply, in the transaction of its effect, after the record of the exchange: its time and position."""
    _ADD.run(
        db,
        principal=principal,
        idempotency_key=key,
        request_sha256=request_sha256,
        status=reply.status,
        body=reply.body,
        sealed=int(sealed),
        created_at=at,
        log_seq=log_seq,
    )


_AT_ONCE = 100
_OF_GRANTS = (_replies.c.sealed == 0) & or_(
    _replies.c.principal.startswith("grt_", autoescape=True),
    _replies.c.principal.startswith("std_", autoescape=True),  # answers for every grant of a study
)
# Cast, because a row that was changed by hand may hold something other than bytes.
_ANSWER_COLUMNS = _replies.c.status, cast(_replies.c.body, LargeBinary).label("body")
_ANSWER = PreparedStatement(
    select(*_ANSWER_COLUMNS).where(
        _replies.c.principal == bindparam("principal"),
        _replies.c.idempotency_key == bindparam("key"),
        _replies.c.sealed == literal_column("0"),
    )
)


def answer(db: Connection, principal: str, key: str) -> Any:
    """Status and body of the reply under a key, if it is not sealed; else None."""
    return _ANSWER.row(db, principal=principal, key=key)


class Answers:
    """Replies to modelers, for a reader who follows the log.

    One statement streams them as they lie in the table, where they mostly are in the order of the log; what is not the
    next one there is looked up.
    """

    def __init__(self, db: Connection) -> None:
        log_seq = cast(_replies.c.log_seq, Integer).label("log_seq")
        columns = log_seq, _replies.c.principal, _replies.c.idempotency_key, *_ANSWER_COLUMNS
        query = select(*columns).where(_replies.c.sealed == 0, _replies.c.log_seq.is_not(None))
        self._db = db
        self._rows = iter(db.execute(query.execution_options(yield_per=_AT_ONCE)))
        self._next = next(self._rows, None)

    def find(self, principal: str, key: str, log_seq: int) -> Any:
        """Status and body of the reply under a key, as ``answer``; the record at ``log_seq`` is of its exchange."""
        while self._next is not None and self._next.log_seq < log_seq:
            self._next = next(self._rows, None)
        row = self._next
        if row is None or (row.principal, row.idempotency_key) != (principal, key):
            return answer(self._db, principal, key)
        return row


def answers_of(db: Connection, principal: str) -> Any:
    """Stream key and body of every reply to a modeler."""
    columns = _replies.c.idempotency_key, cast(_replies.c.body, LargeBinary).label("body")
    return db.execute(select(*columns).where(_replies.c.principal == principal, _replies.c.sealed == 0))


def count_answers(db: Connection) -> int:
    return int(db.execute(select(func.count()).select_from(_replies).where(_OF_GRANTS)).scalar_one())


def answer_keys(db: Connection) -> Any:
    """Stream grant and key of every reply to a modeler."""
    return db.execute(select(_replies.c.principal, _replies.c.idempotency_key).where(_OF_GRANTS))


def forget(db: Connection, identity: str, instead: bytes) -> None:
    """Replace every stored reply that describes what has this id: ``id`` is the first member of such a reply."""
    where = (_replies.c.sealed == 0) & _begins(_DESCRIBES + f'{identity}"'.encode())
    with unguarded(db, _replies.name):
        db.execute(update(_replies).where(where).values(body=instead))


def forget_all(db: Connection, principals: Iterable[str], instead: bytes) -> int:
    """Replace every stored reply to these principals that describes anything with an id; how many there were."""
    replaced = 0
    with unguarded(db, _replies.name):
        for principal in principals:
            where = (_replies.c.principal == principal) & (_replies.c.sealed == 0) & _begins(_DESCRIBES)
            replaced += int(db.execute(update(_replies).where(where).values(body=instead)).rowcount)
    return replaced


def _begins(start: bytes) -> ColumnElement[bool]:
    """Whether a stored body, which is a text in UTF-8, begins so."""
    return (_replies.c.body >= start) & (_replies.c.body < start + b"\xff")


def sealed_bodies(db: Connection, limit: int | None = None) -> Iterator[bytes]:
    yield from db.execute(select(_replies.c.body).where(_replies.c.sealed == 1).limit(limit)).scalars()


def seal_anew(db: Connection, again: Callable[[bytes], bytes]) -> None:
    """Replace the body of every sealed reply by what ``again`` makes of it."""
    with unguarded(db, _replies.name):
        for row in db.execute(select(_replies).where(_replies.c.sealed == 1)).all():
            of = (_replies.c.principal == row.principal) & (_replies.c.idempotency_key == row.idempotency_key)
            db.execute(update(_replies).where(of).values(body=again(row.body)))
