"""Deletion of a run, and what is read before and after it."""

from typing import Any

from sqlalchemy import Row, func, select

from modeler_service.store import messages, observations, runs, trials, versions
from service_kit.store.database import Connection
from service_kit.store.labels import remove


def delete_run(db: Connection, identity: str) -> None:
    """Delete a run with its trials, versions of answers, past measurements and messages."""
    for table in (trials, versions, observations, messages.messages):
        remove(db, table, table.c.run_id == identity)
    remove(db, runs, runs.c.id == identity)


def run_ids(db: Connection) -> set[str]:
    """Ids of all runs."""
    return set(db.execute(select(runs.c.id)).scalars())


def release_digests(db: Connection) -> set[str]:
    """Digests of the releases of all runs that have seen their study."""
    digest = func.json_extract(runs.c.study, "$.release_sha256")
    return set(db.execute(select(digest).where(runs.c.study.is_not(None)).distinct()).scalars())


def unanswered_trials(db: Connection, run_id: str) -> list[Row[Any]]:
    """Trials of a run without an answer, in order."""
    where = (trials.c.run_id == run_id) & trials.c.answered_at.is_(None)
    return list(db.execute(select(trials.c.number, trials.c.query).where(where).order_by(trials.c.number)))
