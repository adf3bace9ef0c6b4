"""Every stored value that is sealed: replies with secrets, and columns whose name begins with ``sealed_``."""

from collections.abc import Callable, Iterator

from sqlalchemy import Connection, text

from service_kit.store import stored_replies

_SQLITE = """
SELECT t.name AS of, c.name AS name FROM sqlite_master t JOIN pragma_table_info(t.name) c
WHERE t.type = 'table' AND substr(c.name, 1, 7) = 'sealed_'
"""
_POSTGRES = """
SELECT table_name, column_name FROM information_schema.columns
WHERE table_schema = current_schema() AND starts_with(column_name, 'sealed_')
"""


def values(db: Connection) -> Iterator[bytes]:
    """Every sealed value."""
    for table, column in _columns(db):
        yield from (value for (value,) in db.execute(text(f"SELECT {column} FROM {table}")) if value)
    yield from stored_replies.sealed_bodies(db)


def first(db: Connection) -> bytes | None:
    """A sealed value, or None if there is none."""
    for table, column in _columns(db):
        query = text(f"SELECT {column} FROM {table} WHERE length({column}) > 0 LIMIT 1")
        if (value := db.execute(query).scalar()) is not None:
            return bytes(value)
    return next(stored_replies.sealed_bodies(db, limit=1), None)


def seal_anew(db: Connection, again: Callable[[bytes], bytes]) -> None:
    """Replace every sealed value by what ``again`` makes of it, in the caller's transaction."""
    row = "rowid" if db.dialect.name == "sqlite" else "ctid"
    for table, column in _columns(db):
        change = text(f"UPDATE {table} SET {column} = :value WHERE {row} = :at")
        for at, value in db.execute(text(f"SELECT {row}, {column} FROM {table}")).all():
            if value:  # a run that has ended may keep no token
                db.execute(change, {"value": again(value), "at": at})
    stored_replies.seal_anew(db, again)


def _columns(db: Connection) -> list[tuple[str, str]]:
    columns = _SQLITE if db.dialect.name == "sqlite" else _POSTGRES
    return [(table, column) for table, column in db.execute(text(columns))]
