"""The tables of what people and systems measure: what was asked, what was told of it, and what the modeler was told."""

from collections.abc import Iterable, Sequence
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
from service_kit.store.database import Connection
from service_kit.store.prepared_statement import PreparedStatement

_LEFT = "state = 'open' AND next_at IS NULL AND (attempts > 0 OR problem IS NOT NULL)"
"""Measurements that the owner's system is asked for no more: it tells later, or it was given up."""
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
"""Where each query stands: ``begun`` and ``version`` are the last version that was begun, and told.

``lost``: the curator was put back to a backup that has it, and what came after is not known: it is told no more.
"""
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
    Index("measurements_to_post", "next_at", sqlite_where=text("next_at IS NOT NULL")),
    Index("measurements_left", "state", "problem", "seq", sqlite_where=text(_LEFT)),
)
"""One for each play of each item of a query, which is at ``place``. ``entry``: the last one about it.

``attempts``, ``next_at``, ``problem``: how often the owner's system was asked, when it is again, and what was wrong at
the last time. Open with neither a time nor a problem, after an attempt: it said that it tells later.
"""
entries = Table(
    "entries",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("measurement_id", Text, ForeignKey("measurements.id"), nullable=False, index=True),
    Column("query_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("value", Float),
    Column("reason", Text),
    Column("note", Text),
    Column("actor", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("salt", Text, nullable=False),
    Column("created_at", Text, nullable=False),
)
"""Append-only: each answer (``version``: how many there are), decline, and passing of the date that was set."""
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
"""Append-only: versions that were begun. They say what entries say up to ``basis``, and release ``fresh`` anew."""
revisions = Table(
    "revisions",
    METADATA,
    Column("grant_id", Text, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("query_id", Text, ForeignKey("queries.id"), nullable=False),
    Column("version", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("created_at", Text, nullable=False),
    PrimaryKeyConstraint("grant_id", "seq"),
    UniqueConstraint("query_id", "version"),
)
"""Append-only: versions that were told, as they were told, in the order in which each grant got them."""

LATEST = PreparedStatement(
    select(revisions.c.version, revisions.c.body)
    .where(revisions.c.query_id == bindparam("query"))
    .order_by(revisions.c.version.desc())
    .limit(1)
)
_INQUIRY = PreparedStatement(select(inquiries).where(inquiries.c.query_id == bindparam("query")))


Asking = Literal["waiting", "expected", "given_up"]
"""How the owner's system stands to an open measurement."""
_ASKING: dict[Asking, Any] = {
    "waiting": measurements.c.next_at.is_not(None),
    "expected": text(_LEFT) & measurements.c.problem.is_(None),
    "given_up": text(_LEFT) & measurements.c.problem.is_not(None),
}


_STILL_OPEN = text("+measurements.state = 'open'")
"""With a plus, which keeps SQLite from the index by state: far more are open than are to be asked for at a time."""


def ask(db: Connection, inquiry: dict[str, Any], asked: Sequence[dict[str, Any]]) -> None:
    """Record a query that somebody must measure."""
    db.execute(inquiries.insert(), {"begun": 0, "version": 0, "lost": 0, "open": len(asked), **inquiry})
    db.execute(measurements.insert(), [{"state": "open", "version": 0, "attempts": 0, **one} for one in asked])


def inquiry(db: Connection, query_id: str) -> Any:
    """Where a query stands, or None where it is not one of these."""
    return _INQUIRY.row(db, query=query_id)


def change_inquiry(db: Connection, query_id: str, **values: Any) -> None:
    """Note where a query stands."""
    db.execute(update(inquiries).where(inquiries.c.query_id == query_id).values(**values))


def of_query(db: Connection, query_id: str) -> list[Row[Any]]:
    """The measurements of a query in their order."""
    where = measurements.c.query_id == query_id
    return list(db.execute(select(measurements).where(where).order_by(measurements.c.seq)))


def some(db: Connection, identities: Sequence[str]) -> dict[str, Row[Any]]:
    """Measurements by their ids, of those that there are."""
    found = db.execute(select(measurements).where(measurements.c.id.in_(identities)))
    return {row.id: row for row in found}


def page(
    db: Connection,
    *,
    states: Sequence[str],
    study_id: str | None,
    query_id: str | None,
    asking: Asking | None = None,
    after: int,
    limit: int,
) -> list[Row[Any]]:
    """Measurements with the last entry about each, when they were asked and until when, in the order of asking."""
    where: list[Any] = [measurements.c.seq > after]
    if asking is not None:
        where.append(_ASKING[asking])
    if study_id is not None:
        where.append(measurements.c.study_id == study_id)
    if query_id is not None:
        where.append(measurements.c.query_id == query_id)
    # State by state, so that an index gives each its order: few are open among many that were answered.
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
    """Measurements as they are shown."""
    joined = measurements.join(inquiries, inquiries.c.query_id == measurements.c.query_id).outerjoin(
        entries, entries.c.seq == measurements.c.entry
    )
    told = entries.c.kind, entries.c.value, entries.c.reason, entries.c.note, entries.c.name
    columns = *told, entries.c.created_at.label("changed_at"), inquiries.c.due_at, inquiries.c.created_at
    query = select(measurements, *columns).select_from(joined).where(where).order_by(measurements.c.seq)
    return list(db.execute(query))


def one_view(db: Connection, identity: str) -> Row[Any]:
    """One measurement as it is shown. Raises NotFound."""
    found = views(db, measurements.c.id == identity)
    if not found:
        raise NotFound("there is no such measurement")
    return found[0]


def count_open(db: Connection) -> int:
    """How many measurements wait."""
    return int(db.execute(select(func.count()).where(measurements.c.state == "open")).scalar_one())


def count_open_of(db: Connection, query_id: str) -> int:
    """How many measurements of a query wait."""
    where = (measurements.c.query_id == query_id) & (measurements.c.state == "open")
    return int(db.execute(select(func.count()).where(where)).scalar_one())


def count_changes(db: Connection) -> int:
    """How much was asked and told so far: grows with each change."""
    ends = [db.execute(select(func.max(table.c.seq))).scalar_one() or 0 for table in (measurements, entries)]
    return int(sum(ends))


def enter(db: Connection, values: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Add entries, and set each measurement to what it says; the places of the first and the last."""
    last = int(db.execute(select(func.max(entries.c.seq))).scalar_one() or 0)
    placed = [{"seq": seq, **one} for seq, one in enumerate(values, start=last + 1)]
    db.execute(entries.insert(), placed)
    changed = update(measurements).where(measurements.c.id == bindparam("of"))
    changed = changed.values(
        state=bindparam("to"), version=bindparam("now_has"), entry=bindparam("last"), next_at=None, problem=None
    )
    told = [
        {"of": one["measurement_id"], "to": one["kind"], "now_has": one["version"], "last": one["seq"]}
        for one in placed
    ]
    db.execute(changed, told)
    return last + 1, last + len(placed)


def values(db: Connection, query_id: str, basis: int) -> dict[tuple[int, int], float]:
    """What was measured of a query up to an entry: by place and play, in the order of the query.

    The last entry about a measurement counts: what was answered, and turned out to be void, has no value.
    """
    joined = measurements.join(entries, entries.c.measurement_id == measurements.c.id)
    columns = measurements.c.place, measurements.c.play, entries.c.kind, entries.c.value
    where = (measurements.c.query_id == query_id) & (entries.c.seq <= basis)
    told = db.execute(select(*columns).select_from(joined).where(where).order_by(measurements.c.seq, entries.c.seq))
    last = {(place, play): (kind, value) for place, play, kind, value in told}
    return {unit: value for unit, (kind, value) in last.items() if kind == "answered"}


def last_entry(db: Connection, query_id: str) -> int:
    """The place of the last entry about a query; 0 before the first."""
    where = measurements.c.query_id == query_id
    return int(db.execute(select(func.max(measurements.c.entry)).where(where)).scalar_one() or 0)


# --- versions ---------------------------------------------------------------------------------------


def begin_round(db: Connection, **told: Any) -> None:
    """Record a version that is charged and not drawn yet."""
    db.execute(rounds.insert(), told)


def rounds_of(db: Connection, query_id: str) -> list[Row[Any]]:
    """The versions of a query that were begun, in order."""
    return list(db.execute(select(rounds).where(rounds.c.query_id == query_id).order_by(rounds.c.version)))


def corrected(db: Connection, study_id: str) -> list[tuple[str, int, str]]:
    """Of a study's queries with more than one version: each of them, with what it releases anew."""
    joined = rounds.join(inquiries, inquiries.c.query_id == rounds.c.query_id)
    query = select(rounds.c.query_id, rounds.c.version, rounds.c.fresh).select_from(joined)
    found = db.execute(query.where(inquiries.c.study_id == study_id, inquiries.c.begun > 1))
    return [(query_id, version, fresh) for query_id, version, fresh in found]


def row_at(db: Connection, query_id: str, place: int) -> int:
    """The row of Z of an item of a query."""
    where = (measurements.c.query_id == query_id) & (measurements.c.place == place)
    return int(db.execute(select(measurements.c.row).where(where).limit(1)).scalar_one())


def owed(db: Connection) -> list[str]:
    """Queries with a version that was begun and not told."""
    where = (inquiries.c.version < inquiries.c.begun) & (inquiries.c.lost == 0)
    return list(db.execute(select(inquiries.c.query_id).where(where).order_by(inquiries.c.seq)).scalars())


def revision(db: Connection, query_id: str, version: int) -> Any:
    """A version that was told, or None."""
    where = (revisions.c.query_id == query_id) & (revisions.c.version == version)
    return db.execute(select(revisions).where(where)).one_or_none()


def latest(db: Connection, query_id: str) -> Any:
    """The latest version that was told, or None."""
    return LATEST.row(db, query=query_id)


def tell(db: Connection, grant_id: str, query_id: str, version: int, body: bytes, at: str) -> None:
    """Store a version as it is told from now on."""
    last = db.execute(select(func.max(revisions.c.seq)).where(revisions.c.grant_id == grant_id)).scalar_one()
    placed = {"grant_id": grant_id, "seq": int(last or 0) + 1}
    db.execute(revisions.insert(), {**placed, "query_id": query_id, "version": version, "body": body, "created_at": at})
    change_inquiry(db, query_id, version=version)


def revisions_of(db: Connection, grant_id: str, *, after: int, limit: int) -> list[Row[Any]]:
    """What a grant was told, in order, without the bodies."""
    columns = revisions.c.seq, revisions.c.query_id, revisions.c.version
    where = (revisions.c.grant_id == grant_id) & (revisions.c.seq > after)
    return list(db.execute(select(*columns).where(where).order_by(revisions.c.seq).limit(limit)))


# --- dates and attempts -----------------------------------------------------------------------------


def overdue(db: Connection, now: str) -> list[str]:
    """Queries of which something is open past its date."""
    where = (inquiries.c.open > 0) & (inquiries.c.due_at <= now) & (inquiries.c.lost == 0)
    return list(db.execute(select(inquiries.c.query_id).where(where).order_by(inquiries.c.due_at)).scalars())


def next_due(db: Connection) -> str | None:
    """The next date at which something is overdue."""
    where = (inquiries.c.open > 0) & inquiries.c.due_at.is_not(None) & (inquiries.c.lost == 0)
    found: str | None = db.execute(select(func.min(inquiries.c.due_at)).where(where)).scalar_one()
    return found


def to_post(db: Connection, now: str, *, limit: int) -> list[str]:
    """Measurements that the owner's system is to be asked for now."""
    where = (measurements.c.next_at <= now) & _STILL_OPEN
    return list(
        db.execute(select(measurements.c.id).where(where).order_by(measurements.c.next_at).limit(limit)).scalars()
    )


def next_post(db: Connection, now: str) -> str | None:
    """When the owner's system is to be asked next, after now."""
    where = (measurements.c.next_at > now) & _STILL_OPEN
    query = select(measurements.c.next_at).where(where).order_by(measurements.c.next_at).limit(1)
    found: str | None = db.execute(query).scalar()
    return found


def attempted(db: Connection, identity: str, *, attempts: int, next_at: str | None, problem: str | None) -> None:
    """Note an attempt to ask the owner's system, unless the measurement was made meanwhile."""
    where = (measurements.c.id == identity) & (measurements.c.state == "open")
    db.execute(update(measurements).where(where).values(attempts=attempts, next_at=next_at, problem=problem))


def try_again(db: Connection, now: str, *, limit: int) -> int:
    """Let the owner's system be asked now, as if for the first time; for how many measurements that was later.

    For those whose next attempt is nearest, then for those that were given up.
    """
    place = select(measurements.c.seq)
    later = place.where(measurements.c.next_at > now, _STILL_OPEN).order_by(measurements.c.next_at)
    count = _begin_again(db, now, later.limit(limit))
    return count + _begin_again(db, now, place.where(_ASKING["given_up"]).limit(limit - count))


def try_one_again(db: Connection, now: str, identity: str) -> int:
    """The same for one, whatever was said of it before; 0 where it is not open."""
    where = (measurements.c.id == identity) & (measurements.c.state == "open")
    return _begin_again(db, now, select(measurements.c.seq).where(where))


def _begin_again(db: Connection, now: str, places: Any) -> int:
    begun = update(measurements).where(measurements.c.seq.in_(places)).values(attempts=0, next_at=now)
    return db.execute(begun).rowcount


def old_posts(db: Connection, before: str, *, limit: int) -> list[int]:
    """Places of measurements that the owner's system is to be asked for and that were asked for ``before``."""
    joined = measurements.join(inquiries, inquiries.c.query_id == measurements.c.query_id)
    where = measurements.c.next_at.is_not(None) & _STILL_OPEN & (inquiries.c.created_at < before)
    return list(db.execute(select(measurements.c.seq).select_from(joined).where(where).limit(limit)).scalars())


def give_up(db: Connection, places: Sequence[int], problem: str) -> None:
    """Ask the owner's system no more for what is open of these. What was wrong at its last attempt stays."""
    where = (measurements.c.seq == bindparam("of")) & (measurements.c.state == "open")
    given_up = {"next_at": None, "problem": func.coalesce(measurements.c.problem, problem)}
    db.execute(update(measurements).where(where).values(**given_up), [{"of": place} for place in places])


def count_asking(db: Connection) -> dict[Asking, int]:
    """How many open measurements the owner's system is to be asked for, tells later, and was given up for."""
    return {
        name: int(db.execute(select(func.count()).select_from(measurements).where(where)).scalar_one())
        for name, where in _ASKING.items()
    }


def lose(db: Connection) -> None:
    """Tell nothing more of any query that is here."""
    db.execute(update(inquiries).values(lost=1))
    asked = measurements.c.next_at.is_not(None) | measurements.c.problem.is_not(None) | (measurements.c.attempts > 0)
    db.execute(update(measurements).where(asked).values(attempts=0, next_at=None, problem=None))


# --- for `audit verify` -----------------------------------------------------------------------------


def every_inquiry(db: Connection) -> Iterable[Row[Any]]:
    """Every query that somebody measures, in order; streamed."""
    return db.execute(select(inquiries).order_by(inquiries.c.seq))


def every_measurement(db: Connection) -> Iterable[Row[Any]]:
    """Every measurement, in order; streamed."""
    return db.execute(select(measurements).order_by(measurements.c.seq))


def every_entry(db: Connection) -> Iterable[Row[Any]]:
    """Every entry, in order; streamed."""
    return db.execute(select(entries).order_by(entries.c.seq))


def every_round(db: Connection) -> Iterable[Row[Any]]:
    """Every version that was begun; streamed."""
    return db.execute(select(rounds).order_by(rounds.c.query_id, rounds.c.version))


def every_revision(db: Connection) -> Iterable[Row[Any]]:
    """Every version that was told; streamed."""
    columns = [column for column in revisions.c if column.name != "body"]
    # Cast: whoever changed a row by hand may have left something else than bytes.
    query = select(*columns, cast(revisions.c.body, LargeBinary).label("body"))
    return db.execute(query.order_by(revisions.c.grant_id, revisions.c.seq))
