"""The modeler's tables: runs, trials, answer versions and past observations. SQL is in this package alone."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sqlalchemy import (
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Select,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    func,
    literal_column,
    null,
    select,
    text,
    true,
    update,
)

from blindopt import wire
from blindopt.errors import NotFound
from service_kit.store.base import moment, page_of, table_of
from service_kit.store.database import Connection
from service_kit.store.labels import EVERYTHING, ListFilter, remove
from service_kit.store.prepared_statement import PreparedStatement
from service_kit.store.schema import Migrations, is_postgres

METADATA = MetaData()
MIGRATIONS: Migrations = {
    7: [],
    8: ["ALTER TABLE runs ADD COLUMN plan TEXT"],
    9: [
        "ALTER TABLE runs ADD COLUMN archived_at TEXT",
        "ALTER TABLE observations ADD COLUMN passport TEXT",
        "DROP INDEX IF EXISTS trials_of_curve",  # it has more columns now
    ],
    10: ["ALTER TABLE runs ADD COLUMN note TEXT", "ALTER TABLE runs ADD COLUMN tags TEXT"],
    12: ["ALTER TABLE runs ADD COLUMN engine TEXT"],
    15: [],
    16: [],
    17: [],
    18: ["ALTER TABLE runs ADD COLUMN stored_bytes INTEGER DEFAULT 0 NOT NULL"],
    20: ["ALTER TABLE trials ADD COLUMN probability FLOAT"],
}
APPEND_ONLY = ("versions",)

_KEY, _UNIQUE, _ZERO = {"primary_key": True}, {"unique": True}, {"default": 0}
_OF_RUN = {"references": "runs.id"}


@dataclass(frozen=True, slots=True)
class RunRow:
    """A stored run."""

    seq: int
    id: str
    state: wire.RunState
    spec: str
    sealed_token: bytes
    study: str | None
    created_at: str
    started_at: str | None
    lease: int
    heartbeat_at: str | None
    stop_asked_at: str | None
    pause_asked_at: str | None
    waiting_since: str | None
    waits: int
    waits_until: str | None
    waiting_for: Literal["curator", "people", "engine"] | None  # of the present wait, or the last one
    looked_at: str | None  # while a query is pending: when its curator last confirmed it
    revision: int  # the last revision of the curator that was read
    ended_at: str | None
    ended_because: wire.EndedBecause | None
    problem: str | None
    warnings: str | None
    recommendation: str | None
    plan: str | None  # with the study: how rows are chosen; null in runs from before version 8
    engine: str | None  # what its candidates were last computed with: for information, no choice depends on it
    archived_at: str | None
    note: str | None
    tags: str | None  # a JSON list; null: none
    stored_bytes: int  # of what its curator sent

    @property
    def settings(self) -> wire.RunSpec:
        return wire.RunSpec.model_validate_json(self.spec)

    @property
    def study_view(self) -> wire.StudyView | None:
        """The curator's view of the study; None before the first contact."""
        return wire.StudyView.model_validate_json(self.study) if self.study else None

    @property
    def stored_plan(self) -> wire.Plan | None:
        """The plan; None before the first contact, and in a run from before there were plans."""
        return wire.Plan.model_validate_json(self.plan) if self.plan else None


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A stored trial."""

    run_id: str
    number: int
    query: int  # number of the first trial that was chosen with it
    phase: Literal["initial", "algorithm"]
    row: int
    mean: float | None
    sd: float | None
    acquisition: float | None
    ties: int
    chosen_at: str
    asked_at: str | None = None  # when the query was accepted, to be answered later, or refused for some of its rows
    answered_at: str | None = None
    query_id: str | None = None
    y: float | None = None
    declined: int = 0
    version: int | None = None
    plays: int | None = None
    passport: str | None = None
    reply: bytes | None = None  # of the query, in the row of its first trial
    fitted: str | None = None  # the hyper-parameters of the choice, if they are new
    probability: float | None = None  # that the row is good, as the query says

    @property
    def is_settled(self) -> bool:
        """Whether it has a y, or was declined."""
        return self.y is not None or bool(self.declined)

    @property
    def is_refused(self) -> bool:
        """Whether a cap allowed no answer about its row: it is declined without a version."""
        return bool(self.declined) and self.version is None and self.y is None

    @property
    def answer(self) -> wire.Answer | None:
        """Its answer; None if it has none, or was declined. Raises ValueError for a y without its noise."""
        if self.y is None:
            return None
        if self.plays is None or self.passport is None:
            raise ValueError(f"trial {self.number} has a y without its noise")
        passport = wire.NoisePassport.model_validate_json(self.passport)
        return wire.Answer(row=self.row, play=1, plays=self.plays, y=self.y, passport=passport)

    @property
    def view(self) -> wire.TrialView:
        values = {name: getattr(self, name) for name in wire.TrialView.model_fields}
        values |= {name: moment(values[name]) for name in ("chosen_at", "asked_at", "answered_at") if values[name]}
        fitted = wire.Fitted.model_validate_json(self.fitted) if self.fitted else None
        passport = wire.NoisePassport.model_validate_json(self.passport) if self.passport else None
        return wire.TrialView(**values | {"declined": bool(self.declined), "fitted": fitted, "passport": passport})


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A stored version of the reply to a query that people answer; a trial has the last version alone."""

    seq: int
    run_id: str
    query: int  # number of its first trial
    version: int  # 0: it is pending
    after: int  # how many trials were chosen by then
    at: str
    reply: bytes


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A stored message to the owner of a study."""

    run_id: str
    number: int
    author_key: str  # who wrote it, under which idempotency key
    request_sha256: str
    body: str
    created_at: str
    reply: bytes | None  # the curator's last one
    problem: str | None


runs = table_of(
    RunRow,
    "runs",
    METADATA,
    seq=_KEY,
    id=_UNIQUE,
    lease=_ZERO,
    waits=_ZERO,
    revision=_ZERO,
    stored_bytes={"server_default": "0"},
)
trials = table_of(
    TrialRow,
    "trials",
    METADATA,
    PrimaryKeyConstraint("run_id", "number"),
    # Pages of long runs read these alone, and not the replies beside them.
    Index("trials_by_y", "run_id", "y", "number"),
    Index("trials_of_curve", "run_id", "number", "y", "mean", "sd", "row", "acquisition", "phase", "declined"),
    Index("trials_declined", "run_id", sqlite_where=text("declined = 1")),
    Index("trials_pending", "run_id", "asked_at", sqlite_where=text("asked_at IS NOT NULL AND answered_at IS NULL")),
    Index("trials_fitted", "run_id", "number", sqlite_where=text("fitted IS NOT NULL")),
    run_id=_OF_RUN,
    declined=_ZERO,
)
_PER_VERSION = UniqueConstraint("run_id", "query", "version")
versions = table_of(VersionRow, "versions", METADATA, _PER_VERSION, seq=_KEY, run_id=_OF_RUN)
_MESSAGE_KEYS = PrimaryKeyConstraint("run_id", "number"), UniqueConstraint("run_id", "author_key")
messages = table_of(MessageRow, "messages", METADATA, *_MESSAGE_KEYS, run_id=_OF_RUN)
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
_RUNS, _TRIALS, _VERSIONS, _MESSAGES = select(runs), select(trials), select(versions), select(messages)
_WITHOUT_REPLIES = select(*(null() if column.name == "reply" else column for column in trials.c))
_AT_ONCE = 100


def _trials(db: Connection, query: Select[Any]) -> list[TrialRow]:
    return [TrialRow(*row) for row in db.execute(query)]


# --- runs -----------------------------------------------------------------------------------------

_RUN = PreparedStatement(_RUNS.where(runs.c.id == bindparam("run_id")))
_BEAT = PreparedStatement(
    update(runs)
    .where((runs.c.id == bindparam("run_id")) & (runs.c.lease == bindparam("number")))
    .values(heartbeat_at=bindparam("at"))
)
_COUNT_BYTES = PreparedStatement(
    update(runs)
    .where((runs.c.id == bindparam("run_id")) & (runs.c.stored_bytes <= bindparam("room")))
    .values(stored_bytes=runs.c.stored_bytes + bindparam("size"))
)


def add_run(db: Connection, run_id: str, **values: Any) -> None:
    db.execute(runs.insert().values(id=run_id, **values))


def change_run(db: Connection, run_id: str, **values: Any) -> None:
    db.execute(update(runs).where(runs.c.id == run_id).values(**values))


def find_run(db: Connection, run_id: str) -> RunRow:
    """The run with this id. Raises NotFound."""
    row = _RUN.row(db, run_id=run_id)
    if row is None:
        raise NotFound("there is no such run")
    return RunRow(*row)


def run_page(
    db: Connection, *, position: int | None, newest: bool, limit: int, list_filter: ListFilter = EVERYTHING
) -> list[RunRow]:
    """Runs after a sequence number in order, or before it with the newest first; None: from the first or the last."""
    query = _RUNS.where(*list_filter.of(db, runs))
    page = page_of(query, runs.c.seq, position=position, newest=newest, limit=limit)
    return [RunRow(*row) for row in db.execute(page)]


def run_states(db: Connection) -> list[tuple[str, str | None, int]]:
    """Count the runs that are not archived by state, and by what they wait for or last waited for."""
    query = select(runs.c.state, runs.c.waiting_for, func.count()).where(runs.c.archived_at.is_(None))
    query = query.group_by(runs.c.state, runs.c.waiting_for)
    return [(state, waits, count) for state, waits, count in db.execute(query)]


def unfinished_runs(db: Connection) -> Iterator[RunRow]:
    """Stream the runs that are queued, under way or waiting, oldest first."""
    query = _RUNS.where(runs.c.state.in_(("queued", "running", "waiting"))).order_by(runs.c.seq)
    return (RunRow(*row) for row in db.execute(query.execution_options(yield_per=_AT_ONCE)))


def take_lease(db: Connection, run_id: str, at: str) -> int:
    """Give the run a new lease, and return its number. The worker with the lease before can write no more."""
    lease = find_run(db, run_id).lease + 1
    change_run(db, run_id, lease=lease, heartbeat_at=at)
    return lease


def beat(db: Connection, run_id: str, lease: int, at: str) -> bool:
    """Note that the worker with this lease is alive; return False if the run has another lease."""
    return _BEAT.run(db, run_id=run_id, number=lease, at=at) == 1


def count_bytes(db: Connection, run_id: str, size: int, most: int) -> bool:
    """Count bytes that a run stores; return False if it would have more than ``most``."""
    return _COUNT_BYTES.run(db, run_id=run_id, size=size, room=most - size) == 1


def run_specs(db: Connection) -> Iterator[tuple[str, str]]:
    return ((run_id, spec) for run_id, spec in db.execute(select(runs.c.id, runs.c.spec).order_by(runs.c.seq)))


def takes_time(db: Connection, run_id: str) -> bool:
    """Whether people or a system measure for the study of a run."""
    study = find_run(db, run_id).study
    return study is not None and json.loads(study).get("measurement_source", "column") != "column"


def delete_run(db: Connection, run_id: str) -> None:
    """Delete a run with its trials, versions of answers, past measurements and messages."""
    for rows in (trials, versions, observations, messages):
        remove(db, rows, rows.c.run_id == run_id)
    remove(db, runs, runs.c.id == run_id)


def run_ids(db: Connection) -> set[str]:
    return set(db.execute(select(runs.c.id)).scalars())


def release_digests(db: Connection) -> set[str]:
    sql = "as_json(study) ->> 'release_sha256'" if is_postgres(db) else "json_extract(study, '$.release_sha256')"
    digest = literal_column(sql, Text)
    return set(db.execute(select(digest).where(runs.c.study.is_not(None)).distinct()).scalars())


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of a run's trials with an answer, declined, and waiting to be measured; of its past measurements."""

    answered: int
    declined: int
    pending: int
    pending_since: str | None
    """When the first pending query was accepted."""
    observations: int


