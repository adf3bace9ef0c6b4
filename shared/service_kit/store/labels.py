"""What people archive, describe and tag: rows with ``archived_at``, and perhaps ``note`` and ``tags``."""

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, TableValuedAlias, delete, func, select, update
from sqlalchemy import Table as Table

from blindopt import wire
from service_kit.store.database import Connection
from service_kit.store.schema import unguarded


@dataclass(frozen=True, slots=True)
class ListFilter:
    """Which rows are listed; None: all."""

    archived: bool | None = None
    tag: str | None = None

    def of(self, table: Table) -> list[ColumnElement[bool]]:
        """The conditions on the rows of a table."""
        where: list[ColumnElement[bool]] = []
        if self.archived is not None:
            at = table.c.archived_at
            where.append(at.is_not(None) if self.archived else at.is_(None))
        if self.tag is not None:
            each = _each_tag(table)
            where.append(select(each.c.value).where(each.c.value == self.tag).exists())
        return where


EVERYTHING = ListFilter()


def tags_of(row: Any) -> list[str]:
    """The tags of a row."""
    return list(json.loads(row.tags or "[]"))


def tags_in_use(db: Connection, table: Table) -> list[str]:
    """Every tag of a row of a table that is not archived, in order."""
    each = _each_tag(table)
    query = select(each.c.value).select_from(table, each).where(table.c.archived_at.is_(None))
    return sorted(db.execute(query.distinct()).scalars())


def _each_tag(table: Table) -> TableValuedAlias:
    return func.json_each(table.c.tags).table_valued("value", joins_implicitly=True)


def change(db: Connection, table: Table, identity: str, **values: Any) -> None:
    """Change the row with this id."""
    db.execute(update(table).where(table.c.id == identity).values(**values))


def set_labels(db: Connection, table: Table, identity: str, wanted: wire.Labels) -> None:
    """Replace note and tags of the row with this id."""
    tags = json.dumps(sorted(wanted.tags), ensure_ascii=False) if wanted.tags else None
    change(db, table, identity, note=(wanted.note or "").strip() or None, tags=tags)


def remove(db: Connection, table: Table, where: ColumnElement[bool]) -> None:
    """Delete rows, also of an append-only table: its trigger is absent until they are deleted."""
    with unguarded(db, table.name):
        db.execute(delete(table).where(where))
