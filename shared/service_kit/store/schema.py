"""The schema of a database: its version, and how an older one is brought to it."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, MetaData, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from blindopt.audit.merkle_log import sha256
from blindopt.errors import StateConflict

VERSION = 6
Migrations = Mapping[int, Sequence[str]]
"""By version: the statements that bring a database of the version before it there. They may change append-only tables
(a new column), and name every constraint themselves; tables and indexes that are new are then made by themselves."""
VERBS = ("UPDATE", "DELETE")
_APPEND_ONLY = """
CREATE TRIGGER IF NOT EXISTS {table}_{verb} BEFORE {verb} ON {table}
BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END
"""


def settle(
    db: Connection,
    metadata: tuple[MetaData, ...],
    append_only: tuple[str, ...],
    migrations: tuple[Migrations, ...],
) -> None:
    """Make a new database, or bring an older one to ``VERSION``, in the caller's transaction.

    Raises StateConflict for a database of a newer program, for an older one that no migration is known for, and for a
    migration that leaves a table without a column.
    """
    found = db.execute(text("PRAGMA user_version")).scalar_one()
    if old := found not in (0, VERSION):
        _migrate(db, found, append_only, migrations)
    for tables in metadata:
        tables.create_all(db)
    if old:
        _check_columns(db, metadata)
    for tables in metadata:
        for index in (index for known in tables.sorted_tables for index in known.indexes):
            # One that is new to a table that is not needs no other schema.
            db.execute(CreateIndex(index, if_not_exists=True))
    for table in append_only:
        for verb in VERBS:
            db.execute(text(_APPEND_ONLY.format(table=table, verb=verb)))
    db.execute(text(f"PRAGMA user_version={VERSION}"))


def _migrate(db: Connection, found: int, append_only: tuple[str, ...], migrations: tuple[Migrations, ...]) -> None:
    steps = range(found + 1, VERSION + 1)
    if found > VERSION or not all(any(step in known for known in migrations) for step in steps):
        raise StateConflict(f"the database has schema {found}, this program needs {VERSION}")
    for table in append_only:  # they come back after it
        for verb in VERBS:
            db.execute(text(f"DROP TRIGGER IF EXISTS {table}_{verb}"))
    db.execute(text("PRAGMA defer_foreign_keys=ON"))  # where a table is made anew
    for step in steps:
        for known in migrations:
            for statement in known.get(step, ()):
                db.exec_driver_sql(statement)


def _check_columns(db: Connection, metadata: tuple[MetaData, ...]) -> None:
    for tables in metadata:
        for table in tables.sorted_tables:
            there = {row.name for row in db.execute(text(f"PRAGMA table_info({table.name})"))}
            if missing := {column.name for column in table.columns} - there:
                raise StateConflict(f"the migration left {table.name} without {', '.join(sorted(missing))}")


def digest(metadata: tuple[MetaData, ...], append_only: tuple[str, ...]) -> str:
    """SHA-256 of what makes the schema: tables, and which are append-only. Another one is another version."""
    said = [f"append-only {table}" for table in sorted(append_only)]
    for tables in metadata:
        for table in tables.sorted_tables:
            said.append(" ".join(str(CreateTable(table).compile(dialect=sqlite.dialect())).split()))
    return sha256("\n".join(sorted(said)).encode())