def _number(rows: Table, where: Any, of: Any = func.count()) -> Any:
    return select(of).select_from(rows).where(rows.c.run_id == bindparam("run_id"), where).scalar_subquery()


_WAITS = trials.c.asked_at.is_not(None) & trials.c.answered_at.is_(None)
_COUNTS = PreparedStatement(  # each part reads a single index
    select(
        _number(trials, trials.c.y.is_not(None)).label("answered"),
        _number(trials, text("declined = 1")).label("declined"),  # exactly as in its index
        _number(trials, _WAITS).label("pending"),
        _number(trials, _WAITS, func.min(trials.c.asked_at)).label("pending_since"),
        _number(observations, true()).label("observations"),
    )
)


def run_counts(db: Connection, run_id: str) -> Counts:
    return Counts(*_COUNTS.row(db, run_id=run_id))


def run_progress(db: Connection, run_id: str) -> tuple[Any, ...]:
    """Return what changes with each event of a run: states, last version, settled trials. Raises NotFound."""
    run, counts, version = find_run(db, run_id), run_counts(db, run_id), last_version(db, run_id)
    states = run.state, run.ended_at, run.ended_because, run.problem, run.waits_until
    return *states, version, counts.answered + counts.declined


# --- trials ---------------------------------------------------------------------------------------

