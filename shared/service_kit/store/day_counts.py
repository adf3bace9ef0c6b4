"""Amounts by name and day (in UTC), such as the bytes that a grant adds to the logs: of the last day, and in total."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, Integer, Table, Text, bindparam, func, select, update
from sqlalchemy.dialects.postgresql import insert  # which SQLite compiles too

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
_INSERT = insert(_counts)
_CHANGED: Any = {name: _INSERT.excluded[name] for name in ("day", "amount", "total")}
# An insert in any case: PostgreSQL is not waited for until the next statement whose result is read.
_SET = PreparedStatement(_INSERT.on_conflict_do_update(index_elements=[_counts.c.name], set_=_CHANGED))


def find(db: Connection, name: str, now: datetime) -> Any:
    """The row of a name, as of the day of ``now``."""
    row, day = _FIND.row(db, of=name), str(now.date())
    if row is not None and row.day == day:
        return row
    return _FIND.made((name, day, 0, *((0, None) if row is None else row[3:])))


def add(db: Connection, name: str, now: datetime, amount: int, most: int | None = None) -> int | None:
    """Add an amount to that of the day, or return the most of a day, which would be exceeded: ``most`` unless set.

    A negative amount gives back what was added before, perhaps on another day, and is always taken.
    """
    day = str(now.date())
    _, last, of_day, total, limit = _FIND.row(db, of=name) or (name, day, 0, 0, None)
    of_day, total = max(0, (of_day if last == day else 0) + amount), total + amount
    if amount > 0 and (limited := most if limit is None else limit) is not None and of_day > limited:
        return int(limited)
    _SET.run(db, name=name, day=day, amount=of_day, total=total, most=limit)
    _FIND.remember(db, (name, day, of_day, total, limit), of=name)
    return None


def limit(db: Connection, name: str, now: datetime, most: int | None) -> None:
    add(db, name, now, 0)
    db.execute(update(_counts).where(_counts.c.name == name).values(most=most))


def of_day(db: Connection, now: datetime) -> Iterator[Any]:
    """Stream the rows with an amount of the day of ``now``."""
    yield from db.execute(select(_counts).where(_counts.c.day == str(now.date())))


def total(db: Connection) -> int:
    return int(db.execute(select(func.coalesce(func.sum(_counts.c.total), 0))).scalar_one())
