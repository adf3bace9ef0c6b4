"""The table of tunings."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Column, Float, ForeignKey, Integer, Table, Text, func, select, update

from blindopt.errors import NotFound
from curator_service.store.base import METADATA
from service_kit.store.database import Connection

tunings = Table(
    "tunings",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("dataset_id", Text, ForeignKey("datasets.id"), nullable=False),
    Column("state", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("report", Text, nullable=False),
    Column("progress", Float, nullable=False),
    Column("outcome", Text),
    Column("salt", Text, nullable=False),
    Column("problem", Text),
    Column("created_at", Text, nullable=False),
    Column("ended_at", Text),
)
_RUNNING = tunings.c.state == "running"


def find(db: Connection, identity: str) -> Any:
    """The tuning with this id. Raises NotFound."""
    row = db.execute(select(tunings).where(tunings.c.id == identity)).one_or_none()
    if row is None:
        raise NotFound("there is no such tuning")
    return row


def page(db: Connection, *, after: int, limit: int) -> list[Any]:
    """Tunings in order of sequence number."""
    return list(db.execute(select(tunings).where(tunings.c.seq > after).order_by(tunings.c.seq).limit(limit)))


def running(db: Connection) -> list[str]:
    """Ids of tunings that have not ended."""
    return list(db.execute(select(tunings.c.id).where(_RUNNING).order_by(tunings.c.seq)).scalars())


def count_running(db: Connection) -> int:
    """How many tunings have not ended."""
    return int(db.execute(select(func.count()).where(_RUNNING)).scalar_one())


def end(db: Connection, identity: str, **values: Any) -> bool:
    """End a tuning; False, and nothing is changed, if it has ended already."""
    where = (tunings.c.id == identity) & _RUNNING
    return bool(db.execute(update(tunings).where(where).values(**values)).rowcount)


def every(db: Connection) -> Iterable[Any]:
    """All tunings in order; streamed."""
    return db.execute(select(tunings).order_by(tunings.c.seq))
