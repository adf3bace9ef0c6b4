"""The schema has a version: a table that changes needs another one, and a way from the one before."""

import re
import shutil
import sqlite3
from contextlib import closing
from unittest.mock import Mock

import pytest
from sqlalchemy import Column, Index, Integer, MetaData, Table, Text

from blindopt.errors import AuditUnavailable, StateConflict
from curator_service.context import open_context as _curator  # noqa: F401  every table is there
from curator_service.store import base as curator
from modeler_service import store as modeler
from service_kit.store import base, schema
from service_kit.store.database import Database, StoreFault
from service_kit.store.sqlite import Sqlite

SIDES = {"curator": curator, "modeler": modeler}
PINNED = {
    "curator": (21, "e25bd3f7b3801cc40ce8d4d05c8478994c6324ca76abc9a8fb1a1e93df425384"),
    "modeler": (21, "85b1accf70bb29c1ddd63fe49fc1c23b7cf317a3e90d9e9bb5934df292d4a0b8"),
}


@pytest.mark.parametrize("side", SIDES)
def test_the_tables_are_those_of_their_version(side):
    """Where this fails: raise schema.VERSION, write its migration (architecture.md says how), then pin the tables."""
    own = SIDES[side]
    tables, append_only = (base.METADATA, own.METADATA), (*base.APPEND_ONLY, *own.APPEND_ONLY)
    assert (schema.VERSION, schema.digest(tables, append_only)) == PINNED[side]


@pytest.mark.parametrize("side", SIDES)
def test_what_is_migrated_to_is_a_version_that_there_is(side):
    assert {*base.MIGRATIONS, *SIDES[side].MIGRATIONS} <= set(range(2, schema.VERSION + 1))


# --- with tables that are made up --------------------------------------------------------------------


def before():
    tables = MetaData()
    Table("messages", tables, Column("seq", Integer, primary_key=True), Column("body", Text, nullable=False))
    return tables


def after(*more):
    tables = MetaData()
    table = Table(
        "messages", tables, Column("seq", Integer, primary_key=True), Column("body", Text, nullable=False), *more
    )
    Table("fresh", tables, Column("id", Text, primary_key=True), Column("number", Integer, nullable=False))
    return tables, table


def column():
    return Column("length", Integer, nullable=False, server_default="0")


ADD_LENGTH = [
    "ALTER TABLE messages ADD COLUMN length INTEGER DEFAULT 0 NOT NULL",
    "UPDATE messages SET length = length(body)",
]
OTHER = {schema.VERSION: []}


@pytest.fixture
def old(tmp_path):
    """A database of the version before, with two rows in an append-only table."""
    opened = Database(tmp_path / "x.sqlite", (before(),), append_only=("messages",))
    opened.write(lambda db: db.exec_driver_sql("INSERT INTO messages VALUES (1, 'a'), (2, 'bcd')"))
    opened.close()
    return _set_version(opened.path, schema.VERSION - 1)


def _set_version(path, version):
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version={version}")
    return path


def of(path, statement):
    with closing(sqlite3.connect(path)) as db:
        return db.execute(statement).fetchall()


def reopened(path, tables, *migrations):
    opened = Database(path, (tables,), append_only=("messages",), migrations=migrations)
    with pytest.raises(StoreFault):  # append-only again
        opened.write(lambda db: db.exec_driver_sql("DELETE FROM messages"))
    opened.check_writable()
    opened.close()


def test_an_older_database_is_brought_to_this_version_and_keeps_its_rows(old):
    reopened(old, after(column())[0], OTHER, {schema.VERSION: ADD_LENGTH})
    assert of(old, "SELECT * FROM messages") == [(1, "a", 1), (2, "bcd", 3)]
    assert of(old, "SELECT * FROM fresh") == []
    assert of(old, "PRAGMA user_version") == [(schema.VERSION,)]
    reopened(old, after(column())[0], OTHER, {schema.VERSION: ADD_LENGTH})  # once


