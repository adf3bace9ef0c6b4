"""The tables of jobs: forecasts and tunings. A job is ``running`` until it ends, once."""

from typing import Any

from sqlalchemy import Column, Float, ForeignKey, Integer, Text, delete, func, select, update
from sqlalchemy import Table as Table

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


def running(db: Connection, jobs: Table) -> list[str]:
    """Ids of jobs that have not ended, in order."""
    return list(db.execute(select(jobs.c.id).where(jobs.c.state == "running").order_by(jobs.c.seq)).scalars())


def count_running(db: Connection, jobs: Table, study_id: str | None = None) -> int:
    """How many jobs have not ended, of this study if one is given."""
    where = jobs.c.state == "running"
    where = where if study_id is None else where & (jobs.c.study_id == study_id)
    return int(db.execute(select(func.count()).where(where)).scalar_one())


def tunings_on(db: Connection, dataset_id: str) -> list[Any]:
    """Tunings of a dataset, and running ones that train on it, in order."""
    trains = (tunings.c.state == "running") & tunings.c.spec.contains(dataset_id)
    where = (tunings.c.dataset_id == dataset_id) | trains
    return list(db.execute(select(tunings).where(where).order_by(tunings.c.seq)))


def is_forecast_from(db: Connection, dataset_id: str) -> bool:
    """Whether a forecast that has not ended takes its rows from a dataset."""
    where = (forecasts.c.state == "running") & forecasts.c.spec.contains(dataset_id)
    return db.execute(select(forecasts.c.seq).where(where)).first() is not None


def end(db: Connection, jobs: Table, identity: str, **values: Any) -> bool:
    """End a job; False, and nothing is changed, if it has ended already."""
    where = (jobs.c.id == identity) & (jobs.c.state == "running")
    return bool(db.execute(update(jobs).where(where).values(**values)).rowcount)


def sweep_forecasts(db: Connection, before: str) -> int:
    """Delete forecasts that ended before a time; how many there were."""
    return int(db.execute(delete(forecasts).where(forecasts.c.ended_at < before)).rowcount)


def drop_forecasts(db: Connection, study_id: str) -> int:
    """Delete the forecasts of a study; how many there were."""
    return int(db.execute(delete(forecasts).where(forecasts.c.study_id == study_id)).rowcount)