_ANSWERS = ("answered_at", "query_id", "y", "declined", "version", "plays", "passport", "reply")
_ANSWER_TRIAL = PreparedStatement(
    update(trials)
    .where((trials.c.run_id == bindparam("run_id")) & (trials.c.number == bindparam("trial")))
    .values({name: bindparam(f"new_{name}") for name in _ANSWERS})
)
_CHOICE = [
    "run_id", "number", "query", "phase", "row", "mean", "sd", "acquisition", "ties", "chosen_at", "fitted", "declined",
    "probability",
]  # fmt: skip
_ADD_TRIAL = PreparedStatement(trials.insert(), _CHOICE)


@dataclass(frozen=True, slots=True)
class TrialFilter:
    """Which trials of a run are listed; None: all."""

    first: int | None = None
    last: int | None = None
    row: int | None = None
    phase: str | None = None
    state: str | None = None
    """``answered``, ``declined`` or ``open``."""

    def of(self, run_id: str) -> Any:
        """The condition, over columns of the index ``trials_of_curve`` alone."""
        where: Any = trials.c.run_id == run_id
        if self.first is not None:
            where &= trials.c.number >= self.first
        if self.last is not None:
            where &= trials.c.number <= self.last
        if self.row is not None:
            where &= trials.c.row == self.row
        if self.phase is not None:
            where &= trials.c.phase == self.phase
        match self.state:
            case "answered":
                where &= trials.c.y.is_not(None)
            case "declined":
                where &= (trials.c.declined == 1) & trials.c.y.is_(None)
            case "open":
                where &= (trials.c.declined == 0) & trials.c.y.is_(None)
        return where


