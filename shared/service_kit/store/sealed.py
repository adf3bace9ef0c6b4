"""Every stored value that is sealed: replies with secrets, and columns whose name begins with ``sealed_``."""

from collections.abc import Callable

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


def seal_anew(db: Connection, again: Callable[[bytes], bytes]) -> None:
    """Replace every sealed value by what ``again`` makes of it, in the caller's transaction."""
    columns, row = (_SQLITE, "rowid") if db.dialect.name == "sqlite" else (_POSTGRES, "ctid")
    for table, column in db.execute(text(columns)).all():
        change = text(f"UPDATE {table} SET {column} = :value WHERE {row} = :at")
        for at, value in db.execute(text(f"SELECT {row}, {column} FROM {table}")).all():
            if value:  # a run that has ended may keep no token
                db.execute(change, {"value": again(value), "at": at})
    stored_replies.seal_anew(db, again)
