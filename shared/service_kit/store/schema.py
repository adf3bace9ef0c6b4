"""The schema of a database: its version, and how an older one is brought to it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache

from sqlalchemy import Connection, MetaData, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import CreateIndex, CreateTable

from blindopt.audit.merkle_log import sha256
from blindopt.errors import StateConflict
from service_kit.store import StoreFault

VERSION = 21
Migrations = Mapping[int, Sequence[str]]
"""By version: the statements that migrate a database of the version before. They may change append-only tables (a new
column), and name every constraint. New tables and indexes need no statement: they are created afterwards."""
VERBS = ("UPDATE", "DELETE")
_APPEND_ONLY = """
CREATE TRIGGER IF NOT EXISTS {table}_{verb} BEFORE {verb} ON {table}
BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END
"""


def prepare(
    db: Connection, metadata: tuple[MetaData, ...], append_only: tuple[str, ...], migrations: tuple[Migrations, ...]
) -> bool:
    """Create the schema in a new database, or migrate an older one to ``VERSION``, in the caller's transaction.

    Return whether it was an older one.

    Raises StateConflict for a database of a newer program, for an older one without a migration, and for one of a
    program that was never released, whose tables lack a column, or have one too early.
    """
    version = db.execute(text("PRAGMA user_version")).scalar_one()
    if is_older := version not in (0, VERSION):
        _migrate(db, version, append_only, migrations)
        _check_columns(db, metadata, version)
    for statement in _creations(metadata, append_only):
        db.exec_driver_sql(statement)
    if version != VERSION:  # a command that only reads does not write, which a running service would see
        db.execute(text(f"PRAGMA user_version={VERSION}"))
    return bool(is_older)


@cache  # to compile them takes longer than to run them
def _creations(metadata: tuple[MetaData, ...], append_only: tuple[str, ...]) -> tuple[str, ...]:
    """The statements that create each table, index and trigger that is missing."""
    tables = [table for each in metadata for table in each.sorted_tables]
    indexes = [index for table in tables for index in sorted(table.indexes, key=lambda index: str(index.name))]
    created: list[CreateTable | CreateIndex] = [
        *(CreateTable(table, if_not_exists=True) for table in tables),
        *(CreateIndex(index, if_not_exists=True) for index in indexes),  # a new one on an old table needs no migration
    ]
    triggers = [_APPEND_ONLY.format(table=name, verb=verb) for name in append_only for verb in VERBS]
    return *(str(each.compile(dialect=sqlite.dialect())) for each in created), *triggers


def check(db: Connection, append_only: tuple[str, ...]) -> None:
    """Write one page, as any transaction does, and check the triggers of the append-only tables. Raises StoreFault."""
    db.execute(text(f"PRAGMA user_version={VERSION}"))
    triggers = set(db.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars())
    if not triggers >= {f"{table}_{verb}" for table in append_only for verb in VERBS}:
        raise StoreFault("an append-only table has lost its trigger")


def is_postgres(db: Connection) -> bool:
    """Whether a statement needs PostgreSQL's own text; else that of SQLite."""
    return db.dialect.name == "postgresql"


@contextmanager
def unguarded(db: Connection, table: str) -> Iterator[None]:
    """Let rows of a table be changed, in the caller's transaction, also where the table is append-only."""
    if is_postgres(db):
        setting = text("SELECT set_config('blindopt.unguarded', :table, true)")
        db.execute(setting, {"table": table})
        yield
        db.execute(setting, {"table": ""})
        return
    query = text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = :table")
    triggers = db.execute(query, {"table": table}).all()
    for trigger in triggers:
        db.exec_driver_sql(f"DROP TRIGGER {trigger.name}")
    yield
    for trigger in triggers:
        db.exec_driver_sql(trigger.sql)


def steps(version: int, migrations: tuple[Migrations, ...]) -> range:
    """The versions to pass from an older one. Raises StateConflict where there is no way, as from a newer one."""
    passed = range(version + 1, VERSION + 1)
    if version > VERSION or not all(any(step in statements for statements in migrations) for step in passed):
        raise StateConflict(
            f"the database has schema {version}, this program needs {VERSION}: take the version that wrote it"
        )
    return passed


def _migrate(db: Connection, version: int, append_only: tuple[str, ...], migrations: tuple[Migrations, ...]) -> None:
    each_step = steps(version, migrations)
    for table in append_only:  # ``prepare`` creates them again
        for verb in VERBS:
            db.execute(text(f"DROP TRIGGER IF EXISTS {table}_{verb}"))
    db.execute(text("PRAGMA defer_foreign_keys=ON"))  # for tables that are created anew
    for step in each_step:
        for statements in migrations:
            for statement in statements.get(step, ()):
                try:
                    db.exec_driver_sql(statement)
                except OperationalError as error:
                    if not str(error.orig).startswith("duplicate column"):
                        raise
                    raise _never_released(version, str(error.orig)) from None


def _never_released(version: int, difference: str) -> StateConflict:
    return StateConflict(
        f"the database has schema {version} of a program that was never released ({difference}): no version upgrades "
        "it, so take the program that wrote it"
    )


def _check_columns(db: Connection, metadata: tuple[MetaData, ...], version: int) -> None:
    for tables in metadata:
        for table in tables.sorted_tables:
            names = {row.name for row in db.execute(text(f"PRAGMA table_xinfo({table.name})"))}
            if names and (missing := {column.name for column in table.columns} - names):
                raise _never_released(version, f"no {table.name}.{min(missing)}")


def digest(metadata: tuple[MetaData, ...], append_only: tuple[str, ...]) -> str:
    """SHA-256 of the schema: its tables, and which are append-only. Another digest needs another version."""
    lines = [f"append-only {table}" for table in sorted(append_only)]
    for tables in metadata:
        for table in tables.sorted_tables:
            lines.append(" ".join(str(CreateTable(table).compile(dialect=sqlite.dialect())).split()))
    return sha256("\n".join(sorted(lines)).encode())