EVERY_TRIAL = TrialFilter()


def add_trial(db: Connection, trial: TrialRow) -> None:
    values = asdict(trial)
    _ADD_TRIAL.run(db, **{name: values[name] for name in _CHOICE})


def answer_trial(
    db: Connection,
    run_id: str,
    number: int,
    answer: wire.Answer | None,
    *,
    answered_at: str,
    query_id: str | None = None,
    version: int | None = None,
    reply: bytes | None = None,
) -> None:
    """Store the answer of a trial. None: it was declined, or refused if there is no ``version``."""
    _ANSWER_TRIAL.run(
        db,
        run_id=run_id,
        trial=number,
        new_answered_at=answered_at,
        new_query_id=query_id,
        new_y=None if answer is None else answer.y,
        new_declined=int(answer is None),
        new_version=version,
        new_plays=None if answer is None else answer.plays,
        new_passport=None if answer is None else answer.passport.model_dump_json(),
        new_reply=reply,
    )


def ask_trials(db: Connection, run_id: str, first: int, count: int, *, asked_at: str, query_id: str | None) -> None:
    """Store that the curator accepted the query of ``count`` trials from ``first`` on; None: that it refused it."""
    where = (trials.c.run_id == run_id) & trials.c.number.between(first, first + count - 1)
    db.execute(update(trials).where(where).values(asked_at=asked_at, query_id=query_id))


