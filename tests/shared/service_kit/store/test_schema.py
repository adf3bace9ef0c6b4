"""The schema has a version: a table that changes needs another one, and a way from the one before."""

import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import Column, Index, Integer, MetaData, Table, Text

from blindopt.errors import AuditUnavailable, StateConflict
from curator_service.context import open_context as _curator  # noqa: F401  every table is there
from curator_service.store import base as curator
from modeler_service import store as modeler
from service_kit.store import base, schema
from service_kit.store.database import Database, StoreFault

SIDES = {"curator": curator, "modeler": modeler}
PINNED = {
    "curator": (6, "dbe69dba7e0e7f7e3c5da84879f9bc14de63a1667d20cf5619141964e2ed062a"),
    "modeler": (6, "8739e4dd5bcd929b6da1b81eea83eabd84fcac9003d10cc97469f48a32c7b8c8"),
}


@pytest.mark.parametrize("side", SIDES)
def test_the_tables_are_those_of_their_version(side):
    """Where this fails: raise schema.VERSION, write its migration (docs/operations.md), then pin what it is now."""
    own = SIDES[side]
    tables, append_only = (base.METADATA, own.METADATA), (*base.APPEND_ONLY, *own.APPEND_ONLY)
    assert (schema.VERSION, schema.digest(tables, append_only)) == PINNED[side]


@pytest.mark.parametrize("side", SIDES)
def test_what_is_migrated_to_is_a_version_that_there_is(side):
    assert {*base.MIGRATIONS, *SIDES[side].MIGRATIONS} <= set(range(2, schema.VERSION + 1))


# --- with tables that are made up --------------------------------------------------------------------


def before():
    tables = MetaData()
    Table("told", tables, Column("seq", Integer, primary_key=True), Column("body", Text, nullable=False))
    return tables


def after(*more):
    tables = MetaData()
    table = Table("told", tables, Column("seq", Integer, primary_key=True), Column("body", Text, nullable=False), *more)
    Table("fresh", tables, Column("id", Text, primary_key=True), Column("told", Integer, nullable=False))
    return tables, table


def column():
    return Column("length", Integer, nullable=False, server_default="0")


SEVEN = ["ALTER TABLE told ADD COLUMN length INTEGER DEFAULT 0 NOT NULL", "UPDATE told SET length = length(body)"]
OTHER = {7: []}


@pytest.fixture
def old(tmp_path):
    """A database of version 6 with two rows in an append-only table."""
    opened = Database(tmp_path / "x.sqlite", (before(),), append_only=("told",))
    opened.write(lambda db: db.exec_driver_sql("INSERT INTO told VALUES (1, 'a'), (2, 'bcd')"))
    opened.close()
    return opened.path


def of(path, statement):
    with closing(sqlite3.connect(path)) as db:
        return db.execute(statement).fetchall()


def reopened(path, tables, *migrations):
    opened = Database(path, (tables,), append_only=("told",), migrations=migrations)
    with pytest.raises(StoreFault):  # append-only again
        opened.write(lambda db: db.exec_driver_sql("DELETE FROM told"))
    opened.check_writable()
    opened.close()


def test_an_older_database_is_brought_to_this_version_and_keeps_its_rows(old, monkeypatch):
    monkeypatch.setattr(schema, "VERSION", 7)
    reopened(old, after(column())[0], OTHER, {7: SEVEN})
    assert of(old, "SELECT * FROM told") == [(1, "a", 1), (2, "bcd", 3)]
    assert of(old, "SELECT * FROM fresh") == []
    assert of(old, "PRAGMA user_version") == [(7,)]
    reopened(old, after(column())[0], OTHER, {7: SEVEN})  # once


def test_two_versions_are_passed_in_their_order_and_new_indexes_are_made(old, monkeypatch):
    monkeypatch.setattr(schema, "VERSION", 8)
    tables, table = after(column())
    Index("by_length", table.c.length)
    reopened(old, tables, {8: [], 7: SEVEN})
    assert of(old, "SELECT name FROM sqlite_master WHERE name = 'by_length'") == [("by_length",)]
    assert of(old, "PRAGMA user_version") == [(8,)]


@pytest.mark.parametrize(
    ("migrations", "error"),
    [
        ({}, StateConflict),
        ({8: []}, StateConflict),
        ({7: SEVEN[:0]}, StateConflict),
        ({7: [SEVEN[0], "UPDATE told SET length = nothing"]}, AuditUnavailable),
        ({7: [SEVEN[0], "INSERT INTO told VALUES (1, 'again', 0)"]}, StoreFault),
    ],
    ids=["no way", "no way from here", "a column is missing", "a statement is wrong", "a row is refused"],
)
def test_a_migration_that_cannot_be_done_leaves_everything_as_it_was(migrations, error, old, monkeypatch):
    standing = "SELECT type, name, sql FROM sqlite_master"
    digest = of(old, standing)
    monkeypatch.setattr(schema, "VERSION", 7)
    with pytest.raises(error):
        Database(old, (after(column())[0],), append_only=("told",), migrations=(migrations,))
    assert (of(old, standing), of(old, "PRAGMA user_version")) == (digest, [(6,)])
    assert of(old, "SELECT * FROM told") == [(1, "a"), (2, "bcd")]


def test_another_table_column_or_promise_is_another_schema_and_an_index_is_not():
    seen = {schema.digest((before(),), ()), schema.digest((before(),), ("told",))}
    for more in ([], [column()], [Column("length", Text)]):
        tables, table = after(*more)
        seen.add(schema.digest((tables,), ()))
        Index("by_body", table.c.body)
        seen.add(schema.digest((tables,), ()))
    assert len(seen) == 5
    assert schema.digest((before(),), ()) == schema.digest((before(),), ())
