"""Every stored value that is sealed: replies with secrets, and columns whose name begins with ``sealed_``."""

from collections.abc import Callable, Iterator

from sqlalchemy import Connection, text

from service_kit.store import stored_replies
from service_kit.store.schema import is_postgres

_SQLITE = """
SELECT t.name AS of, c.name AS name FROM sqlite_master t JOIN pragma_table_info(t.name) c
WHERE t.type = 'table' AND substr(c.name, 1, 7) = 'sealed_'
"""
_POSTGRES = """
SELECT table_name, column_name FROM information_schema.columns
WHERE table_schema = current_schema() AND starts_with(column_name, 'sealed_')
"""


def values(db: Connection, limit: int | None = None) -> Iterator[bytes]:
    """Every sealed value, or ``limit`` of each table."""
    most = "" if limit is None else f" LIMIT {limit:d}"
    for table, column in _columns(db):
        yield from db.execute(text(f"SELECT {column} FROM {table} WHERE length({column}) > 0{most}")).scalars()
    yield from stored_replies.sealed_bodies(db, limit)


def seal_anew(db: Connection, again: Callable[[bytes], bytes]) -> None:
    """Replace every sealed value by what ``again`` makes of it, in the caller's transaction."""
    row = "ctid" if is_postgres(db) else "rowid"
    for table, column in _columns(db):
        change = text(f"UPDATE {table} SET {column} = :value WHERE {row} = :at")
        for at, value in db.execute(text(f"SELECT {row}, {column} FROM {table}")).all():
            if value:  # a run that has ended may keep no token
                db.execute(change, {"value": again(value), "at": at})
    stored_replies.seal_anew(db, again)


def _columns(db: Connection) -> list[tuple[str, str]]:
    columns = db.execute(text(_POSTGRES if is_postgres(db) else _SQLITE))
    return [(table, column) for table, column in columns]
