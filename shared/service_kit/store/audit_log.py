"""The audit log of one service, and the logs that it shares with the other party: one for each grant.

Every function takes part in the caller's transaction.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Computed,
    Connection,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    func,
    literal,
    literal_column,
    or_,
    select,
)

from blindopt.audit import merkle_log
from blindopt.audit.merkle_log import EMPTY, Entry, Head, Json
from blindopt.errors import LogBroken
from service_kit.store import segments
from service_kit.store.base import ARCHIVED_KINDS, KIND, METADATA, page_of, stamp
from service_kit.store.database import check_verified
from service_kit.store.prepared_statement import PreparedStatement
from service_kit.store.schema import is_postgres

_log = Table(
    "log",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    Column("leaf", LargeBinary, nullable=False),
    Column("peaks", LargeBinary, nullable=False),
    Column("kind", Text, Computed(KIND, persisted=False)),  # of the body, so that it cannot differ from it
    Index("log_by_kind", "kind"),
)
_shared = Table(
    "shared",
    METADATA,
    Column("grant_id", Text, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("leaf", LargeBinary, nullable=False),
    Column("peaks", LargeBinary, nullable=False),
    PrimaryKeyConstraint("grant_id", "seq"),
)
R = TypeVar("R")
_BYTES = ("body", "leaf", "peaks")
_AT_ONCE = 1_000
"""How many records of a whole log are in memory at once."""
_ALWAYS = ("session.opened", "session.ended")
"""Kinds of records that wait for no verification: people log in and read."""
LAST = PreparedStatement(select(_log.c.seq, _log.c.peaks).order_by(_log.c.seq.desc()).limit(1), kept=True)
_ADD = PreparedStatement(_log.insert(), ["seq", *_BYTES])


class RowsOfGrants(Generic[R]):
    """Rows of one kind, by grant and number: entries of shared logs, receipts, countersignatures."""

    def __init__(self, table: Table, kind: Callable[..., R]) -> None:
        self._kind = kind
        columns = [column for column in table.c if column.name not in ("grant_id", "created_at")]
        self._names = [column.name for column in columns]
        of_grant = select(*columns).where(table.c.grant_id == bindparam("grant"))
        self._at = PreparedStatement(of_grant.where(columns[0] == bindparam("number")))
        self._last = PreparedStatement(of_grant.order_by(columns[0].desc()).limit(1), kept=True)
        self._add = PreparedStatement(table.insert())

    def at(self, db: Connection, grant_id: str, number: int) -> R | None:
        row = self._at.row(db, grant=grant_id, number=number)
        return None if row is None else self._kind(*row)

    def last(self, db: Connection, grant_id: str) -> R | None:
        row = self._last.row(db, grant=grant_id)
        return None if row is None else self._kind(*row)

    def add(self, db: Connection, grant_id: str, row: R, **more: Any) -> None:
        fields = tuple(getattr(row, name) for name in self._names)
        last = self._last.row(db, grant=grant_id)
        self._add.run(db, grant_id=grant_id, **dict(zip(self._names, fields, strict=True)), **more)
        self._last.remember(db, fields if last is None or fields[0] > last[0] else tuple(last), grant=grant_id)


SHARED = RowsOfGrants(_shared, Entry)


def append(
    db: Connection,
    kind: str,
    *,
    actor: str,
    now: datetime,
    details: Mapping[str, Any] | None = None,
    exchange: bytes | None = None,
) -> "Appended":
    """Add a record to the service's own log, perhaps with the canonical bytes of an exchange.

    What is stored beside it has its time, ``Appended.at``. ``details`` must hold no private value: auditors read it.
    Raises Verifying: all that takes effect is recorded, so that nothing does until a foreign write is verified.
    """
    if kind not in _ALWAYS:
        check_verified(db)
    last = LAST.row(db)
    seq, peaks = (0, b"") if last is None else (last.seq + 1, last.peaks)
    # Times rise, so that ``page`` finds the first of a time by halving: a caller that read the clock before another one
    # on this connection gets that one's time, unless the clock was set back by a minute. No caller waits as long.
    latest: datetime = db.info.get("log_time", now)
    now = db.info["log_time"] = latest if now < latest < now + timedelta(minutes=1) else now
    # Canonical bytes, the names in order; those of an exchange are in the shared log too.
    quoted = merkle_log.quoted
    body = f'{{"actor":{quoted(actor)}'.encode()
    shown = dict(details or {})
    if shown:
        body += b',"details":' + merkle_log.canonical(shown)
    if exchange is not None:
        body += b',"exchange":' + exchange
    at = stamp(now)
    body += f',"kind":{quoted(kind)},"seq":{seq},"time":"{at}","v":1}}'.encode()
    leaf = merkle_log.leaf_hash(body)
    grown = merkle_log.grow(peaks, seq, leaf)
    _ADD.run(db, seq=seq, body=body, leaf=leaf, peaks=grown)
    LAST.remember(db, (seq, grown))
    return Appended(seq, at, len(body) + len(leaf) + len(grown))


class Appended(NamedTuple):
    """The position and time of a record that was added, and the bytes that it takes."""

    seq: int
    at: str
    size: int


def share(db: Connection, grant_id: str, body_at: Callable[[int], bytes]) -> Entry:
    """Add an exchange to the log that both parties keep, and return its entry.

    ``body_at`` returns the canonical bytes of the exchange at a position.
    """
    last = SHARED.last(db, grant_id)
    entry = merkle_log.entry_after(last, body_at(0 if last is None else last.seq + 1))
    SHARED.add(db, grant_id, entry)
    return entry


def walk(db: Connection, grant_id: str | None = None, *, after: int = -1, limit: int | None = None) -> Iterator[Entry]:
    """Stream the entries of the service's own log, or of the log shared with a grant, in order."""
    table = _log if grant_id is None else _shared
    query = _entries(grant_id).where(table.c.seq > after).order_by(table.c.seq).limit(limit)
    for row in db.execute(query.execution_options(yield_per=_AT_ONCE) if limit is None else query):
        yield Entry(*row)


