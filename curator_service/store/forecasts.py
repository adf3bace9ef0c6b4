"""The table of forecasts."""

from typing import Any

from sqlalchemy import Column, Float, ForeignKey, Integer, Table, Text, delete, func, select, update

from blindopt.errors import NotFound
from curator_service.store.base import METADATA
from service_kit.store.database import Connection

forecasts = Table(
    "forecasts",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("study_id", Text, ForeignKey("studies.id"), nullable=False, index=True),
    Column("state", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("progress", Float, nullable=False),
    Column("points", Text, nullable=False),
    Column("problem", Text),
    Column("created_at", Text, nullable=False),
    Column("ended_at", Text),
)
_RUNNING = forecasts.c.state == "running"


def find(db: Connection, identity: str, study_id: str | None = None) -> Any:
    """The forecast with this id, of this study if one is given. Raises NotFound."""
    row = db.execute(select(forecasts).where(forecasts.c.id == identity)).one_or_none()
    if row is None or study_id not in (None, row.study_id):
        raise NotFound("there is no such forecast")
    return row


def page(db: Connection, study_id: str, *, after: int, limit: int) -> list[Any]:
    """Forecasts of a study in order of sequence number."""
    where = (forecasts.c.study_id == study_id) & (forecasts.c.seq > after)
    return list(db.execute(select(forecasts).where(where).order_by(forecasts.c.seq).limit(limit)))


def running(db: Connection) -> list[str]:
    """Ids of forecasts that have not ended."""
    return list(db.execute(select(forecasts.c.id).where(_RUNNING).order_by(forecasts.c.seq)).scalars())


def count_running(db: Connection, study_id: str | None = None) -> int:
    """How many forecasts have not ended, of this study if one is given."""
    where = _RUNNING if study_id is None else _RUNNING & (forecasts.c.study_id == study_id)
    return int(db.execute(select(func.count()).where(where)).scalar_one())


def drop(db: Connection, study_id: str) -> int:
    """Delete the forecasts of a study; how many there were."""
    return int(db.execute(delete(forecasts).where(forecasts.c.study_id == study_id)).rowcount)


def end(db: Connection, identity: str, **values: Any) -> bool:
    """End a forecast; False, and nothing is changed, if it has ended already."""
    where = (forecasts.c.id == identity) & _RUNNING
    return bool(db.execute(update(forecasts).where(where).values(**values)).rowcount)
