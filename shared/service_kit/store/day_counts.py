"""Amounts by name and day (in UTC), such as the bytes that a grant adds to the logs: of the last day, and in total."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, Integer, Table, Text, bindparam, func, select, update

from service_kit.store.base import METADATA
from service_kit.store.prepared_statement import PreparedStatement

_counts = Table(
    "day_counts",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("day", Text, nullable=False),
    Column("amount", Integer, nullable=False),  # of this day
    Column("total", Integer, nullable=False),
    Column("most", Integer),  # of a day; null: what the settings say
)
_FIND = PreparedStatement(select(_counts).where(_counts.c.name == bindparam("of")), kept=True)
_ADD = PreparedStatement(_counts.insert())
_CHANGED: dict[str, Any] = {
    column.name: bindparam(f"new_{column.name}") for column in _counts.c if column.name != "name"
}
_CHANGE = PreparedStatement(update(_counts).where(_counts.c.name == bindparam("of")).values(_CHANGED))


def find(db: Connection, name: str, now: datetime) -> Any:
    """The row of a name, as of the day of ``now``."""
    row = _FIND.row(db, of=name)
    day = f"{now:%Y-%m-%d}"
    if row is None:
        return _FIND.made((name, day, 0, 0, None))
    return row if row.day == day else _FIND.made((name, day, 0, row.total, row.most))


def add(db: Connection, name: str, now: datetime, amount: int) -> None:
    """Add an amount to that of the day."""
    row = find(db, name, now)
    _store(db, row._replace(amount=row.amount + amount, total=row.total + amount))


def limit(db: Connection, name: str, now: datetime, most: int | None) -> None:
    """Set the most of a day."""
    _store(db, find(db, name, now)._replace(most=most))


def _store(db: Connection, row: Any) -> None:
    if _FIND.row(db, of=row.name) is None:
        _ADD.run(db, **row._asdict())
    else:
        _CHANGE.run(db, of=row.name, **{f"new_{name}": value for name, value in row._asdict().items()})
    _FIND.remember(db, tuple(row), of=row.name)


def of_day(db: Connection, now: datetime) -> Iterator[Any]:
    """Stream the rows with an amount of the day of ``now``."""
    yield from db.execute(select(_counts).where(_counts.c.day == f"{now:%Y-%m-%d}"))


def total(db: Connection) -> int:
    """What all names have together."""
    return int(db.execute(select(func.coalesce(func.sum(_counts.c.total), 0))).scalar_one())
