"""What people archive, describe and tag: rows with ``archived_at``, and perhaps ``note`` and ``tags``."""

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy import Table as Table

from blindopt import wire
from service_kit.store.database import Connection
from service_kit.store.schema import is_postgres, unguarded


@dataclass(frozen=True, slots=True)
class ListFilter:
    """Which rows are listed; None: all."""

    archived: bool | None = None
    tag: str | None = None

    def of(self, db: Connection, table: Table) -> list[ColumnElement[bool]]:
        where: list[ColumnElement[bool]] = []
        if self.archived is not None:
            at = table.c.archived_at
            where.append(at.is_not(None) if self.archived else at.is_(None))
        if self.tag is not None:
            tags = table.c.tags
            values = func.json_array_elements_text(func.as_json(tags)) if is_postgres(db) else func.json_each(tags)
            tag = values.table_valued("value", joins_implicitly=True).c.value
            where.append(select(tag).where(tag == self.tag).exists())
        return where


EVERYTHING = ListFilter()


def tags_of(row: Any) -> list[str]:
    return list(json.loads(row.tags or "[]"))


def tags_in_use(db: Connection, table: Table) -> list[str]:
    """Every tag of a row of a table that is not archived, in order."""
    rows = db.execute(select(table.c.tags).where(table.c.archived_at.is_(None)).distinct())
    return sorted({tag for row in rows for tag in tags_of(row)})


def change(db: Connection, table: Table, identity: str, **values: Any) -> None:
    db.execute(update(table).where(table.c.id == identity).values(**values))


def set_labels(db: Connection, table: Table, identity: str, wanted: wire.Labels) -> None:
    """Replace note and tags of the row with this id."""
    tags = json.dumps(sorted(wanted.tags), ensure_ascii=False) if wanted.tags else None
    change(db, table, identity, note=(wanted.note or "").strip() or None, tags=tags)


def remove(db: Connection, table: Table, where: ColumnElement[bool]) -> None:
    """Delete rows, also of an append-only table: its trigger is absent until they are deleted."""
    with unguarded(db, table.name):
        db.execute(delete(table).where(where))
