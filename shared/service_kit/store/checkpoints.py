"""Signatures of the other party: its pinned key, its receipts, and countersigned checkpoints."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    bindparam,
    func,
    select,
)

from service_kit.store.base import METADATA, stamp
from service_kit.store.prepared_statement import PreparedStatement

_keys = Table(
    "keys",
    METADATA,
    Column("subject", Text, primary_key=True),
    Column("vkey", Text, nullable=False),
    Column("created_at", Text, nullable=False),
)
_receipts = Table(
    "receipts",
    METADATA,
    Column("grant_id", Text, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("note", Text, nullable=False),
    PrimaryKeyConstraint("grant_id", "seq"),
)
_countersignatures = Table(
    "countersignatures",
    METADATA,
    Column("grant_id", Text, nullable=False),
    Column("size", Integer, nullable=False),
    Column("note", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    PrimaryKeyConstraint("grant_id", "size"),
)


_KEY = PreparedStatement(select(_keys.c.vkey).where(_keys.c.subject == bindparam("name")), kept=True)
_RECEIPT = PreparedStatement(
    select(_receipts).where(_receipts.c.grant_id == bindparam("grant"), _receipts.c.seq == bindparam("position"))
)
_LAST_RECEIPT = PreparedStatement(
    select(_receipts.c.seq).where(_receipts.c.grant_id == bindparam("grant")).order_by(_receipts.c.seq.desc()).limit(1),
    kept=True,
)
_ADD_RECEIPT = PreparedStatement(_receipts.insert())


def key_of(db: Connection, subject: str) -> str | None:
    """The verifier key that is pinned for a study or a grant, or None."""
    row = _KEY.row(db, name=subject)
    return None if row is None else str(row.vkey)


def pin(db: Connection, subject: str, vkey: str, now: datetime) -> None:
    """Store the first key of a subject. It never changes."""
    db.execute(_keys.insert().values(subject=subject, vkey=vkey, created_at=stamp(now)))


def keys(db: Connection) -> list[tuple[str, str]]:
    """Every pinned key with its subject."""
    return [(row.subject, row.vkey) for row in db.execute(select(_keys).order_by(_keys.c.subject))]


def keep_receipt(db: Connection, grant_id: str, seq: int, body: bytes, note: str) -> None:
    """Store the curator's signature that an exchange has this position."""
    last = last_receipt(db, grant_id)
    _ADD_RECEIPT.run(db, grant_id=grant_id, seq=seq, body=body, note=note)
    _LAST_RECEIPT.remember(db, (max(last, seq),), grant=grant_id)


def receipt(db: Connection, grant_id: str, seq: int) -> Any:
    """The receipt of a position, or None."""
    return _RECEIPT.row(db, grant=grant_id, position=seq)


def last_receipt(db: Connection, grant_id: str) -> int:
    """The highest position with a receipt; -1 if there is none."""
    last = _LAST_RECEIPT.row(db, grant=grant_id)
    return -1 if last is None else int(last.seq)


def next_receipt(db: Connection, grant_id: str, seq: int) -> int:
    """The first position from ``seq`` on with a receipt; ``seq`` if there is none."""
    where = (_receipts.c.grant_id == grant_id) & (_receipts.c.seq >= seq)
    position = db.execute(select(func.min(_receipts.c.seq)).where(where)).scalar_one()
    return seq if position is None else int(position)


def grants(db: Connection) -> list[str]:
    """The grants that have receipts."""
    return list(db.execute(select(_receipts.c.grant_id).distinct().order_by(_receipts.c.grant_id)).scalars())


def receipts(db: Connection, grant_id: str) -> Iterator[Any]:
    """Stream the receipts of a grant in the order of their positions."""
    yield from db.execute(select(_receipts).where(_receipts.c.grant_id == grant_id).order_by(_receipts.c.seq))


def countersign(db: Connection, grant_id: str, size: int, note: str, now: datetime) -> None:
    """Store a countersigned checkpoint."""
    db.execute(_countersignatures.insert().values(grant_id=grant_id, size=size, note=note, created_at=stamp(now)))


def countersignature(db: Connection, grant_id: str, size: int) -> str | None:
    """The countersigned checkpoint of this size, or None."""
    where = (_countersignatures.c.grant_id == grant_id) & (_countersignatures.c.size == size)
    return db.execute(select(_countersignatures.c.note).where(where)).scalar_one_or_none()


def countersignatures(db: Connection, grant_id: str) -> list[str]:
    """The countersigned checkpoints of a grant, by size."""
    query = select(_countersignatures.c.note).where(_countersignatures.c.grant_id == grant_id)
    return list(db.execute(query.order_by(_countersignatures.c.size)).scalars())