def find_trial(db: Connection, run_id: str, number: int) -> TrialRow | None:
    row = db.execute(_TRIALS.where((trials.c.run_id == run_id) & (trials.c.number == number))).one_or_none()
    return None if row is None else TrialRow(*row)


def trial_page(
    db: Connection,
    run_id: str,
    trial_filter: TrialFilter = EVERY_TRIAL,
    *,
    position: int | None = None,
    newest: bool = False,
    limit: int | None = None,
    has_replies: bool = True,
) -> list[TrialRow]:
    """Trials after a number in order, or before it with the newest first; None: from the first or the last.

    Without ``has_replies``, their replies, which are the larger part, are not read.
    """
    query = (_TRIALS if has_replies else _WITHOUT_REPLIES).where(trial_filter.of(run_id))
    return _trials(db, page_of(query, trials.c.number, position=position, newest=newest, limit=limit))


def sorted_trials(
    db: Connection, run_id: str, trial_filter: TrialFilter, *, sort: str, largest: bool, offset: int, limit: int
) -> tuple[int, list[TrialRow]]:
    """Return how many trials match, and ``limit`` of them from ``offset`` on, sorted by a column of their index.

    Equals are in the order of their numbers, and trials without a value come last.
    """
    where, by = trial_filter.of(run_id), trials.c[sort]
    count = db.execute(select(func.count()).select_from(trials).where(where)).scalar_one()
    order = (by.is_(None), by.desc() if largest else by, trials.c.number)
    # The numbers first, from the index alone: the replies beside the trials are large.
    numbers = select(trials.c.number).where(where).order_by(*order).limit(limit).offset(offset)
    rank = {number: i for i, number in enumerate(db.execute(numbers).scalars())}
    page = _trials(db, _TRIALS.where((trials.c.run_id == run_id) & trials.c.number.in_(rank)))
    return int(count), sorted(page, key=lambda trial: rank[trial.number])


def answered_trials(db: Connection) -> Iterator[TrialRow]:
    """Every answered trial of every run, and those declined, in order; streamed."""
    query = _TRIALS.where(trials.c.answered_at.is_not(None)).order_by(trials.c.run_id, trials.c.number)
    return (TrialRow(*row) for row in db.execute(query))


def unanswered_trials(db: Connection, run_id: str) -> list[TrialRow]:
    where = (trials.c.run_id == run_id) & trials.c.answered_at.is_(None)
    return _trials(db, _TRIALS.where(where).order_by(trials.c.number))


def chosen_together(db: Connection, run_id: str, first: int) -> list[TrialRow]:
    """The trials of the choice whose first one has this number, in order; none where no choice begins there."""
    where = (trials.c.run_id == run_id) & (trials.c.query == first)
    return _trials(db, _WITHOUT_REPLIES.where(where).order_by(trials.c.number))


def pending_queries(db: Connection, run_id: str) -> set[str]:
    return set(db.execute(select(trials.c.query_id).where((trials.c.run_id == run_id) & _WAITS)).scalars())


