"""What the connection that writes remembers is forgotten by whatever may have changed it."""

from contextlib import closing, contextmanager
from datetime import UTC, datetime

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, Text, bindparam, select, text, update

from service_kit.store import prepared_statement
from service_kit.store.base import METADATA
from service_kit.store.database import Database, savepoint
from service_kit.store.prepared_statement import PreparedStatement, raw
from tests import beside, postgres

NOW = datetime(2026, 1, 2, tzinfo=UTC)
OWN = MetaData()
cups = Table("cups", OWN, Column("name", Text, primary_key=True), Column("held", Integer, nullable=False))
HELD = PreparedStatement(select(cups.c.held).where(cups.c.name == bindparam("name")), kept=True)
FILL = PreparedStatement(update(cups).where(cups.c.name == bindparam("of")).values(held=bindparam("new")))


@pytest.fixture
def database(tmp_path):
    database = Database(tmp_path / "cups.sqlite", (METADATA, OWN), url=postgres.address_for(tmp_path / "cups.sqlite"))
    database.write(lambda db: db.execute(cups.insert(), [{"name": "blue", "held": 1}, {"name": "red", "held": 7}]))
    yield database
    database.close()


def held(db, name="blue"):
    row = HELD.row(db, name=name)
    return None if row is None else row.held


@contextmanager
def statements(db):
    """Collect the statements that reach the driver."""
    seen, driver = [], raw(db)

    class Seen:
        def execute(self, statement, *values):
            seen.append(statement)
            return driver.execute(statement, *values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(db.__dict__, prepared_statement._RAW, Seen())
        yield seen


def test_a_row_is_read_once_and_by_its_parameters(database):
    def work(db):
        with statements(db) as seen:
            values = [held(db), held(db), held(db, "red"), held(db, "red"), held(db, "none"), held(db, "none")]
        return values, len(seen)

    assert database.write(work) == ([1, 1, 7, 7, None, None], 3)
    assert database.write(work) == ([1, 1, 7, 7, None, None], 0)  # from one transaction to the next, too


def prepared(database):
    database.write(lambda db: FILL.run(db, of="blue", new=2))


def core(database):
    database.write(lambda db: db.execute(update(cups).where(cups.c.name == "blue").values(held=2)))


def words(database):
    database.write(lambda db: db.execute(text("UPDATE cups SET held = 2 WHERE name = 'blue'")))


def another_connection(database):
    with closing(beside.connect(database.path)) as other:
        other.execute("UPDATE cups SET held = 2 WHERE name = 'blue'")
        other.commit()


@pytest.mark.parametrize("change", [prepared, core, words, another_connection])
def test_a_change_is_seen_by_the_next_read(database, change):
    assert database.write(held) == 1
    change(database)
    assert database.write(held) == 2


@pytest.mark.parametrize("change", [prepared, core, words, another_connection])
def test_a_read_without_a_transaction_gets_what_was_committed_last(database, change):
    assert database.write(held) == 1
    with statements(database._db) as seen:
        assert database.read_row(HELD, name="blue").held == 1
    assert seen == ([] if database.url else ["PRAGMA data_version"])
    change(database)
    assert database.read_row(HELD, name="blue").held == 2
    assert database.write(held) == 2
    assert database.read_row(HELD, name="blue").held == 2


def test_a_read_without_a_transaction_gets_nothing_of_one_that_is_under_way(database):
    def work(db):
        FILL.run(db, of="blue", new=2)
        return held(db), database.read_row(HELD, name="blue").held

    assert database.write(work) == (2, 1)


def test_what_a_transaction_remembered_ends_with_it_if_it_is_undone(database):
    def undone(db):
        FILL.run(db, of="blue", new=5)
        assert held(db) == 5
        raise KeyError

    with pytest.raises(KeyError):
        database.write(undone)
    assert database.write(held) == 1


def test_what_a_part_of_a_transaction_remembered_ends_with_it_if_it_is_undone(database):
    def part(db):
        FILL.run(db, of="blue", new=5)
        assert held(db) == 5
        raise KeyError

    def work(db):
        with pytest.raises(KeyError), savepoint(db):
            part(db)
        return held(db)

    assert database.write(work) == 1


def test_a_row_that_a_writer_knows_is_what_the_table_has(database):
    def work(db):
        FILL.run(db, of="blue", new=3)
        HELD.remember(db, (3,), name="blue")
        with statements(db) as seen:
            value = held(db)
        return value, seen

    assert database.write(work) == (3, [])
    with database.read() as db:
        assert held(db) == 3


def test_a_reader_remembers_nothing(database):
    with database.read() as db:
        assert held(db) == 1
        assert FILL.table not in db.__dict__.get("blindopt_memory", {})
    prepared(database)
    with database.read() as db:
        assert held(db) == 2


def test_the_memory_of_a_table_is_bounded(database):
    def work(db):
        for number in range(2_500):
            held(db, str(number))
        return len(db.__dict__["blindopt_memory"]["cups"])

    assert 1 < database.write(work) <= 1_001