def _entries(grant_id: str | None = None) -> Select[Any]:
    table = _log if grant_id is None else _shared
    # Cast, because a row that was changed by hand may hold something other than bytes.
    query = select(table.c.seq, *(cast(table.c[name], LargeBinary).label(name) for name in _BYTES))
    return query if grant_id is None else query.where(_shared.c.grant_id == grant_id)


def staying(db: Connection, size: int) -> Iterator[Entry]:
    """Stream the records of the own log that stay when the first ``size`` are archived."""
    query = _entries().where(_log.c.seq < size, or_(_log.c.kind.is_(None), _log.c.kind.not_in(ARCHIVED_KINDS)))
    return (Entry(*row) for row in db.execute(query.order_by(_log.c.seq).execution_options(yield_per=_AT_ONCE)))


_BEGINNING: Any = (literal_column("1"), literal_column("100"))
"""Bytes of a record that hold its actor: names in it are sorted."""


def page(
    db: Connection,
    grant_id: str | None = None,
    *,
    position: int | None,
    newest: bool,
    limit: int,
    kinds: Sequence[str] = (),
    actor: str | None = None,
    about: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> list[Entry]:
    """Entries after ``position``, or before it if the ``newest`` come first.

    Only of ``kinds`` if any are given (a kind that ends in a point stands for all that begin so), of actors with
    ``actor`` in their name, with the id ``about`` in the record, and of times from ``since`` to before ``until``. The
    records of a shared log have neither kind, actor nor time.
    Raises Archived where the first entry that is requested is in an archived segment.
    """
    table, query = (_log if grant_id is None else _shared), _entries(grant_id)
    if archived := segments.size(db):
        if not newest:
            start, first = 0 if position is None else position + 1, 0 if since is None else _first_from(db, since)
            segments.check_present(db, grant_id, start if first < archived else max(start, first))
        query = query.where(table.c.seq >= (archived - 1 if grant_id is None else 0))
    if kinds:
        query = query.where(or_(*map(_is_kind, kinds)))
    # Compare bytes first: parsing every record of a long log takes ten times as long.
    if actor is not None:
        query = query.where(_contains(db, func.substr(table.c.body, *_BEGINNING), actor.encode()))
        query = query.where(_contains(db, _text_at(db, "actor"), actor))
    if about is not None:
        query = query.where(_contains(db, table.c.body, about.encode()))
    if since is not None:
        query = query.where(table.c.seq >= _first_from(db, since))
    if until is not None:
        query = query.where(table.c.seq < _first_from(db, until))
    query = page_of(query, table.c.seq, position=position, newest=newest, limit=limit)
    return [Entry(*row) for row in db.execute(query)]


def _contains(db: Connection, body: ColumnElement[Any], part: str | bytes) -> ColumnElement[bool]:
    position = func.position(literal(part).op("IN")(body)) if is_postgres(db) else func.instr(body, part)
    return position > 0


def _text_at(db: Connection, path: str) -> ColumnElement[str]:
    sql = f"json_extract(CAST(body AS TEXT), '$.{path}')"
    if is_postgres(db):
        sql = f"as_json(convert_from(body, 'UTF8')) #>> '{{{path.replace('.', ',')}}}'"
    return literal_column(sql, Text)


def _first_from(db: Connection, time: str) -> int:
    """The position of the first record from ``time`` on, by halving: times rise unless a clock was set back."""
    low, high = max(0, segments.size(db) - 1), head(db).size
    while low < high:
        middle = (low + high) // 2
        body = db.execute(select(_log.c.body).where(_log.c.seq == middle)).scalar()
        written = re.search(rb'"time":"([^"]*)"', body if isinstance(body, bytes) else b"")
        if written is None or written[1].decode(errors="replace") < time:
            low = middle + 1
        else:
            high = middle
    return low


def _is_kind(kind: str) -> ColumnElement[bool]:
    if not kind.endswith("."):
        return _log.c.kind == kind
    return (_log.c.kind >= kind) & (_log.c.kind < f"{kind[:-1]}/")  # the next character after a point


def of_kind(db: Connection, *kinds: str, after: int = -1, about: str | None = None) -> Iterator[Json]:
    """Stream the records of these kinds in the service's own log, in order.

    Only those ``after`` a position, and with the id ``about`` in them.
    """
    query = select(_log.c.seq, _log.c.body, _log.c.leaf, _log.c.peaks).order_by(_log.c.seq)
    query = query.where(_log.c.kind.in_(kinds), _log.c.seq > after)
    if about is not None:
        query = query.where(_contains(db, _log.c.body, about.encode()))
    return (Entry(*row).record for row in db.execute(query))


def exchanges_under(db: Connection, key: str) -> list[Json]:
    """The records of exchanges under an idempotency key. It reads the whole log."""
    stored = _text_at(db, "exchange.idempotency_key")
    query = select(_log.c.seq, _log.c.body, _log.c.leaf, _log.c.peaks).order_by(_log.c.seq)
    query = query.where(_contains(db, _log.c.body, merkle_log.quoted(key).encode()), stored == key)
    return [Entry(*row).record for row in db.execute(query)]


def consistency(db: Connection, grant_id: str | None, first: int, second: int) -> list[bytes]:
    """Proof that the log of ``second`` records begins with that of ``first`` records (RFC 6962, section 2.1.2).

    0 < first <= second <= the log's size. Reads a few records, however many there are. Raises Archived for a ``first``
    that is archived: of the records before it, the frontier there has all that a proof needs.
    """

    @cache
    def frontier() -> bytes:
        return entry_at(db, grant_id, first - 1).peaks

    def subtree(start: int, end: int) -> bytes:
        if end > first:
            return _subtree(db, grant_id, start, end)
        before = 32 * start.bit_count()
        return merkle_log.root(frontier()[before : before + 32 * (end - start).bit_count()])

    return merkle_log.consistency_by(subtree, first, second)


def _subtree(db: Connection, grant_id: str | None, start: int, end: int) -> bytes:
    """Root of the subtree over the leaves from ``start`` to ``end``, as ``merkle_log.consistency_by`` needs it.

    The frontier before the last leaf ends in the full subtrees from ``start`` to there, one for each bit of their
    number. Folded over that leaf they are the head.
    """
    last = entry_at(db, grant_id, end - 1).leaf
    full = (end - 1 - start).bit_count()
    peaks = entry_at(db, grant_id, end - 2).peaks[-32 * full :] if full else b""
    return merkle_log.root(peaks + last)


def entry_at(db: Connection, grant_id: str | None, seq: int) -> Entry:
    for entry in walk(db, grant_id, after=seq - 1, limit=1):
        if entry.seq == seq:
            return entry
    segments.check_present(db, grant_id, seq)
    raise LogBroken(f"record {seq} of the log is missing")


def record_at(db: Connection, seq: int) -> Json:
    """A record of the service's own log. Raises LogBroken if there is none."""
    return entry_at(db, None, seq).record


def grants(db: Connection) -> list[str]:
    return list(db.execute(select(_shared.c.grant_id).distinct().order_by(_shared.c.grant_id)).scalars())


def head(db: Connection, grant_id: str | None = None) -> Head:
    """Size and root of a log, from its last record."""
    return head_of(LAST.row(db) if grant_id is None else SHARED.last(db, grant_id))


def live(db: Connection) -> int:
    """The number of records of the own log that are not archived."""
    return head(db).size - segments.size(db)


def head_of(last: Any) -> Head:
    """Size and root of a log from its last record, as a row of ``LAST`` or an entry; from None if it is empty."""
    return EMPTY if last is None else Head(last.seq + 1, merkle_log.root(last.peaks).hex())


def root_at(db: Connection, grant_id: str | None, size: int) -> str | None:
    """Root of a log when it had ``size`` records, or None if it has fewer."""
    if size == 0:
        return EMPTY.root
    peaks = _peaks_at(db, grant_id, size)
    return None if peaks is None else merkle_log.root(peaks).hex()


def _peaks_at(db: Connection, grant_id: str | None, size: int) -> bytes | None:
    table = _log if grant_id is None else _shared
    query = select(table.c.peaks).where(table.c.seq == size - 1)
    if grant_id is not None:
        query = query.where(_shared.c.grant_id == grant_id)
    peaks: bytes | None = db.execute(query).scalar_one_or_none()
    return peaks


def check_end(db: Connection, *, records: int = 100) -> Head:
    """Verify the last ``records`` of the log. Raises LogBroken."""
    end = head(db)
    start = max(segments.size(db), end.size - records)
    peaks = b"" if start == 0 else _peaks_at(db, None, start) or b""
    if len(peaks) != 32 * start.bit_count():
        raise LogBroken(f"record {start - 1} of the log is missing or was changed")
    size = start
    for entry in walk(db, after=start - 1):
        peaks = merkle_log.grow(peaks, size, entry.leaf)
        if entry.seq != size or merkle_log.leaf_hash(entry.body) != entry.leaf or peaks != entry.peaks:
            raise LogBroken(f"record {size} of the log is missing or was changed")
        size += 1
    return end