@pytest.mark.parametrize(("version", "stays", "kill"), [(11, False, False), (11, False, True), (12, True, False)])
def test_only_a_file_that_may_hold_what_was_deleted_is_written_anew(old, version, stays, kill, monkeypatch):
    """Since schema 12 what is deleted is overwritten at once: a new copy of a large file would take minutes.

    A start that is killed meanwhile is followed by one that writes the file anew.
    """
    with closing(sqlite3.connect(old)) as db:
        db.execute("PRAGMA secure_delete=OFF")
        db.execute("CREATE TABLE gone AS SELECT printf('%.*c', 20000, '-') || 'a secret of long ago' AS words")
        db.execute("DROP TABLE gone")
        db.commit()
    migrations = dict.fromkeys(range(version + 1, schema.VERSION), ()) | {schema.VERSION: ADD_LENGTH}
    _set_version(old, version)
    if kill:
        with monkeypatch.context() as patch:
            patch.setattr(Sqlite, "rewrite", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                reopened(old, after(column())[0], migrations)
    with closing(sqlite3.connect(old)) as beside:  # as a console of the database, or a copy that is under way
        assert beside.execute("SELECT count(*) FROM messages").fetchone() == (2,)
        reopened(old, after(column())[0], migrations)
        assert (b"a secret of long ago" in old.read_bytes()) == stays
    assert of(old, "SELECT body FROM messages") == [("a",), ("bcd",)]


def test_two_versions_are_passed_in_their_order_and_new_indexes_are_made(old):
    _set_version(old, schema.VERSION - 2)
    tables, table = after(column())
    Index("by_length", table.c.length)
    in_order = {schema.VERSION: ["UPDATE messages SET length = length + 1"], schema.VERSION - 1: ADD_LENGTH}
    reopened(old, tables, in_order)
    assert of(old, "SELECT length FROM messages") == [(2,), (4,)]
    assert of(old, "SELECT name FROM sqlite_master WHERE name = 'by_length'") == [("by_length",)]
    assert of(old, "PRAGMA user_version") == [(schema.VERSION,)]


@pytest.mark.parametrize(
    ("migrations", "error"),
    [
        ({}, StateConflict),
        ({schema.VERSION + 1: []}, StateConflict),
        ({schema.VERSION: ADD_LENGTH[:0]}, StateConflict),
        ({schema.VERSION: [ADD_LENGTH[0], "UPDATE messages SET length = nothing"]}, AuditUnavailable),
        ({schema.VERSION: [ADD_LENGTH[0], "INSERT INTO messages VALUES (1, 'again', 0)"]}, StoreFault),
    ],
    ids=["no way", "no way from here", "a column is missing", "a statement is wrong", "a row is refused"],
)
def test_a_migration_that_cannot_be_done_leaves_everything_as_it_was(migrations, error, old):
    query = "SELECT type, name, sql FROM sqlite_master"
    definitions = of(old, query)
    with pytest.raises(error):
        Database(old, (after(column())[0],), append_only=("messages",), migrations=(migrations,))
    assert (of(old, query), of(old, "PRAGMA user_version")) == (definitions, [(schema.VERSION - 1,)])
    assert of(old, "SELECT * FROM messages") == [(1, "a"), (2, "bcd")]


def test_a_database_of_a_program_that_was_never_released_is_refused_in_words(old):
    """Its version has a migration, but its tables are not those of the release with that version."""
    words = rf"schema {schema.VERSION - 1} of a program that was never released \(no messages\.length\)"
    with pytest.raises(StateConflict, match=words):
        Database(old, (after(column())[0],), append_only=("messages",), migrations=(OTHER,))


ADDED = [
    (side, version, *words)
    for side, store in SIDES.items()
    for migrations in (base.MIGRATIONS, store.MIGRATIONS)
    for version, statements in migrations.items()
    for statement in statements
    for words in re.findall(r"ALTER TABLE (\w+) ADD COLUMN (\w+)", statement)
]


@pytest.mark.parametrize("side", SIDES)
def test_each_state_between_versions_that_lacks_a_column_or_has_one_too_early_is_refused_in_words(side, tmp_path):
    store = SIDES[side]
    tables, append_only = (base.METADATA, store.METADATA), (*base.APPEND_ONLY, *store.APPEND_ONLY)
    options = {"append_only": append_only, "migrations": (base.MIGRATIONS, store.MIGRATIONS)}
    Database(tmp_path / "new.sqlite", tables, **options).close()
    columns = [added[1:] for added in ADDED if added[0] == side]
    assert len(columns) > 5
    for version, table, name in columns:
        of_later = {added for added in columns if added[0] > version}
        before = {added for added in columns if added[0] >= version and added[1:] != (table, name)}
        for claimed, missing, words in (
            (version, {*of_later, (version, table, name)}, rf"no {table}\.{name}"),
            (version - 1, before, f"duplicate column name: {name}"),
        ):
            copied = shutil.copy(tmp_path / "new.sqlite", tmp_path / f"{claimed}-{table}-{name}.sqlite")
            path = _set_version(copied, claimed)
            with closing(sqlite3.connect(path)) as db:
                indexes = db.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND sql > ''").fetchall()
                for (index,) in indexes:
                    db.execute(f"DROP INDEX {index}")
                for _, of_table, column_name in missing:
                    db.execute(f"ALTER TABLE {of_table} DROP COLUMN {column_name}")
            with pytest.raises(StateConflict, match=rf"schema {claimed} .* never released \({words}\)"):
                Database(path, tables, **options)
            assert of(path, "PRAGMA user_version") == [(claimed,)]


def test_another_table_column_or_promise_is_another_schema_and_an_index_is_not():
    seen = {schema.digest((before(),), ()), schema.digest((before(),), ("messages",))}
    for more in ([], [column()], [Column("length", Text)]):
        tables, table = after(*more)
        seen.add(schema.digest((tables,), ()))
        Index("by_body", table.c.body)
        seen.add(schema.digest((tables,), ()))
    assert len(seen) == 5
    assert schema.digest((before(),), ()) == schema.digest((before(),), ())
