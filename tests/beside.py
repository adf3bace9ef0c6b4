"""The tables of a service as another hand reaches them, beside it: in the file of SQLite, or in PostgreSQL."""

import re
import shutil
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from service_kit.store.database import Database
from tests import postgres


def connect(path: Path, address: str | None = None) -> Any:
    """A connection to the database that services have as ``path``, at ``address``; as that of ``sqlite3``.

    It takes ``?`` for values. What is not committed is undone by ``close``.
    """
    address = address or postgres.address_for(path)
    if address is None:
        return sqlite3.connect(path.absolute().as_uri() + "?mode=rw", uri=True, timeout=60)
    import psycopg

    class Connection(psycopg.Connection[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            query = _of_postgres(query)
            query = query.replace("%", "%%").replace("?", "%s") if params else query
            return super().execute(query, params or None, **options)

        def executemany(self, query: str, rows: Iterable[Sequence[object]]) -> None:
            for row in rows:
                self.execute(query, row)

    return Connection.connect(address, options=f"-c search_path={path.stem},public")


def _of_postgres(query: str) -> str:
    """What tests write as SQLite has it: bytes, and their text."""
    query = re.sub(r"CAST\((body|reply) AS TEXT\)", r"convert_from(\1, 'UTF8')", query)
    query = re.sub(r"CAST\((.*) AS BLOB\)", r"as_bytes(\1)", query)
    return re.sub(r"\bx'([0-9a-f]*)'", r"'\\x\1'::bytea", query)


def triggers(db: Any) -> list[tuple[str, str]]:
    """The triggers that refuse a statement, each with its table."""
    query = (
        "SELECT tgname, relname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid JOIN pg_proc ON pg_proc.oid ="
        " tgfoid WHERE proname IN ('refuse_change', 'broken') AND relnamespace = current_schema()::regnamespace"
    )
    if _is_file(db):
        query = "SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger'"
    return [(name, table) for name, table in execute(db, query).fetchall()]


def drop_triggers(db: Any, *names: str) -> None:
    """Drop what keeps append-only tables; without names all of it, and foreign keys are not checked any more.

    ``db`` is what ``connect`` returned, or a connection of SQLAlchemy in a transaction that writes.
    """
    for name, table in triggers(db):
        if not names or name.lower() in {each.lower() for each in names}:
            execute(db, f"DROP TRIGGER {name}" if _is_file(db) else f'DROP TRIGGER "{name}" ON "{table}"')
    if not names:
        off = "PRAGMA defer_foreign_keys=ON" if _is_file(db) else "SET LOCAL session_replication_role = replica"
        execute(db, off)
    if not _is_file(db):  # no trigger says so any more
        execute(db, "UPDATE state SET writer = 'another'")


def version(db: Any) -> int:
    """The version of the schema."""
    query = "PRAGMA user_version" if _is_file(db) else "SELECT version FROM state"
    return int(execute(db, query).fetchone()[0])


def set_version(db: Any, number: int) -> None:
    """Say that the schema is of another version."""
    execute(db, f"PRAGMA user_version = {number}" if _is_file(db) else f"UPDATE state SET version = {number}")


def _is_file(db: Any) -> bool:
    return isinstance(db, sqlite3.Connection) or getattr(getattr(db, "dialect", None), "name", "") == "sqlite"


def execute(db: Any, statement: str) -> Any:
    """Run a statement as SQLite has it, on what ``connect`` returned or a connection of SQLAlchemy."""
    statement = statement if _is_file(db) else _of_postgres(statement)
    return (getattr(db, "exec_driver_sql", None) or db.execute)(statement)


def refuse_inserts(db: Any, table: str, words: str) -> None:
    """Make a trigger ``broken`` that refuses inserts into a table with an error of these words."""
    if isinstance(db, sqlite3.Connection):
        db.execute(f"CREATE TRIGGER broken BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, '{words}'); END")
    else:
        raising = f"BEGIN RAISE EXCEPTION '{words}'; END"
        db.execute(f"CREATE OR REPLACE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ {raising} $$")
        db.execute(f"CREATE TRIGGER broken BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION broken()")
    db.commit()


def columns(db: Any, table: str) -> list[str]:
    """The names of the columns of a table, those that are computed left out."""
    if isinstance(db, sqlite3.Connection):
        return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    query = "SELECT attname FROM pg_attribute WHERE attrelid = ?::regclass AND attnum > 0 AND attgenerated = ''"
    return [name for (name,) in db.execute(f"{query} ORDER BY attnum", (table,))]


def copytree(source: Path, target: Path) -> None:
    """Copy a folder in which stopped services have their data, with their databases."""
    shutil.copytree(source, target)
    if postgres.ON:
        for folder in (source, *(path for path in source.rglob("*") if path.is_dir())):
            postgres.copy_database(folder, target / folder.relative_to(source))


def copy(source: Path, target: Path) -> None:
    """Copy a database alone, also beside a service that writes to it."""
    if postgres.ON:
        postgres.dump(postgres.url_of(source.parent), postgres.url_of(target.parent), source.stem)
        return
    with closing(connect(source)) as db:
        db.execute("VACUUM INTO ?", (str(target),))


def files(database: Database) -> list[Path]:
    """The files in which the tables of a database are."""
    if database.url is not None:
        return postgres.files_of(database.url)
    return list(database.path.parent.glob(f"{database.path.name}*"))


def stored(path: Path) -> bytes:
    """All bytes that a database holds: its files and, as PostgreSQL compresses long values in them, its rows."""
    if not postgres.ON:
        return b"".join(each.read_bytes() for each in sorted(path.parent.glob(f"{path.name}*")))
    parts = [each.read_bytes() for each in postgres.files_of(postgres.url_of(path.parent))]
    with closing(connect(path)) as db:
        tables = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()").fetchall()
        for (table,) in tables:
            for row in db.execute(f'SELECT * FROM "{table}"'):
                parts += [value if isinstance(value, bytes) else str(value).encode() for value in row]
    return b"\n".join(parts)


def edit(path: Path, statement: str, *values: object) -> None:
    """Change one row, also of what is append-only, and leave every trigger as it was."""
    with closing(connect(path)) as db:
        triggers_of_file: list[tuple[str, str]] = []
        if _is_file(db):
            triggers_of_file = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
            for name, _ in triggers_of_file:
                db.execute(f"DROP TRIGGER {name}")
        else:  # no trigger runs, not the one that notes who wrote either
            db.execute("SET LOCAL session_replication_role = replica")
            db.execute("UPDATE state SET writer = 'another'")
        assert db.execute(statement, values).rowcount == 1
        for _, sql in triggers_of_file:
            db.execute(sql)
        db.commit()


def empty_log_of_changes(path: Path) -> None:
    """Leave nothing beside the file of SQLite, so that it can be copied."""
    if not postgres.ON:
        with closing(connect(path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
