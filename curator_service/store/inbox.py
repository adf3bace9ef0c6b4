"""Tables of measurements by people and systems: requests, entries about them, and the published answer versions."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

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
    cast,
    func,
    select,
    text,
    update,
)

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
"""The state of each query. ``begun`` and ``version``: the last version that was begun, and that was published."""
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
"""One for each play of each item of a query; ``place`` is the item's index. ``entry``: the last entry about it.

``attempts``, ``next_at``, ``problem``: how often the owner's system was called, when it will be called again, and what
was wrong at the last call. An open measurement with neither a time nor a problem, after an attempt: the system said
that it answers later.
"""
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
"""Append-only: each answer (``version`` is the number of answers so far), decline, and expiry of a deadline."""
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
"""Append-only: versions that were begun, from the entries up to ``basis``; ``fresh``: the units released anew."""
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

LATEST = PreparedStatement(
    select(revisions.c.version, revisions.c.body)
    .where(revisions.c.query_id == bindparam("query"))
    .order_by(revisions.c.version.desc())
    .limit(1)
)
_INQUIRY = PreparedStatement(select(inquiries).where(inquiries.c.query_id == bindparam("query")))


CallState = Literal["waiting", "expected", "given_up"]
"""The state of an open measurement at the owner's system."""
CALL_STATES: dict[CallState, Any] = {
    "waiting": measurements.c.next_at.is_not(None),
    "expected": text(_GIVEN_UP_OR_LATER) & measurements.c.problem.is_(None),
    "given_up": text(_GIVEN_UP_OR_LATER) & measurements.c.problem.is_not(None),
}


def add_inquiry(db: Connection, values: dict[str, Any], requested: Sequence[dict[str, Any]]) -> None:
    """Record a query with the measurements that it requests."""
    db.execute(inquiries.insert(), {"begun": 0, "version": 0, "lost": 0, "open": len(requested), **values})
    db.execute(measurements.insert(), [{"state": "open", "version": 0, "attempts": 0, **row} for row in requested])


def inquiry(db: Connection, query_id: str) -> Any:
    """The state of a query, or None if it is not measured by people or a system."""
    return _INQUIRY.row(db, query=query_id)


def change_inquiry(db: Connection, query_id: str, **values: Any) -> None:
    """Change the state of a query."""
    db.execute(update(inquiries).where(inquiries.c.query_id == query_id).values(**values))


def of_query(db: Connection, query_id: str) -> list[Row[Any]]:
    """The measurements of a query in their order."""
    where = measurements.c.query_id == query_id
    return list(db.execute(select(measurements).where(where).order_by(measurements.c.seq)))


def measurements_by_id(db: Connection, identities: Sequence[str]) -> dict[str, Row[Any]]:
    """The existing measurements among these ids, by id."""
    rows = db.execute(select(measurements).where(measurements.c.id.in_(identities)))
    return {row.id: row for row in rows}


def page(
    db: Connection,
    *,
    states: Sequence[str],
    study_id: str | None,
    query_id: str | None,
    asking: CallState | None = None,
    after: int,
    limit: int,
) -> list[Row[Any]]:
    """Measurements as they are shown, in the order of their requests."""
    where: list[Any] = [measurements.c.seq > after]
    if asking is not None:
        where.append(CALL_STATES[asking])
    if study_id is not None:
        where.append(measurements.c.study_id == study_id)
    if query_id is not None:
        where.append(measurements.c.query_id == query_id)
    # One query for each state, so that an index gives its order: few are open among many that were answered.
    parts = [
        select(measurements.c.seq)
        .where(*where, measurements.c.state == state)
        .order_by(measurements.c.seq)
        .limit(limit)
        for state in states
    ]
    chosen = sorted(seq for part in parts for seq in db.execute(part).scalars())[:limit]
    return views(db, measurements.c.seq.in_(chosen))


def views(db: Connection, where: Any) -> list[Row[Any]]:
    """Measurements as they are shown: each with its last entry, and the time and deadline of its query."""
    joined = measurements.join(inquiries, inquiries.c.query_id == measurements.c.query_id).outerjoin(
        entries, entries.c.seq == measurements.c.entry
    )
    last = entries.c.kind, entries.c.value, entries.c.reason, entries.c.note, entries.c.name
    columns = (
        *last,
        entries.c.created_at.label("changed_at"),
        *(inquiries.c[n] for n in ("due_at", "created_at", "begun")),
    )
    query = select(measurements, *columns).select_from(joined).where(where).order_by(measurements.c.seq)
    return list(db.execute(query))


def view(db: Connection, identity: str) -> Row[Any]:
    """One measurement as it is shown. Raises NotFound."""
    rows = views(db, measurements.c.id == identity)
    if not rows:
        raise NotFound("there is no such measurement")
    return rows[0]


def answers_about(db: Connection, study_id: str, rows: Collection[int]) -> list[Row[Any]]:
    """Measurements of these rows in a study that have a value, newest first: row, seq, value, changed_at."""
    joined = measurements.join(entries, entries.c.seq == measurements.c.entry)
    where = (measurements.c.study_id == study_id) & measurements.c.row.in_(rows) & (measurements.c.state == "answered")
    columns = measurements.c.row, measurements.c.seq, entries.c.value, entries.c.created_at.label("changed_at")
    return list(db.execute(select(*columns).select_from(joined).where(where).order_by(measurements.c.seq.desc())))


