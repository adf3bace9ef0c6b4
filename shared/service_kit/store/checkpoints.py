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

from blindopt.audit.checkpoints import Countersignature, Receipt
from service_kit.store.audit_log import RowsOfGrants
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
RECEIPTS = RowsOfGrants(_receipts, Receipt)
COUNTERSIGNATURES = RowsOfGrants(_countersignatures, Countersignature)


def key_of(db: Connection, subject: str) -> str | None:
    """The verifier key that is pinned for a study or a grant, or None."""
    row = _KEY.row(db, name=subject)
    return None if row is None else str(row.vkey)


def pin(db: Connection, subject: str, vkey: str, now: datetime) -> None:
    """Store the first key of a subject. It never changes."""
    db.execute(_keys.insert().values(subject=subject, vkey=vkey, created_at=stamp(now)))


def keys(db: Connection) -> list[tuple[str, str]]:
    return [(row.subject, row.vkey) for row in db.execute(select(_keys).order_by(_keys.c.subject))]


def next_receipt(db: Connection, grant_id: str, seq: int) -> int:
    """The first position from ``seq`` on with a receipt; ``seq`` if there is none."""
    where = (_receipts.c.grant_id == grant_id) & (_receipts.c.seq >= seq)
    position = db.execute(select(func.min(_receipts.c.seq)).where(where)).scalar_one()
    return seq if position is None else int(position)


def grants(db: Connection) -> list[str]:
    return list(db.execute(select(_receipts.c.grant_id).distinct().order_by(_receipts.c.grant_id)).scalars())


def receipts(db: Connection, grant_id: str) -> Iterator[Any]:
    yield from db.execute(select(_receipts).where(_receipts.c.grant_id == grant_id).order_by(_receipts.c.seq))


def countersignatures(db: Connection, grant_id: str) -> list[str]:
    query = select(_countersignatures.c.note).where(_countersignatures.c.grant_id == grant_id)
    return list(db.execute(query.order_by(_countersignatures.c.size)).scalars())
