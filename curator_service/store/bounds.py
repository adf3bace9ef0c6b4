"""The table of private bounds: each was charged to the account of the dataset's file."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Column, ForeignKey, Integer, Table, Text, select, update

from curator_service.store.base import METADATA
from service_kit.store.database import Connection

bounds = Table(
    "bounds",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("dataset_id", Text, ForeignKey("datasets.id"), nullable=False),
    Column("spec", Text, nullable=False),
    Column("result", Text),  # null: charged, and interrupted before its draw
    Column("created_at", Text, nullable=False),
)


def find_bounds(db: Connection, identity: str) -> Any:
    """The bounds with this id, or None."""
    return db.execute(select(bounds).where(bounds.c.id == identity)).one_or_none()


def add_bounds(db: Connection, identity: str, dataset_id: str, spec: str, at: str) -> None:
    """Record bounds without a result, in the transaction of their charge."""
    values = {"id": identity, "dataset_id": dataset_id, "spec": spec, "created_at": at}
    db.execute(bounds.insert(), values)


def settle_bounds(db: Connection, identity: str, result: str) -> None:
    """Store the result of bounds that have none; the first one stays."""
    where = (bounds.c.id == identity) & bounds.c.result.is_(None)
    db.execute(update(bounds).where(where).values(result=result))


def bounds_of(db: Connection, dataset_ids: Iterable[str], *, after: int, limit: int) -> list[Any]:
    """Bounds of these datasets in order."""
    where = bounds.c.dataset_id.in_(list(dataset_ids)) & (bounds.c.seq > after)
    return list(db.execute(select(bounds).where(where).order_by(bounds.c.seq).limit(limit)))