def unanswered_queries(db: Connection, study_id: str, rows: Sequence[int]) -> list[str]:
    """Queries of a study of which nothing was released yet, with a measurement of any of these rows."""
    joined = measurements.join(inquiries, inquiries.c.query_id == measurements.c.query_id)
    where = (measurements.c.study_id == study_id) & (inquiries.c.begun == 0)
    waiting = select(measurements.c.query_id, measurements.c.row).select_from(joined).where(where)
    requested, wanted = db.execute(waiting.order_by(measurements.c.seq)), set(rows)
    return list(dict.fromkeys(query_id for query_id, row in requested if row in wanted))


def count_open(db: Connection) -> int:
    """How many measurements are open."""
    return int(db.execute(select(func.count()).where(measurements.c.state == "open")).scalar_one())


def count_open_of(db: Connection, query_id: str) -> int:
    """How many measurements of a query are open."""
    where = (measurements.c.query_id == query_id) & (measurements.c.state == "open")
    return int(db.execute(select(func.count()).where(where)).scalar_one())


def count_changes(db: Connection) -> int:
    """A number that grows with each request and each entry."""
    ends = [db.execute(select(func.max(table.c.seq))).scalar_one() or 0 for table in (measurements, entries)]
    return int(sum(ends))


def add_entries(db: Connection, added: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Add entries, and set the state of each measurement; the sequence numbers of the first and the last."""
    last = int(db.execute(select(func.max(entries.c.seq))).scalar_one() or 0)
    numbered = [{"seq": seq, **entry} for seq, entry in enumerate(added, start=last + 1)]
    db.execute(entries.insert(), numbered)
    changed = update(measurements).where(measurements.c.id == bindparam("of"))
    changed = changed.values(
        state=bindparam("to"), version=bindparam("now_has"), entry=bindparam("last"), next_at=None, problem=None
    )
    states = [
        {"of": entry["measurement_id"], "to": entry["kind"], "now_has": entry["version"], "last": entry["seq"]}
        for entry in numbered
    ]
    db.execute(changed, states)
    return last + 1, last + len(numbered)


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


def begin_round(db: Connection, **values: Any) -> None:
    """Record a version that is charged and not drawn yet."""
    db.execute(rounds.insert(), values)


def rounds_of(db: Connection, query_id: str) -> list[Row[Any]]:
    """The versions of a query that were begun, in order."""
    return list(db.execute(select(rounds).where(rounds.c.query_id == query_id).order_by(rounds.c.version)))


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
    """The row of Z of an item of a query."""
    where = (measurements.c.query_id == query_id) & (measurements.c.place == index)
    return int(db.execute(select(measurements.c.row).where(where).limit(1)).scalar_one())


def owed(db: Connection) -> list[str]:
    """Queries with a version that was begun and not published."""
    where = (inquiries.c.version < inquiries.c.begun) & (inquiries.c.lost == 0)
    return list(db.execute(select(inquiries.c.query_id).where(where).order_by(inquiries.c.seq)).scalars())


def revision(db: Connection, query_id: str, version: int) -> Any:
    """A published version, or None."""
    where = (revisions.c.query_id == query_id) & (revisions.c.version == version)
    return db.execute(select(revisions).where(where)).one_or_none()


def latest(db: Connection, query_id: str) -> Any:
    """The latest published version, or None."""
    return LATEST.row(db, query=query_id)


def add_revision(db: Connection, grant_id: str, query_id: str, version: int, body: bytes, at: str) -> None:
    """Publish a version."""
    last = db.execute(select(func.max(revisions.c.seq)).where(revisions.c.grant_id == grant_id)).scalar_one()
    key = {"grant_id": grant_id, "seq": int(last or 0) + 1}
    db.execute(revisions.insert(), {**key, "query_id": query_id, "version": version, "body": body, "created_at": at})
    change_inquiry(db, query_id, version=version)


def revisions_of(db: Connection, grant_id: str, *, after: int, limit: int) -> list[Row[Any]]:
    """The published versions of a grant, in order, without their bodies."""
    columns = revisions.c.seq, revisions.c.query_id, revisions.c.version
    where = (revisions.c.grant_id == grant_id) & (revisions.c.seq > after)
    return list(db.execute(select(*columns).where(where).order_by(revisions.c.seq).limit(limit)))


# --- deadlines -----------------------------------------------------------------------------


def overdue(db: Connection, now: str) -> list[str]:
    """Queries with open measurements past their deadline."""
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


# --- for `audit verify` -----------------------------------------------------------------------------


def every_revision(db: Connection) -> Iterable[Row[Any]]:
    """Every published version; streamed."""
    columns = [column for column in revisions.c if column.name != "body"]
    # Cast: a row that was changed by hand may hold something else than bytes.
    query = select(*columns, cast(revisions.c.body, LargeBinary).label("body"))
    return db.execute(query.order_by(revisions.c.grant_id, revisions.c.seq))
