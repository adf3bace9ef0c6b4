"""Tables of measurements by people and systems: requests, entries about them, and the published answer versions."""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    cast,
    func,
    select,
    text,
    update,
)

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import NotFound
from curator_service.store.base import METADATA
from service_kit.store.base import ERASABLE
from service_kit.store.database import Connection
from service_kit.store.prepared_statement import PreparedStatement

_GIVEN_UP_OR_LATER = "state = 'open' AND next_at IS NULL AND (attempts > 0 OR problem IS NOT NULL)"
"""Measurements that the owner's system is not called for any more: it answers later, or it was given up."""
inquiries = Table(
    "inquiries",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("query_id", Text, ForeignKey("queries.id"), nullable=False, unique=True),
    Column("study_id", Text, nullable=False, index=True),
    Column("grant_id", Text, nullable=False),
    Column("due_at", Text),
    Column("open", Integer, nullable=False),
    Column("begun", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("lost", Integer, nullable=False),
    Column("created_at", Text, nullable=False),
    Index("inquiries_owed", "seq", sqlite_where=text("version < begun")),
    Index("inquiries_due", "due_at", sqlite_where=text("open > 0")),
)
LOST, GONE = 1, 2
"""Why a query gets no more versions: the curator was restored from a backup, or the query's dataset was erased."""
measurements = Table(
    "measurements",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("query_id", Text, ForeignKey("queries.id"), nullable=False),
    Column("study_id", Text, nullable=False),
    Column("place", Integer, nullable=False),
    Column("row", Integer, nullable=False),
    Column("play", Integer, nullable=False),
    Column("plays", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("entry", Integer),
    Column("attempts", Integer, nullable=False),
    Column("next_at", Text),
    Column("problem", Text),
    Index("measurements_by_query", "query_id", "seq"),
    Index("measurements_by_state", "state", "seq"),
    Index("measurements_by_study", "study_id", "state", "seq"),
    Index("measurements_by_record", "study_id", "row", "seq"),
    Index("measurements_to_post", "next_at", sqlite_where=text("next_at IS NOT NULL")),
    Index("measurements_left", "state", "problem", "seq", sqlite_where=text(_GIVEN_UP_OR_LATER)),
)
entries = Table(
    "entries",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("measurement_id", Text, ForeignKey("measurements.id"), nullable=False, index=True),
    Column("query_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("value", Float, info=ERASABLE),
    Column("reason", Text, info=ERASABLE),
    Column("note", Text, info=ERASABLE),
    Column("actor", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("salt", Text, nullable=False, info=ERASABLE),
    Column("created_at", Text, nullable=False),
)
rounds = Table(
    "rounds",
    METADATA,
    Column("query_id", Text, ForeignKey("queries.id"), nullable=False),
    Column("version", Integer, nullable=False),
    Column("basis", Integer, nullable=False),
    Column("fresh", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    PrimaryKeyConstraint("query_id", "version"),
)
revisions = Table(
    "revisions",
    METADATA,
    Column("grant_id", Text, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("query_id", Text, ForeignKey("queries.id"), nullable=False),
    Column("version", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False, info=ERASABLE),
    Column("created_at", Text, nullable=False),
    PrimaryKeyConstraint("grant_id", "seq"),
    UniqueConstraint("query_id", "version"),
)
"""Append-only: published versions as they were sent, in the order in which each grant got them."""
refinements = Table(
    "refinements",
    METADATA,
    Column("study_id", Text, ForeignKey("studies.id"), nullable=False),
    Column("row", Integer, nullable=False),
    Column("z", Text, nullable=False, info=ERASABLE),  # a JSON list; empty: it is erased
    PrimaryKeyConstraint("study_id", "row"),
)
"""Append-only: the second draw of each measured record of a study that refines, as every reply repeats it."""
SecondDraws = dict[int, list[float]]
"""By row."""

_LATEST = PreparedStatement(
    select(revisions).where(revisions.c.query_id == bindparam("query")).order_by(revisions.c.version.desc()).limit(1)
)
_QUERY = PreparedStatement(select(inquiries).where(inquiries.c.query_id == bindparam("query")))


@dataclass(frozen=True, slots=True)
class MeasuredQuery:
    """The state of a query (a row of ``inquiries``).

    ``open``: how many of its measurements are. ``begun`` and ``version``: the last version that was begun, and that was
    published. ``lost``: LOST, GONE, or 0 if it gets more versions.
    """

    seq: int
    query_id: str
    study_id: str
    grant_id: str
    due_at: str | None
    open: int
    begun: int
    version: int
    lost: int
    created_at: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """A play of an item of a query (a row of ``measurements``).

    ``place``: the item's index. ``version``: the number of answers so far. ``entry``: the last entry about it.
    ``attempts``, ``next_at``, ``problem``: how often the owner's system was called, when it will be called again, and
    what was wrong at the last call. An open one with neither a time nor a problem, after an attempt: it answers later.
    """

    seq: int
    id: str
    query_id: str
    study_id: str
    position: int
    row: int
    play: int
    plays: int
    state: str
    version: int
    entry: int | None
    attempts: int
    next_at: str | None
    problem: str | None


@dataclass(frozen=True, slots=True, repr=False)
class Entry:
    """An answer, a decline, or the expiry of a deadline (a row of ``entries``); ``version``: as of a measurement."""

    seq: int
    measurement_id: str
    query_id: str
    kind: str
    version: int
    value: float | None
    reason: wire.DeclineReason | None
    note: str | None
    actor: str
    name: str
    salt: str
    created_at: str


@dataclass(frozen=True, slots=True)
class AnswerVersion:
    """A version of a query's answer that was begun (a row of ``rounds``), from the entries up to ``basis``."""

    query_id: str
    version: int
    basis: int
    fresh: str
    created_at: str

    @property
    def units(self) -> list[tuple[int, int]]:
        """The units that it releases anew, in order: index of an item and play."""
        return [(index, play) for index, play in json.loads(self.fresh)]


@dataclass(frozen=True, slots=True, repr=False)
class PublishedVersion:
    """A version as it was sent (a row of ``revisions``); ``seq``: its place among those of its grant."""

    grant_id: str
    seq: int
    query_id: str
    version: int
    body: bytes
    created_at: str


class InboxRow(NamedTuple):
    """A measurement with the last entry about it, and its query."""

    measurement: Measurement
    entry: Entry | None
    query: MeasuredQuery


CallState = Literal["waiting", "expected", "given_up"]
"""The state of an open measurement at the owner's system."""
CALL_STATES: dict[CallState, Any] = {
    "waiting": measurements.c.next_at.is_not(None),
    "expected": text(_GIVEN_UP_OR_LATER) & measurements.c.problem.is_(None),
    "given_up": text(_GIVEN_UP_OR_LATER) & measurements.c.problem.is_not(None),
}


def add_query(db: Connection, values: dict[str, Any], requested: Sequence[dict[str, Any]]) -> None:
    """Record a query with the measurements that it requests."""
    db.execute(inquiries.insert(), {"begun": 0, "version": 0, "lost": 0, "open": len(requested), **values})
    db.execute(measurements.insert(), [{"state": "open", "version": 0, "attempts": 0, **row} for row in requested])


def find_query(db: Connection, query_id: str) -> MeasuredQuery | None:
    """The state of a query, or None if it is not measured by people or a system."""
    row = _QUERY.row(db, query=query_id)
    return None if row is None else MeasuredQuery(*row)


def query(db: Connection, query_id: str) -> MeasuredQuery:
    """The state of a query that people or a system measure. Raises NotFound."""
    if (measured_query := find_query(db, query_id)) is None:
        raise NotFound("there is no such query")
    return measured_query


def change_query(db: Connection, query_id: str, **values: Any) -> None:
    db.execute(update(inquiries).where(inquiries.c.query_id == query_id).values(**values))


def of_query(db: Connection, query_id: str) -> list[Measurement]:
    where = measurements.c.query_id == query_id
    return [Measurement(*row) for row in db.execute(select(measurements).where(where).order_by(measurements.c.seq))]


def page(
    db: Connection,
    *,
    states: Sequence[str],
    study_id: str | None,
    query_id: str | None,
    asking: CallState | None = None,
    after: int,
    limit: int,
) -> list[InboxRow]:
    """Measurements as they are shown, in the order of their requests."""
    where: list[Any] = [measurements.c.seq > after]
    if asking is not None:
        where.append(CALL_STATES[asking])
    if study_id is not None:
        where.append(measurements.c.study_id == study_id)
    if query_id is not None:
        where.append(measurements.c.query_id == query_id)
    # One query for each state, so that an index gives its order: few are open among many that were answered.
    ordered = select(measurements.c.seq).where(*where).order_by(measurements.c.seq).limit(limit)
    seqs = sorted(seq for state in states for seq in db.execute(ordered.where(measurements.c.state == state)).scalars())
    return views(db, measurements.c.seq.in_(seqs[:limit]))


def views(db: Connection, where: Any) -> list[InboxRow]:
    joined = measurements.join(inquiries, inquiries.c.query_id == measurements.c.query_id).outerjoin(
        entries, entries.c.seq == measurements.c.entry
    )
    query = select(measurements, entries, inquiries).select_from(joined).where(where).order_by(measurements.c.seq)
    first, last = len(measurements.c), len(measurements.c) + len(entries.c)
    return [
        InboxRow(
            Measurement(*row[:first]),
            None if row[first] is None else Entry(*row[first:last]),
            MeasuredQuery(*row[last:]),
        )
        for row in db.execute(query)
    ]


def view(db: Connection, measurement_id: str) -> InboxRow:
    """One measurement as it is shown. Raises NotFound."""
    rows = views(db, measurements.c.id == measurement_id)
    if not rows:
        raise NotFound("there is no such measurement")
    return rows[0]


def answers_about(db: Connection, study_id: str, rows: Collection[int]) -> list[tuple[Measurement, Entry]]:
    """Measurements of these rows in a study that have a value, newest first, each with its last entry."""
    where = (measurements.c.study_id == study_id) & measurements.c.row.in_(rows) & (measurements.c.state == "answered")
    return [(row.measurement, row.entry) for row in reversed(views(db, where)) if row.entry is not None]


def unanswered_queries(db: Connection, study_id: str, rows: Sequence[int]) -> list[str]:
    """Queries of a study of which nothing was released yet, with a measurement of any of these rows."""
    joined = measurements.join(inquiries, inquiries.c.query_id == measurements.c.query_id)
    where = (measurements.c.study_id == study_id) & (inquiries.c.begun == 0)
    waiting = select(measurements.c.query_id, measurements.c.row).select_from(joined).where(where)
    requested, of_rows = db.execute(waiting.order_by(measurements.c.seq)), set(rows)
    return list(dict.fromkeys(query_id for query_id, row in requested if row in of_rows))


def count_open(db: Connection, query_id: str | None = None) -> int:
    is_open = measurements.c.state == "open"
    where = is_open if query_id is None else (measurements.c.query_id == query_id) & is_open
    return int(db.execute(select(func.count()).where(where)).scalar_one())


def count_changes(db: Connection) -> int:
    """A number that grows with each request and each entry."""
    ends = select(func.max(measurements.c.seq)), select(func.max(entries.c.seq))
    return sum(int(db.execute(end).scalar_one() or 0) for end in ends)


def add_entries(db: Connection, added: Sequence[Entry]) -> list[Entry]:
    """Add entries, and set the state of each measurement; the entries as they are numbered."""
    first = int(db.execute(select(func.max(entries.c.seq))).scalar_one() or 0) + 1
    numbered = [replace(entry, seq=seq) for seq, entry in enumerate(added, start=first)]
    db.execute(entries.insert(), [asdict(entry) for entry in numbered])
    changed = update(measurements).where(measurements.c.id == bindparam("of"))
    changed = changed.values(
        state=bindparam("to"), version=bindparam("now_has"), entry=bindparam("last"), next_at=None, problem=None
    )
    states = [
        {"of": entry.measurement_id, "to": entry.kind, "now_has": entry.version, "last": entry.seq}
        for entry in numbered
    ]
    db.execute(changed, states)
    return numbered


BATCHES = ("measurement.answered", "measurement.declined", "measurement.corrected", "measurement.overdue")
"""Kinds of the log's records that have the digest of a batch of entries."""


def digest(batch: Sequence[Entry]) -> str:
    """The digest of a batch of entries in the audit log. Each has a salt, so it reveals nothing about their values."""
    rows = [asdict(entry) | {"value": None if entry.value is None else float(entry.value).hex()} for entry in batch]
    without_seq = [list(row.values())[1:] for row in rows]
    return sha256(json.dumps(without_seq, ensure_ascii=True, separators=(",", ":")).encode())


def values(db: Connection, query_id: str, basis: int) -> dict[tuple[int, int], float]:
    """The values of a query up to an entry, by item index and play, in the order of the query.

    The last entry about a measurement counts: an answer that was declared void has no value.
    """
    joined = measurements.join(entries, entries.c.measurement_id == measurements.c.id)
    columns = measurements.c.place, measurements.c.play, entries.c.kind, entries.c.value
    where = (measurements.c.query_id == query_id) & (entries.c.seq <= basis)
    rows = db.execute(select(*columns).select_from(joined).where(where).order_by(measurements.c.seq, entries.c.seq))
    last = {(index, play): (kind, value) for index, play, kind, value in rows}
    return {unit: value for unit, (kind, value) in last.items() if kind == "answered"}


def last_entry(db: Connection, query_id: str) -> int:
    """The sequence number of the last entry about a query; 0 before the first."""
    where = measurements.c.query_id == query_id
    return int(db.execute(select(func.max(measurements.c.entry)).where(where)).scalar_one() or 0)


# --- versions ---------------------------------------------------------------------------------------


def begin_version(db: Connection, version: AnswerVersion) -> None:
    """Record a version that is charged and not drawn yet."""
    db.execute(rounds.insert(), asdict(version))
    change_query(db, version.query_id, begun=version.version)


def versions_of(db: Connection, query_id: str) -> list[AnswerVersion]:
    query = select(rounds).where(rounds.c.query_id == query_id).order_by(rounds.c.version)
    return [AnswerVersion(*row) for row in db.execute(query)]


def corrected(db: Connection, study_id: str) -> list[tuple[str, int, str]]:
    """Query id, version and units released anew, of each version of a study's queries that have more than one."""
    joined = rounds.join(inquiries, inquiries.c.query_id == rounds.c.query_id)
    query = select(rounds.c.query_id, rounds.c.version, rounds.c.fresh).select_from(joined)
    rows = db.execute(query.where(inquiries.c.study_id == study_id, inquiries.c.begun > 1))
    return [(query_id, version, fresh) for query_id, version, fresh in rows]


def corrected_studies(db: Connection, study_ids: Sequence[str]) -> set[str]:
    """Those of these studies whose queries have more than one version."""
    where = inquiries.c.study_id.in_(study_ids) & (inquiries.c.begun > 1)
    return set(db.execute(select(inquiries.c.study_id).where(where).distinct()).scalars())


def row_at(db: Connection, query_id: str, index: int) -> int:
    where = (measurements.c.query_id == query_id) & (measurements.c.place == index)
    return int(db.execute(select(measurements.c.row).where(where).limit(1)).scalar_one())


def owed(db: Connection) -> list[str]:
    """Queries with a version that was begun and not published."""
    where = (inquiries.c.version < inquiries.c.begun) & (inquiries.c.lost == 0)
    return list(db.execute(select(inquiries.c.query_id).where(where).order_by(inquiries.c.seq)).scalars())


def find_published(db: Connection, query_id: str, version: int) -> PublishedVersion | None:
    where = (revisions.c.query_id == query_id) & (revisions.c.version == version)
    row = db.execute(select(revisions).where(where)).one_or_none()
    return None if row is None else PublishedVersion(*row)


def published(db: Connection, query_id: str, version: int) -> PublishedVersion:
    """A version as it was sent. Raises NotFound."""
    if (version_sent := find_published(db, query_id, version)) is None:
        raise NotFound("there is no such version")
    return version_sent


def second_draws(db: Connection, study_id: str, rows: Collection[int]) -> SecondDraws:
    """The second draws of those of ``rows`` that have one."""
    where = (refinements.c.study_id == study_id) & refinements.c.row.in_(rows)
    return {row: json.loads(z) for row, z in db.execute(select(refinements.c.row, refinements.c.z).where(where))}


def add_second_draws(db: Connection, study_id: str, draws: SecondDraws) -> None:
    db.execute(
        refinements.insert(), [{"study_id": study_id, "row": row, "z": json.dumps(z)} for row, z in draws.items()]
    )


def latest(db: Connection, query_id: str) -> PublishedVersion | None:
    row = _LATEST.row(db, query=query_id)
    return None if row is None else PublishedVersion(*row)


def publish(db: Connection, grant_id: str, query_id: str, version: int, body: bytes, at: str) -> None:
    last = db.execute(select(func.max(revisions.c.seq)).where(revisions.c.grant_id == grant_id)).scalar_one()
    added = PublishedVersion(grant_id, int(last or 0) + 1, query_id, version, body, at)
    db.execute(revisions.insert(), asdict(added))
    change_query(db, query_id, version=version)


def versions_after(db: Connection, grant_id: str, seq: int, *, limit: int) -> list[wire.Revision]:
    query = select(revisions.c.seq, revisions.c.query_id, revisions.c.version)
    rows = db.execute(
        query.where(revisions.c.grant_id == grant_id, revisions.c.seq > seq).order_by(revisions.c.seq).limit(limit)
    )
    return [wire.Revision(seq=row.seq, query_id=row.query_id, version=row.version) for row in rows]


# --- deadlines -----------------------------------------------------------------------------


def overdue(db: Connection, now: str) -> list[str]:
    where = (inquiries.c.open > 0) & (inquiries.c.due_at <= now) & (inquiries.c.lost == 0)
    return list(db.execute(select(inquiries.c.query_id).where(where).order_by(inquiries.c.due_at)).scalars())


def next_due(db: Connection) -> str | None:
    """The next deadline of a query with open measurements, or None."""
    where = (inquiries.c.open > 0) & inquiries.c.due_at.is_not(None) & (inquiries.c.lost == 0)
    due_at: str | None = db.execute(select(func.min(inquiries.c.due_at)).where(where)).scalar_one()
    return due_at


def lose(db: Connection) -> None:
    """Publish no more versions of any stored query, and call the owner's system for none."""
    db.execute(update(inquiries).where(inquiries.c.lost == 0).values(lost=LOST))
    called = measurements.c.next_at.is_not(None) | measurements.c.problem.is_not(None) | (measurements.c.attempts > 0)
    db.execute(update(measurements).where(called).values(attempts=0, next_at=None, problem=None))


# --- calls of the owner's system ----------------------------------------------------------------------

_STILL_OPEN = measurements.c.state.concat("") == "open"
"""No index by state is used for it: many more are open than are due at a time."""


def next_calls(db: Connection, *, limit: int) -> list[tuple[str, str]]:
    """Measurements for which the owner's system is to be called, the earliest first: id, and when."""
    query = select(measurements.c.id, measurements.c.next_at).where(measurements.c.next_at.is_not(None), _STILL_OPEN)
    return [(row.id, row.next_at) for row in db.execute(query.order_by(measurements.c.next_at).limit(limit))]


def record_attempt(
    db: Connection, measurement_id: str, attempts: int, next_at: str | None, problem: str | None
) -> None:
    """Record a call of the owner's system, unless the measurement was made meanwhile."""
    where = (measurements.c.id == measurement_id) & (measurements.c.state == "open")
    db.execute(update(measurements).where(where).values(attempts=attempts, next_at=next_at, problem=problem))


def call_again(db: Connection, now: str, measurement_id: str | None, *, limit: int) -> int:
    """Let the owner's system be called now for an open measurement, or for those that wait or were given up; how many.

    First for those whose next attempt is nearest, then for those that were given up. Their attempts count from 0.
    """

    def restart(seqs: Any) -> int:
        change = update(measurements).where(measurements.c.seq.in_(seqs)).values(attempts=0, next_at=now)
        return db.execute(change).rowcount

    seq = select(measurements.c.seq)
    if measurement_id is not None:
        return restart(seq.where(measurements.c.id == measurement_id, _STILL_OPEN))
    later = seq.where(measurements.c.next_at > now, _STILL_OPEN).order_by(measurements.c.next_at)
    count = restart(later.limit(limit))
    return count + restart(seq.where(CALL_STATES["given_up"]).limit(limit - count))


def give_up_old(db: Connection, before: str, problem: str, *, limit: int) -> int:
    """Call the owner's system no more for measurements that were requested ``before``; how many, ``limit`` at most.

    The problem of an earlier attempt stays.
    """
    joined = measurements.join(inquiries, inquiries.c.query_id == measurements.c.query_id)
    where = measurements.c.next_at.is_not(None) & _STILL_OPEN & (inquiries.c.created_at < before)
    seqs = select(measurements.c.seq).select_from(joined).where(where).limit(limit)
    given_up = {"next_at": None, "problem": func.coalesce(measurements.c.problem, problem)}
    return db.execute(update(measurements).where(measurements.c.seq.in_(seqs)).values(**given_up)).rowcount


def count_calls(db: Connection) -> dict[CallState, int]:
    """How many open measurements are in each state at the owner's system."""
    return {
        name: int(db.execute(select(func.count()).select_from(measurements).where(where)).scalar_one())
        for name, where in CALL_STATES.items()
    }


# --- for `audit verify` -----------------------------------------------------------------------------


def every_published(db: Connection) -> Iterable[PublishedVersion]:
    # Cast: a row that was changed by hand may hold something else than bytes.
    columns = [cast(column, LargeBinary) if column.name == "body" else column for column in revisions.c]
    return (
        PublishedVersion(*row) for row in db.execute(select(*columns).order_by(revisions.c.grant_id, revisions.c.seq))
    )
