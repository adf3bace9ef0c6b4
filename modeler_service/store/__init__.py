"""The modeler's tables: runs, trials, answer versions and past observations. SQL is in this package alone."""

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Row,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    func,
    select,
    text,
    update,
)

from blindopt import wire
from blindopt.errors import NotFound
from modeler_service.store import messages as messages
from modeler_service.store.base import APPEND_ONLY as APPEND_ONLY
from modeler_service.store.base import METADATA as METADATA
from modeler_service.store.base import MIGRATIONS as MIGRATIONS
from service_kit.store.base import page_of
from service_kit.store.database import Connection
from service_kit.store.labels import EVERYTHING, ListFilter
from service_kit.store.prepared_statement import PreparedStatement

runs = Table(
    "runs",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("state", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("sealed_token", LargeBinary, nullable=False),
    Column("study", Text),
    Column("created_at", Text, nullable=False),
    Column("started_at", Text),
    Column("lease", Integer, nullable=False, default=0),
    Column("heartbeat_at", Text),
    Column("stop_asked_at", Text),
    Column("pause_asked_at", Text),
    Column("waiting_since", Text),
    Column("waits", Integer, nullable=False, default=0),
    Column("waits_until", Text),
    Column("waiting_for", Text),  # of the present wait, or the last one
    Column("looked_at", Text),  # while a query is pending: when its curator last confirmed it
    Column("revision", Integer, nullable=False, default=0),  # the last revision of the curator that was read
    Column("ended_at", Text),
    Column("ended_because", Text),
    Column("problem", Text),
    Column("warnings", Text),
    Column("recommendation", Text),
    Column("plan", Text),  # with the study: how rows are chosen; null in runs from before version 8
    Column("engine", Text),  # what its candidates were last computed with: for information, no choice depends on it
    Column("archived_at", Text),
    Column("note", Text),
    Column("tags", Text),  # a JSON list; null: none
)
trials = Table(
    "trials",
    METADATA,
    Column("run_id", Text, ForeignKey("runs.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("query", Integer, nullable=False),  # number of the first trial that was chosen with it
    Column("phase", Text, nullable=False),
    Column("row", Integer, nullable=False),
    Column("mean", Float),
    Column("sd", Float),
    Column("acquisition", Float),
    Column("ties", Integer, nullable=False),
    Column("chosen_at", Text, nullable=False),
    Column("asked_at", Text),  # when the query was accepted, to be answered later, or refused for some of its rows
    Column("answered_at", Text),
    Column("query_id", Text),
    Column("y", Float),
    Column("declined", Integer, nullable=False, default=0),
    Column("version", Integer),
    Column("plays", Integer),
    Column("passport", Text),
    Column("reply", LargeBinary),  # of the query, in the row of its first trial
    Column("fitted", Text),  # the hyper-parameters of the choice, if they are new
    PrimaryKeyConstraint("run_id", "number"),
    # Pages of long runs read these alone, and not the replies beside them.
    Index("trials_by_y", "run_id", "y", "number"),
    Index("trials_of_curve", "run_id", "number", "y", "mean", "sd", "row", "acquisition", "phase", "declined"),
    Index("trials_declined", "run_id", sqlite_where=text("declined = 1")),
    Index("trials_pending", "run_id", "asked_at", sqlite_where=text("asked_at IS NOT NULL AND answered_at IS NULL")),
    Index("trials_fitted", "run_id", "number", sqlite_where=text("fitted IS NOT NULL")),
)
versions = Table(
    "versions",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("run_id", Text, ForeignKey("runs.id"), nullable=False),
    Column("query", Integer, nullable=False),  # number of its first trial
    Column("version", Integer, nullable=False),  # 0: it is pending
    Column("after", Integer, nullable=False),  # how many trials were chosen by then
    Column("at", Text, nullable=False),
    Column("reply", LargeBinary, nullable=False),
    UniqueConstraint("run_id", "query", "version"),
)
"""Every version of the replies to queries that people answer; a trial has the last version alone."""
observations = Table(
    "observations",
    METADATA,
    Column("run_id", Text, ForeignKey("runs.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("row", Integer, nullable=False),
    Column("y", Float, nullable=False),
    Column("noise_variance", Float),
    Column("passport", Text),  # of an answer of an earlier run that this one continues
    PrimaryKeyConstraint("run_id", "number"),
)


_RUN = PreparedStatement(select(runs).where(runs.c.id == bindparam("identity")))
_BEAT = PreparedStatement(
    update(runs)
    .where((runs.c.id == bindparam("identity")) & (runs.c.lease == bindparam("number")))
    .values(heartbeat_at=bindparam("now"))
)
_ANSWERS = ("answered_at", "query_id", "y", "declined", "version", "plays", "passport", "reply")
_ANSWER_TRIAL = PreparedStatement(
    update(trials)
    .where((trials.c.run_id == bindparam("identity")) & (trials.c.number == bindparam("trial")))
    .values({name: bindparam(f"new_{name}") for name in _ANSWERS})
)
_ADD_TRIAL = PreparedStatement(
    trials.insert(),
    ["run_id", "number", "query", "phase", "row", "mean", "sd", "acquisition", "ties", "chosen_at", "fitted",
     "declined"],
)  # fmt: skip


def add_run(db: Connection, **values: Any) -> None:
    """Add one run."""
    db.execute(runs.insert(), values)


def change_run(db: Connection, identity: str, **values: Any) -> None:
    """Change the run with this id."""
    db.execute(update(runs).where(runs.c.id == identity).values(**values))


def run(db: Connection, identity: str) -> Any:
    """The run with this id. Raises NotFound."""
    row = _RUN.row(db, identity=identity)
    if row is None:
        raise NotFound("there is no such run")
    return row


def run_page(
    db: Connection, *, position: int | None, newest: bool, limit: int, chosen: ListFilter = EVERYTHING
) -> list[Row[Any]]:
    """Runs after a sequence number in order, or before it with the newest first; None: from the first or the last."""
    query = select(runs).where(*chosen.of(runs))
    return list(db.execute(page_of(query, runs.c.seq, position=position, newest=newest, limit=limit)))


def states(db: Connection) -> list[tuple[str, str | None, int]]:
    """Count the runs that are not archived by state, and by what they wait for or last waited for."""
    query = select(runs.c.state, runs.c.waiting_for, func.count()).where(runs.c.archived_at.is_(None))
    query = query.group_by(runs.c.state, runs.c.waiting_for)
    return [(state, waits, count) for state, waits, count in db.execute(query)]


def unfinished(db: Connection) -> list[Row[Any]]:
    """Runs that are queued, under way or waiting, oldest first."""
    states = ("queued", "running", "waiting")
    return list(db.execute(select(runs).where(runs.c.state.in_(states)).order_by(runs.c.seq)))


def take(db: Connection, identity: str, now: str) -> int:
    """Give the run a new lease, and return its number. The worker with the lease before can write no more."""
    lease = int(run(db, identity).lease) + 1
    change_run(db, identity, lease=lease, heartbeat_at=now)
    return lease


def beat(db: Connection, identity: str, lease: int, now: str) -> bool:
    """Note that the worker with this lease is alive; return False if the run has another lease."""
    return _BEAT.run(db, identity=identity, number=lease, now=now) == 1


def add_trial(db: Connection, **values: Any) -> None:
    """Add one trial, not yet answered."""
    _ADD_TRIAL.run(db, declined=0, **values)


def answer_trial(db: Connection, run_id: str, number: int, **values: Any) -> None:
    """Store the answer of a trial; a column without a value becomes empty."""
    _ANSWER_TRIAL.run(db, identity=run_id, trial=number, **{f"new_{name}": values.get(name) for name in _ANSWERS})


def ask_trials(db: Connection, run_id: str, first: int, count: int, *, asked_at: str, query_id: str | None) -> None:
    """Store that the curator accepted the query of ``count`` trials from ``first`` on; None: that it refused it."""
    where = (trials.c.run_id == run_id) & trials.c.number.between(first, first + count - 1)
    db.execute(update(trials).where(where).values(asked_at=asked_at, query_id=query_id))


def add_version(db: Connection, run_id: str, first: int, version: int, *, at: str, reply: bytes) -> None:
    """Store a version of the reply to the query that begins with trial ``first``."""
    after = db.execute(select(func.max(trials.c.number)).where(trials.c.run_id == run_id)).scalar_one()
    values = {"run_id": run_id, "query": first, "version": version, "after": after, "at": at, "reply": reply}
    db.execute(versions.insert(), values)


def version_page(db: Connection, run_id: str) -> list[Row[Any]]:
    """All versions of a run's replies, in the order of arrival."""
    return list(db.execute(select(versions).where(versions.c.run_id == run_id).order_by(versions.c.seq)))


def settings(db: Connection) -> Iterable[Row[Any]]:
    """Stream id and spec of every run."""
    return db.execute(select(runs.c.id, runs.c.spec).order_by(runs.c.seq))


def runs_with_versions(db: Connection) -> list[str]:
    """Runs that have versions of a reply."""
    return list(db.execute(select(versions.c.run_id).distinct().order_by(versions.c.run_id)).scalars())


def last_version(db: Connection, run_id: str) -> int:
    """The sequence number of the last version of a run's replies; 0 if there is none."""
    return int(db.execute(select(func.max(versions.c.seq)).where(versions.c.run_id == run_id)).scalar() or 0)


def corrected(db: Connection, run_id: str, *, since: int, until: int) -> list[Row[Any]]:
    """Trials up to number ``until`` with another version of their answer after sequence number ``since``."""
    earlier = versions.alias()
    before = (earlier.c.run_id == run_id) & (earlier.c.query == versions.c.query) & (earlier.c.version > 0)
    again = select(versions.c.query).where(
        (versions.c.run_id == run_id)
        & (versions.c.seq > since)
        & select(earlier.c.seq).where(before & (earlier.c.seq < versions.c.seq)).exists()
    )
    of_run = select(trials.c.query_id).where(trials.c.run_id == run_id, trials.c.number.in_(again))
    where = (trials.c.run_id == run_id) & (trials.c.number <= until) & trials.c.query_id.in_(of_run)
    return list(db.execute(select(trials).where(where).order_by(trials.c.number)))


def trial(db: Connection, run_id: str, number: int) -> Row[Any] | None:
    """One trial, or None."""
    where = (trials.c.run_id == run_id) & (trials.c.number == number)
    return db.execute(select(trials).where(where)).one_or_none()


def query_rows(db: Connection, run_id: str, first: int) -> list[int]:
    """The rows of the choice whose first trial has this number, in order; none where no choice begins there."""
    where = (trials.c.run_id == run_id) & (trials.c.query == first)
    return list(db.execute(select(trials.c.row).where(where).order_by(trials.c.number)).scalars())


def pending_queries(db: Connection, run_id: str) -> set[str]:
    """Ids of the queries of a run that wait to be measured."""
    where = (trials.c.run_id == run_id) & trials.c.asked_at.is_not(None) & trials.c.answered_at.is_(None)
    return set(db.execute(select(trials.c.query_id).where(where)).scalars())


def takes_time(db: Connection, run_id: str) -> bool:
    """Whether people or a system measure for the study of a run."""
    study = run(db, run_id).study
    return study is not None and json.loads(study).get("measurement_source", "column") != "column"


def trial_page(
    db: Connection, run_id: str, *, position: int | None = None, newest: bool = False, limit: int = -1
) -> list[Row[Any]]:
    """Trials after a number in order, or before it with the newest first; None: from the first or the last."""
    query = select(trials).where(trials.c.run_id == run_id)
    return list(db.execute(page_of(query, trials.c.number, position=position, newest=newest, limit=limit)))


def curve(
    db: Connection, run_id: str, points: int, *, largest: bool, first: int = 1, last: int | None = None
) -> tuple[int, list[Row[Any]]]:
    """Return the number of trials of a run, and at most ``points`` evenly spaced trials with the best y so far.

    The points are from trial ``first`` to ``last``; the best is that of all trials until then.
    """
    of_run = trials.c.run_id == run_id
    count = db.execute(select(func.count()).select_from(trials).where(of_run)).scalar_one()
    best = (func.max if largest else func.min)(trials.c.y).over(order_by=trials.c.number)
    columns = (trials.c[name] for name in ("number", "y", "mean", "sd"))
    rows = select(*columns, best.label("best")).where(of_run).subquery()
    last = count if last is None else min(last, count)
    every = max(1, -(-(last - first + 1) // (points - 1)))
    chosen = rows.c.number.between(first, last) & (((rows.c.number - first) % every == 0) | (rows.c.number == last))
    return int(count), list(db.execute(select(rows).where(chosen).order_by(rows.c.number)))


def answered(db: Connection, run_id: str) -> int:
    """Count the trials of a run that have an answer."""
    where = (trials.c.run_id == run_id) & trials.c.y.is_not(None)
    return int(db.execute(select(func.count()).select_from(trials).where(where)).scalar_one())


def before_last_answers(db: Connection, run_id: str, count: int) -> int | None:
    """The number of the trial before the last ``count`` answered ones; None if there are not more."""
    where = (trials.c.run_id == run_id) & trials.c.y.is_not(None)
    query = select(trials.c.number).where(where).order_by(trials.c.number.desc()).offset(count).limit(1)
    number: int | None = db.execute(query).scalar()
    return number


_ANSWERED = select(trials).where((trials.c.run_id == bindparam("run")) & trials.c.y.is_not(None)).limit(1)
_BEST = {
    largest: PreparedStatement(_ANSWERED.order_by(order, trials.c.number))
    for largest, order in ((True, trials.c.y.desc()), (False, trials.c.y.asc()))
}


def best(db: Connection, run_id: str, *, largest: bool) -> Any:
    """The answered trial of largest or smallest y, the earliest of equals; None without an answer."""
    return _BEST[largest].row(db, run=run_id)


_LAST_FIT = PreparedStatement(
    select(trials.c.fitted)
    .where((trials.c.run_id == bindparam("run")) & trials.c.fitted.is_not(None))
    .order_by(trials.c.number.desc())
    .limit(1)
)


def last_fit(db: Connection, run_id: str) -> str | None:
    """The last fit of hyper-parameters in a run, as JSON."""
    row = _LAST_FIT.row(db, run=run_id)
    return None if row is None else str(row.fitted)


def answered_trials(db: Connection) -> Iterable[Row[Any]]:
    """Every answered trial of every run, and those declined, in order; streamed."""
    names = ("run_id", "number", "query", "row", "y", "declined", "version", "plays", "passport", "query_id", "reply")
    query = select(*(trials.c[name] for name in names)).where(trials.c.answered_at.is_not(None))
    return db.execute(query.order_by(trials.c.run_id, trials.c.number))


def add_observations(db: Connection, run_id: str, past: Iterable[wire.Observation]) -> None:
    """Add past measurements to those that a run begins with."""
    count = observation_count(db, run_id)
    rows = [
        observation.model_dump(exclude={"passport"})
        | {"passport": observation.passport and observation.passport.model_dump_json(), "run_id": run_id, "number": n}
        for n, observation in enumerate(past, start=count + 1)
    ]
    if rows:
        db.execute(observations.insert(), rows)


def observation_count(db: Connection, run_id: str) -> int:
    """Count the past measurements that a run begins with."""
    where = observations.c.run_id == run_id
    return int(db.execute(select(func.count()).select_from(observations).where(where)).scalar_one())


def observation_page(db: Connection, run_id: str) -> list[Row[Any]]:
    """Past measurements of a run, in order."""
    where = observations.c.run_id == run_id
    return list(db.execute(select(observations).where(where).order_by(observations.c.number)))