def curve(
    db: Connection, run_id: str, points: int, *, largest: bool, first: int = 1, last: int | None = None
) -> tuple[int, list[wire.CurvePoint]]:
    """Return the number of trials of a run, and at most ``points`` evenly spaced trials with the best y so far.

    The points are from trial ``first`` to ``last``; the best is that of all trials until then.
    """
    of_run = trials.c.run_id == run_id
    count = db.execute(select(func.count()).select_from(trials).where(of_run)).scalar_one()
    best_y = (func.max if largest else func.min)(trials.c.y).over(order_by=trials.c.number)
    columns = (trials.c[name] for name in ("number", "y", "mean", "sd"))
    rows = select(*columns, best_y.label("best")).where(of_run).subquery()
    last = count if last is None else min(last, count)
    every = max(1, -(-(last - first + 1) // (points - 1)))
    where = rows.c.number.between(first, last) & (((rows.c.number - first) % every == 0) | (rows.c.number == last))
    page = db.execute(select(rows).where(where).order_by(rows.c.number))
    return int(count), [wire.CurvePoint(**row._mapping) for row in page]


def answered(db: Connection, run_id: str) -> int:
    where = (trials.c.run_id == run_id) & trials.c.y.is_not(None)
    return int(db.execute(select(func.count()).select_from(trials).where(where)).scalar_one())


def before_last_answers(db: Connection, run_id: str, count: int) -> int | None:
    """The number of the trial before the last ``count`` answered ones; None if there are not more."""
    where = (trials.c.run_id == run_id) & trials.c.y.is_not(None)
    query = select(trials.c.number).where(where).order_by(trials.c.number.desc()).offset(count).limit(1)
    number: int | None = db.execute(query).scalar()
    return number


_ANSWERED = _TRIALS.where((trials.c.run_id == bindparam("run_id")) & trials.c.y.is_not(None)).limit(1)
_BEST = {
    largest: PreparedStatement(_ANSWERED.order_by(order, trials.c.number))
    for largest, order in ((True, trials.c.y.desc()), (False, trials.c.y.asc()))
}


def best_trial(db: Connection, run_id: str, *, largest: bool) -> TrialRow | None:
    """The answered trial of largest or smallest y, the earliest of equals; None without an answer."""
    row = _BEST[largest].row(db, run_id=run_id)
    return None if row is None else TrialRow(*row)


_LAST_FIT = PreparedStatement(
    select(trials.c.fitted)
    .where((trials.c.run_id == bindparam("run_id")) & trials.c.fitted.is_not(None))
    .order_by(trials.c.number.desc())
    .limit(1)
)


def last_fit(db: Connection, run_id: str) -> wire.Fitted | None:
    row = _LAST_FIT.row(db, run_id=run_id)
    return None if row is None else wire.Fitted.model_validate_json(row.fitted)


# --- versions of answers --------------------------------------------------------------------------


def add_version(db: Connection, run_id: str, first: int, version: int, *, at: str, reply: bytes) -> None:
    """Store a version of the reply to the query that begins with trial ``first``."""
    after = db.execute(select(func.max(trials.c.number)).where(trials.c.run_id == run_id)).scalar_one()
    values = {"run_id": run_id, "query": first, "version": version, "after": after, "at": at, "reply": reply}
    db.execute(versions.insert(), values)


def count_corrections(db: Connection, run_id: str, first: int) -> tuple[int, int]:
    """How many corrections are stored of a run, and of its query that begins with trial ``first``."""
    of_query = func.count().filter(versions.c.query == first)
    where = (versions.c.run_id == run_id) & (versions.c.version > 1)
    return tuple(db.execute(select(func.count(), of_query).where(where)).one())  # type: ignore[return-value]


def version_page(db: Connection, run_id: str) -> list[VersionRow]:
    """All versions of a run's replies, in the order of arrival."""
    query = _VERSIONS.where(versions.c.run_id == run_id).order_by(versions.c.seq)
    return [VersionRow(*row) for row in db.execute(query)]


def runs_with_versions(db: Connection) -> list[str]:
    return list(db.execute(select(versions.c.run_id).distinct().order_by(versions.c.run_id)).scalars())


def last_version(db: Connection, run_id: str) -> int:
    """The sequence number of the last version of a run's replies; 0 if there is none."""
    return int(db.execute(select(func.max(versions.c.seq)).where(versions.c.run_id == run_id)).scalar() or 0)


def corrected_trials(db: Connection, run_id: str, *, since: int, until: int) -> list[TrialRow]:
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
    return _trials(db, _TRIALS.where(where).order_by(trials.c.number))


# --- past measurements ----------------------------------------------------------------------------


def add_observations(db: Connection, run_id: str, past: Iterable[wire.Observation]) -> None:
    count = observation_count(db, run_id)
    rows = [
        observation.model_dump(exclude={"passport"})
        | {"passport": observation.passport and observation.passport.model_dump_json(), "run_id": run_id, "number": n}
        for n, observation in enumerate(past, start=count + 1)
    ]
    if rows:
        db.execute(observations.insert(), rows)


def observation_count(db: Connection, run_id: str) -> int:
    where = observations.c.run_id == run_id
    return int(db.execute(select(func.count()).select_from(observations).where(where)).scalar_one())


def observations_of(db: Connection, run_id: str) -> list[wire.Observation]:
    """Return the past measurements that a run begins with, in order."""
    columns = (observations.c[name] for name in ("row", "y", "noise_variance", "passport"))
    query = select(*columns).where(observations.c.run_id == run_id).order_by(observations.c.number)
    read = wire.NoisePassport.model_validate_json
    return [
        wire.Observation(row=row, y=y, noise_variance=variance, passport=read(passport) if passport else None)
        for row, y, variance, passport in db.execute(query)
    ]


# --- messages to owners ---------------------------------------------------------------------------


def add_message(
    db: Connection, run_id: str, *, author_key: str, request_sha256: str, body: str, created_at: str
) -> int:
    last = db.execute(select(func.max(messages.c.number)).where(messages.c.run_id == run_id)).scalar()
    number = int(last or 0) + 1
    message = MessageRow(run_id, number, author_key, request_sha256, body, created_at, reply=None, problem=None)
    db.execute(messages.insert(), asdict(message))
    return number


def written_message(db: Connection, run_id: str, author_key: str) -> MessageRow | None:
    where = (messages.c.run_id == run_id) & (messages.c.author_key == author_key)
    row = db.execute(_MESSAGES.where(where)).one_or_none()
    return None if row is None else MessageRow(*row)


def find_message(db: Connection, run_id: str, number: int) -> MessageRow:
    """A message. Raises NotFound."""
    where = (messages.c.run_id == run_id) & (messages.c.number == number)
    if (row := db.execute(_MESSAGES.where(where)).one_or_none()) is None:
        raise NotFound("there is no such message")
    return MessageRow(*row)


def message_body(db: Connection, run_id: str, number: int) -> str | None:
    """What a message says, as it is sent; None where there is no such message."""
    where = (messages.c.run_id == run_id) & (messages.c.number == number)
    return db.execute(select(messages.c.body).where(where)).scalar()


def message_page(db: Connection, run_id: str, after: int = 0, limit: int | None = None) -> list[MessageRow]:
    where = (messages.c.run_id == run_id) & (messages.c.number > after)
    return [MessageRow(*row) for row in db.execute(_MESSAGES.where(where).order_by(messages.c.number).limit(limit))]


def change_message(db: Connection, run_id: str, number: int, *, problem: str | None, **values: bytes) -> None:
    where = (messages.c.run_id == run_id) & (messages.c.number == number)
    db.execute(update(messages).where(where).values(problem=problem, **values))


def every_message(db: Connection) -> list[MessageRow]:
    return [MessageRow(*row) for row in db.execute(_MESSAGES.order_by(messages.c.run_id, messages.c.number))]
