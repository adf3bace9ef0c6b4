"""What every table shares: the metadata, the migrations, how it follows from its rows, and how a time is stored."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import NoneType, UnionType
from typing import Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints

from sqlalchemy import Column, Connection, ForeignKey, MetaData, Select, Table, func, select, types
from sqlalchemy.schema import SchemaItem

from service_kit.store.schema import Migrations

Clock = Callable[[], datetime]
MacOf = Callable[..., bytes]
"""Returns the MAC of values, under a key that is not in the database."""
METADATA = MetaData()
KIND = "CASE WHEN json_valid(CAST(body AS TEXT)) THEN json_extract(CAST(body AS TEXT), '$.kind') END"
MIGRATIONS: Migrations = {
    11: [f"ALTER TABLE log ADD COLUMN kind TEXT GENERATED ALWAYS AS ({KIND}) VIRTUAL"],
    13: ["ALTER TABLE replies ADD COLUMN log_seq INTEGER"],
    14: ["ALTER TABLE tokens ADD COLUMN mac BLOB", "ALTER TABLE users ADD COLUMN mac BLOB"],
    19: [],
    20: [],
    21: [],
}
"""Migrations of the tables that both services have."""
ERASABLE = {"erasable": True}
"""Of a column of an append-only table: an erasure overwrites it."""
_TYPES: Mapping[Any, Any] = {str: types.Text, int: types.Integer, float: types.Float, bytes: types.LargeBinary}
APPEND_ONLY = ("log", "shared", "receipts", "keys", "countersignatures", "replies", "segments")
ARCHIVED_KINDS = ("exchange", "charge", "charge.refused", "session.opened", "session.ended", "checkpoint.countersigned")
"""Kinds of records that leave the database with their segment. Those of other kinds are few: they are read later."""
SEGMENT_RECORDS = 65_536
"""Of the log: their root is one node of the tree over it."""


class Schema(Protocol):
    """The tables of one service: a module that has these names."""

    METADATA: MetaData
    MIGRATIONS: Migrations

    @property
    def APPEND_ONLY(self) -> tuple[str, ...]: ...  # noqa: N802  a constant of the module


def table_of(kind: type[Any], name: str, metadata: MetaData, *more: SchemaItem, **options: Mapping[str, Any]) -> Table:
    """The table of a class of rows: a column for each field, of its type and in its order, null where it may be None.

    ``more`` are constraints and indexes. ``options`` has what some columns have besides, and what each ``references``.
    """
    columns: list[Column[Any]] = []
    for field, hint in get_type_hints(kind).items():
        members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        value = next(member for member in members if member is not NoneType)
        scalar = type(get_args(value)[0]) if get_origin(value) is Literal else value
        column_options = {"nullable": NoneType in members, **options.get(field, {})}
        references = [ForeignKey(key) for key in [column_options.pop("references", None)] if key]
        columns.append(Column(field, _TYPES[scalar], *references, **column_options))
    return Table(name, metadata, *columns, *more)


def utc_now() -> datetime:
    return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """A time as RFC 3339 in UTC with microseconds, which sorts as text."""
    in_utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    # As it is, isoformat is faster, and leaves out microseconds that are 0.
    text = in_utc.isoformat() if in_utc.microsecond else in_utc.isoformat(timespec="microseconds")
    return text[: -len("+00:00")] + "Z"


def states(db: Connection, jobs: Table) -> dict[str, int]:
    counts = select(jobs.c.state, func.count()).group_by(jobs.c.state)
    return {row[0]: row[1] for row in db.execute(counts)}


def page_of(
    query: Select[Any], order: Column[int], *, position: int | None, newest: bool, limit: int | None
) -> Select[Any]:
    """Rows after a position in an order, or before it with the newest first; None: from the first or the last."""
    if position is not None:
        query = query.where(order < position if newest else order > position)
    return query.order_by(order.desc() if newest else order).limit(limit)


def moment(text: str) -> datetime:
    """The time that ``stamp`` wrote."""
    return datetime.fromisoformat(text)
