"""The store on a real PostgreSQL server, which sorts text as English does: same values, order and refusals."""

import asyncio
import json
import lzma
import secrets
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import psycopg
import pytest
from sqlalchemy import Column, Float, Integer, LargeBinary, MetaData, Table, Text, literal_column, select, text
from sqlalchemy.schema import CreateTable
from typer.testing import CliRunner

from blindopt.errors import AuditUnavailable, StateConflict, StorageUnavailable
from curator_service import cli
from curator_service.integrity import log_checks
from curator_service.settings import Settings
from curator_service.store import base as curator_base
from service_kit.cli.configuration import masked
from service_kit.context.keys import Seal, signer
from service_kit.listener import standby
from service_kit.store import audit_log, base, postgres_schema, schema, segments, stored_replies
from service_kit.store import postgres as server
from service_kit.store.database import Database, StoreFault, lead, savepoint
from service_kit.store.prepared_statement import PreparedStatement, raw
from tests import postgres

DATA = Path(__file__).parents[3] / "data"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
METADATA = (base.METADATA, curator_base.METADATA)
APPEND_ONLY = (*base.APPEND_ONLY, *curator_base.APPEND_ONLY)
MIGRATIONS = (base.MIGRATIONS, curator_base.MIGRATIONS)
VALUES = MetaData()
table = Table(
    "numbers",
    VALUES,
    Column("seq", Integer, primary_key=True),
    Column("whole", Integer),
    Column("real", Float),
    Column("body", LargeBinary),
    Column("word", Text),
)
ADD = PreparedStatement(table.insert(), ["whole", "real", "body", "word"])
FOREVER = PreparedStatement(select(literal_column("pg_sleep(100)").label("never")))
CONSTANT = PreparedStatement(select(literal_column("1").label("constant")))
BY_WORD = PreparedStatement(select(table).order_by(table.c.word, table.c.seq))


@pytest.fixture(scope="module")
def url():
    return postgres.server().create(f"store{secrets.token_hex(4)}")


@pytest.fixture(params=["sqlite", "postgresql"])
def numbers(request, tmp_path):
    address = None
    if request.param == "postgresql":
        address = postgres.server().create(f"numbers{secrets.token_hex(4)}")
    opened = Database(tmp_path / "x.sqlite", (VALUES,), append_only=("numbers",), url=address)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def curator(url, tmp_path_factory):
    opened = _curator(tmp_path_factory.mktemp("curator"), url)
    yield opened
    opened.close()


def _curator(folder, url):
    path = folder / "curator.sqlite"
    return Database(path, METADATA, append_only=APPEND_ONLY, migrations=MIGRATIONS, url=url)


def test_every_value_comes_back_as_it_was_and_text_is_in_the_order_of_its_code_points(numbers):
    whole = [0, -1, (1 << 63) - 1, -(1 << 63), True, None]
    real = [0.1 + 0.2, -0.0, 5e-324, 1.7976931348623157e308, -1 / 3, float("inf"), float("nan"), np.float64(0.3), None]
    words = ["", "a", "B", "ä", "Z", "\x00", "\x01", "\x00\x01\x01\x02", "a\x00b", "a\x01", "aB", "\U0001f600", "%s?"]
    body = [bytes(range(256)), b"", b"\\x00", None]
    rows = [(whole[i % len(whole)], real[i % len(real)], body[i % len(body)], words[i % len(words)]) for i in range(40)]
    for row in rows:  # by a prepared statement and by SQLAlchemy's own
        values = dict(zip(("whole", "real", "body", "word"), row, strict=True))
        numbers.write(lambda db, values=values: ADD.run(db, **values))
        numbers.write(lambda db, values=values: db.execute(table.insert(), values))
    expected = sorted([(i, *row) for i, row in enumerate((row for row in rows for _ in range(2)), start=1)], key=_order)
    with numbers.read() as db:
        for stored in (BY_WORD.rows(db), db.execute(select(table).order_by(table.c.word, table.c.seq)).all()):
            assert list(map(repr, map(tuple, stored))) == [
                repr((i, _plain(w), _stored(r), *rest)) for i, w, r, *rest in expected
            ]
    with pytest.raises((StoreFault, OverflowError)):
        numbers.write(lambda db: ADD.run(db, whole=1 << 63, real=None, body=None, word=None))


def _order(row):
    return row[4], row[0]


def _plain(value):
    return int(value) if value is True else value


def _stored(value):
    """Zero has no sign, and what is not a number is nothing: as SQLite stores them."""
    if not isinstance(value, float):
        return value
    return None if np.isnan(value) else float(value) + 0.0


@pytest.mark.parametrize(("silent", "paused", "lasts"), [(1, 300, True), (300, 1, False)])
def test_a_write_may_pause_for_longer_than_its_session_is_silent_between_writes(silent, paused, lasts, monkeypatch):
    monkeypatch.setattr(server, "_SILENT_S", silent)
    monkeypatch.setattr(server, "_PAUSED_S", paused)
    address = postgres.server().create(f"pause{secrets.token_hex(4)}")
    with (
        closing(Database(Path("unused.sqlite"), (VALUES,), url=address)) as opened,
        psycopg.connect(address, autocommit=True) as other,
    ):
        opened.write(lambda db: opened.server.end_when_idle())

        def pausing(db):
            """A statement, then more than the shorter limit by the server's own clock."""
            session = db.execute(text("SELECT pg_backend_pid()")).scalar_one()
            other.execute("SELECT pg_sleep(2)")
            while not lasts and other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [session]).fetchone():
                other.execute("SELECT pg_sleep(0.1)")
            ADD.run(db, whole=1, real=None, body=None, word="paused")

        if lasts:
            opened.write(pausing)
        else:  # the control: a leader that is frozen within a write
            with pytest.raises(AuditUnavailable):
                opened.write(pausing)
        assert opened.server.is_lost is not lasts


def test_a_standby_serves_within_thirty_seconds_of_a_leader_that_is_frozen_in_a_write():
    takes_over = server._PAUSED_S + server._LEAD_S + standby._AGAIN_S + 5  # to open, as a standby of a killed leader
    assert 10 < server._PAUSED_S < takes_over < 30


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("statement", ["UPDATE numbers SET word = 'x'", "DELETE FROM numbers", "TRUNCATE numbers"])
def test_an_append_only_table_refuses_changes_and_readiness_sees_a_lost_trigger(statement, numbers):
    if numbers.url is None and statement.startswith("TRUNCATE"):
        pytest.skip("SQLite has no TRUNCATE")
    numbers.write(lambda db: ADD.run(db, whole=1, real=None, body=None, word="a"))
    with pytest.raises(StoreFault, match="IntegrityError"):
        numbers.write(lambda db: db.exec_driver_sql(statement))
    numbers.check_writable()
    verb = statement.split()[0]
    drop = f"DROP TRIGGER numbers_{verb}" + (" ON numbers" if numbers.url else "")
    numbers.write(lambda db: db.exec_driver_sql(drop))
    with pytest.raises(StoreFault, match="lost its trigger"):
        numbers.check_writable()


def test_numbers_go_on_after_the_largest_and_have_no_gap_after_a_refusal(numbers):
    def refused(db):
        ADD.run(db, whole=1, real=None, body=None, word=None)
        raise StateConflict("no")

    for _ in range(2):
        numbers.write(lambda db: ADD.run(db, whole=1, real=None, body=None, word=None))
        with pytest.raises(StateConflict):
            numbers.write(refused)
    with numbers.read() as db:
        assert list(db.execute(select(table.c.seq)).scalars()) == [1, 2]


def test_of_writes_that_share_a_commit_the_refused_take_no_other_with_them(numbers):
    """Inserts of several, which are sent together. Before the mend, a refusal took all back to the first of them."""

    def work(db, number):
        ADD.run(db, whole=number, real=None, body=None, word=None)
        with suppress(KeyError), savepoint(db):
            with savepoint(db):
                ADD.run(db, whole=100 + number, real=None, body=None, word=None)
            if number % 4 == 1:
                raise KeyError
        if number % 3 == 0:
            raise KeyError

    async def serve():
        numbers.attach()
        written = [numbers.write_soon(lambda db, n=n: work(db, n)) for n in range(12)]
        done = await asyncio.gather(*written, return_exceptions=True)
        await numbers.finish()
        return done

    done = asyncio.run(serve())
    assert [type(result) for result in done] == [KeyError if n % 3 == 0 else type(None) for n in range(12)]
    with numbers.read() as db:
        stored = list(db.execute(select(table.c.whole).order_by(table.c.seq)).scalars())
    kept = [n for n in range(12) if n % 3]
    assert stored == [whole for n in kept for whole in (n, 100 + n) if whole < 100 or n % 4 != 1]


def test_no_write_is_reported_as_done_where_the_server_refused_it_with_that_of_another(numbers):
    """It is sent with the other's read. Before the mend, the other took it back, and its own request got its result."""

    def add(db, whole):
        ADD.run(db, whole=whole, real=None, body=None, word=None)
        return whole

    async def serve(*works):
        numbers.attach()
        done = await asyncio.gather(*map(numbers.write_soon, works), return_exceptions=True)
        await numbers.finish()
        return done

    def swallow(db):
        add(db, 12)
        with suppress(psycopg.Error, sqlite3.Error):
            BY_WORD.rows(db)
        return 12

    refuse = "CREATE TRIGGER refused BEFORE INSERT ON numbers WHEN new.whole > 10 BEGIN SELECT RAISE(FAIL, 'x'); END"
    if numbers.url is not None:
        refuse = "ALTER TABLE numbers ADD CHECK (whole <= 10)"
    numbers.write(lambda db: db.exec_driver_sql(refuse))
    read = BY_WORD.rows
    done = asyncio.run(serve(lambda db: add(db, 1), lambda db: add(db, 11), read, lambda db: add(db, 2)))
    assert isinstance(done[1], AuditUnavailable if numbers.url else StoreFault)
    with pytest.raises((AuditUnavailable, StoreFault)):
        numbers.write(swallow)
    assert numbers.write(lambda db: add(db, 3)) == 3
    with numbers.read() as db:
        stored = set(db.execute(select(table.c.whole)).scalars())
    assert stored == {whole for whole in (*done[:2], done[3], 3) if isinstance(whole, int)}


def test_a_read_that_raised_leaves_the_prepared_statements_of_its_connection(numbers):
    """Before the mend, the driver threw all away, with its own of what was read five times."""

    def read(db):
        db.execute(select(table.c.whole)).all()
        return BY_WORD.rows(db)

    for _ in range(8):
        with suppress(KeyError), numbers.read() as db:
            assert read(db) == []
            raise KeyError
        with numbers.read() as db:
            for _ in range(8):
                assert read(db) == []


def test_a_write_sees_all_before_it_whatever_the_default_of_the_database():
    name = f"default{secrets.token_hex(4)}"
    address = postgres.server().create(name)
    postgres.server().execute(name, f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    with closing(Database(Path("/nowhere/x.sqlite"), (VALUES,), url=address)) as opened:
        level = opened.write(lambda db: db.execute(text("SHOW transaction_isolation")).scalar())
    assert level == "read committed"


def test_no_lookup_waits_for_a_session_that_was_cut_and_the_next_has_another(url, tmp_path):
    async def look(database):
        database.attach()
        looking = asyncio.create_task(database.read_row_soon(FOREVER))
        while not postgres.server().execute("postgres", "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"):
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(database.read_row_soon(CONSTANT))
        await asyncio.sleep(0)
        database.server.abandon()
        with pytest.raises(StorageUnavailable):
            await asyncio.wait_for(looking, 20)
        assert tuple(await asyncio.wait_for(waiting, 20)) == (1,)
        await database.finish()

    with closing(_curator(tmp_path, url)) as database:
        asyncio.run(look(database))


def test_a_lookup_sees_the_write_of_another_program_and_the_next_transaction_counts_it_once(url, tmp_path):
    """As every lookup of SQLite does: so a request waits for the verification before it does any work."""

    async def look(database):
        database.attach()
        writes, woken = database.foreign_writes, []
        database.on_foreign_write = lambda: woken.append(writes.are_verified)
        await database.write_soon(lambda db: None)
        writes.verified = writes.count
        await database.read_row_soon(CONSTANT)
        assert (writes.are_verified, woken) == (True, [])
        postgres.server().execute(postgres.name_of(url), "INSERT INTO curator.keys VALUES ('beside', 'x', 'y')")
        for _ in range(2):
            await database.read_row_soon(CONSTANT)
        assert (writes.count - writes.verified, writes.are_verified, woken) == (0, False, [False])
        for _ in range(2):
            await database.write_soon(lambda db: None)
            await database.read_row_soon(CONSTANT)
        assert (writes.count - writes.verified, writes.are_verified) == (1, False)
        writes.verified = writes.count
        assert writes.are_verified
        await database.finish()

    with closing(_curator(tmp_path, url)) as database:
        asyncio.run(look(database))


def test_a_service_that_could_not_be_opened_leaves_no_leader_behind(url, tmp_path):
    """Its session held the lock, and no service came up until somebody ended the process."""
    assert lead(tmp_path / "curator.sqlite", url)
    abandoned = _curator(tmp_path, url)
    assert lead(tmp_path / "curator.sqlite", url)
    with closing(_curator(tmp_path, url)) as database:
        database.check_writable()
    with pytest.raises(AuditUnavailable):
        abandoned.check_writable()
    abandoned.close()


def test_only_roles_that_were_given_the_right_write_tables_anew(curator, url):
    """It locks a table, with the rights of its owner."""
    may = "SELECT has_function_privilege('public', 'curator.write_anew(text)', 'EXECUTE')"
    assert postgres.server().execute(postgres.name_of(url), may) == [(False,)]
    curator.forget_old_pages()


def test_no_write_is_reported_as_done_after_its_transaction_ended(numbers):
    """As SQLite's does at a full disk, and PostgreSQL's with its session, where a work goes on after the error."""

    def work(db):
        ADD.run(db, whole=1, real=None, body=None, word=None)
        BY_WORD.rows(db)
        raw(db).execute("ROLLBACK")

    with pytest.raises(AuditUnavailable, match="had ended"):
        numbers.write(work)
    numbers.write(lambda db: ADD.run(db, whole=2, real=None, body=None, word=None))
    with numbers.read() as db:
        assert list(db.execute(select(table.c.whole)).scalars()) == [2]


def test_a_value_that_cannot_be_sent_leaves_the_session_as_it_was(numbers):
    """Before the mend, what was sent before it was committed with the next write."""

    def add(db):
        for word in ("a", "\ud800"):
            ADD.run(db, whole=1, real=None, body=None, word=word)
        BY_WORD.rows(db)

    for _ in range(2):
        with pytest.raises(UnicodeEncodeError):
            numbers.write(add)
        numbers.write(lambda db: ADD.run(db, whole=2, real=None, body=None, word="a"))
    with numbers.read() as db:
        assert list(db.execute(select(table.c.whole)).scalars()) == [2, 2]


def test_a_record_with_a_nul_has_its_kind_and_is_found_by_its_actor(curator):
    details = {"note": "\x00 \\u0000 \x01"}
    curator.write(lambda db: audit_log.append(db, "x.y", actor='a"\x00b', now=NOW, details=details))
    curator.write(lambda db: audit_log.append(db, "x.z", actor="other", now=NOW))
    with curator.read() as db:
        assert [record["details"] for record in audit_log.of_kind(db, "x.y")] == [details]
        chosen = audit_log.page(db, position=None, newest=False, limit=9, actor="b", kinds=["x."])
        assert [entry.record["kind"] for entry in chosen] == ["x.y"]
        assert audit_log.check_end(db).size == len(list(audit_log.walk(db)))


def test_records_are_read_in_their_order_wherever_the_server_has_put_them(tmp_path):
    """A row may lie where a transaction that failed has left room: before older ones."""
    url = postgres.server().create(f"order{secrets.token_hex(4)}")
    with closing(_curator(tmp_path, url)) as database:
        for number in range(6):
            database.write(lambda db, n=number: audit_log.append(db, "n", actor="x", now=NOW, details={"n": n}))
        with postgres.session(url) as db, db.transaction():
            db.execute("SET LOCAL session_replication_role = replica")
            db.execute("CREATE TEMPORARY TABLE first ON COMMIT DROP AS SELECT * FROM curator.log WHERE seq = 2")
            db.execute("DELETE FROM curator.log WHERE seq = 2")
            db.execute("INSERT INTO curator.log (seq, body, leaf, peaks) SELECT seq, body, leaf, peaks FROM first")
            lie = [seq for (seq,) in db.execute("SELECT seq FROM curator.log")]
        with database.read() as db:
            assert [record["seq"] for record in audit_log.of_kind(db, "n")] == [0, 1, 2, 3, 4, 5] != lie


def test_two_programs_at_once_see_all_of_each_other_and_notice_it(curator, url, tmp_path):
    with closing(_curator(tmp_path, url)) as other:
        curator.write(lambda db: None)
        before = curator.foreign_writes.count
        for database in (curator, other, curator, other, other):
            database.write(lambda db: audit_log.append(db, "n", actor="x", now=NOW))
        curator.write(lambda db: None)
        assert curator.foreign_writes.count == before + 2
        curator.write(lambda db: None)
        assert curator.foreign_writes.count == before + 2
    name = postgres.name_of(url)
    postgres.server().execute(name, "INSERT INTO curator.keys VALUES ('by hand', 'x', 'y')")
    curator.write(lambda db: None)
    assert curator.foreign_writes.count == before + 3


def test_a_copy_in_sqlite_and_back_again_has_every_row(curator, tmp_path):
    reply = stored_replies.StoredReply(200, b"{}")
    curator.write(
        lambda db: stored_replies.add(db, "usr", "k", "0", reply, sealed=False, at=base.stamp(NOW), log_seq=0)
    )
    curator.copy(tmp_path / "copy.sqlite")
    again = postgres.server().create(f"again{secrets.token_hex(4)}")
    with closing(Database(tmp_path / "copy.sqlite", METADATA, append_only=APPEND_ONLY)) as copied:
        copied.path = tmp_path / "curator.sqlite"
        copied.copy_to(again)
        with pytest.raises(StateConflict, match="not empty"):
            copied.copy_to(again)
    with closing(_curator(tmp_path, again)) as filled:
        filled.copy(tmp_path / "second.sqlite")
    dumps = []
    for name in ("copy", "second"):
        with closing(sqlite3.connect(tmp_path / f"{name}.sqlite")) as db:
            dumps.append(list(db.iterdump()))
    assert dumps[0] == dumps[1]
    assert any("INSERT INTO" in line and "replies" in line for line in dumps[0])


def test_a_role_that_may_not_change_append_only_tables_serves_and_cannot(url, curator, tmp_path, monkeypatch):
    monkeypatch.setenv("BLINDOPT_CURATOR_DATABASE_URL", url)
    monkeypatch.setenv("BLINDOPT_CURATOR_DATA_DIR", str(tmp_path / "data"))
    secret_files = tmp_path / "data" / "secrets"  # as a service that has run leaves it
    Seal.of(secret_files / "seal.key")
    signer(secret_files / "log.key", "curator")
    name, role = postgres.name_of(url), f"clerk{secrets.token_hex(4)}"
    script = CliRunner().invoke(cli.app, ["database", "roles", role])
    assert script.exit_code == 0, script.output
    postgres.server().execute(name, f"CREATE ROLE {role} LOGIN")
    as_role = url.replace(f"{postgres.USER}:", f"{role}:")
    for right in ("EXECUTE ON FUNCTION curator.delete_archived()", "UPDATE (request) ON curator.queries"):
        postgres.server().execute(name, f"{script.output}; REVOKE {right} FROM {role}")  # as an earlier script left it
        with pytest.raises(StateConflict, match=f"run `database roles {role}`"):
            _curator(tmp_path, as_role)
    postgres.server().execute(name, script.output)
    with closing(_curator(tmp_path, as_role)) as limited:
        limited.check_writable()
        limited.write(lambda db: audit_log.append(db, "n", actor="x", now=NOW))
        for statement in (
            "UPDATE log SET body = body",
            "DELETE FROM log",
            "TRUNCATE log",
            "DROP TRIGGER log_delete ON log",
        ):
            with pytest.raises(StoreFault, match="ProgrammingError"):
                limited.write(lambda db, statement=statement: db.exec_driver_sql(statement))


def test_that_role_deletes_records_below_a_stored_segment_and_no_others(tmp_path):
    address = postgres.server().create(f"archive{secrets.token_hex(4)}")
    name, role = postgres.name_of(address), f"clerk{secrets.token_hex(4)}"
    with closing(_curator(tmp_path, address)):
        script = postgres_schema.rights("curator", role, METADATA, APPEND_ONLY)
    postgres.server().execute(name, f"CREATE ROLE {role} LOGIN")
    postgres.server().execute(name, script)
    limited = _curator(tmp_path, address.replace(f"{postgres.USER}:", f"{role}:"))

    def grow(db, now=NOW.replace(year=2020)):
        first = audit_log.head(db).size
        for number in range(first, first + 20):
            kind = "study.created" if number == 3 else "exchange"
            exchange = b'{"grant_id":"grt_1","position":%d}' % number
            audit_log.append(db, kind, actor="x", now=now, exchange=exchange)
            audit_log.share(db, "grt_1", lambda seq, exchange=exchange: exchange)

    def numbers_in(db):
        log = [entry.seq for entry in audit_log.walk(db)]
        return log, [entry.seq for entry in audit_log.walk(db, "grt_1")]

    row = {"sha256": "", "note": "", "positions": '{"grt_1": 7}', "summary": "{}"}
    with closing(limited):
        limited.write(grow)
        with pytest.raises(StoreFault):
            limited.write(lambda db: db.exec_driver_sql("SELECT delete_archived()"))
        limited.write(lambda db: segments.add(db, number=0, size=8, **row))
        row["positions"] = '{"grt_1": 15}'
        with limited.read() as db:
            assert numbers_in(db) == ([3, *range(7, 20)], [*range(7, 20)])
        for wrong in (
            {"number": 999_999, "size": 16},
            {"number": 1, "size": 1_000_000_000},
            {"number": 1, "size": 21},
            {"number": 1, "size": 8},
            {"number": -1, "size": 16},
            {"number": 1, "size": 16, "positions": '{"grt_1": 1000000000}'},
            {"number": 1, "size": 16, "positions": '{"grt_1": 19}'},  # of a live record
        ):
            with pytest.raises(StoreFault):
                limited.write(lambda db, wrong=wrong: segments.add(db, **row | wrong))
            with limited.read() as db:
                assert numbers_in(db) == ([3, *range(7, 20)], [*range(7, 20)]), wrong
        limited.write(lambda db: segments.add(db, number=1, size=16, **row))
        with limited.read() as db:
            assert numbers_in(db)[0] == [3, *range(15, 20)]  # the control: one that follows
            assert [each.summary for each in segments.every(db)] == [None, "{}"]
        limited.write(lambda db: grow(db, base.utc_now() - timedelta(days=89)))
        with pytest.raises(StoreFault):
            limited.write(lambda db: segments.add(db, number=2, size=21, **row))
        limited.write(
            lambda db: segments.add(db, number=2, size=20, **row | {"positions": "{}"})
        )  # its records are old
        with pytest.raises(StoreFault):
            limited.write(lambda db: db.exec_driver_sql("UPDATE segments SET size = 20"))


def test_an_older_schema_is_brought_to_this_version_by_one_of_two_programs(tmp_path):
    address = postgres.server().create(f"old{secrets.token_hex(4)}")

    def tables(*more):
        made = MetaData()
        Table("notes", made, Column("seq", Integer, primary_key=True), Column("body", Text, nullable=False), *more)
        return made

    path = tmp_path / "x.sqlite"
    with closing(Database(path, (tables(),), append_only=("notes",), url=address)) as first:
        first.write(lambda db: db.exec_driver_sql("INSERT INTO notes (body) VALUES ('a'), ('bcd')"))
        first.write(lambda db: db.exec_driver_sql(f"UPDATE state SET version = {schema.VERSION - 1}"))
    longer = tables(Column("length", Integer, nullable=False, server_default="0"))
    change = [
        "ALTER TABLE notes ADD COLUMN length INTEGER DEFAULT 0 NOT NULL",
        "UPDATE notes SET length = length(body)",
    ]
    with pytest.raises(StateConflict):
        Database(path, (longer,), append_only=("notes",), url=address)
    for _ in range(2):
        new = Database(path, (longer,), append_only=("notes",), migrations=({schema.VERSION: change},), url=address)
        with closing(new), new.read() as db:
            assert db.exec_driver_sql("SELECT seq, body, length FROM notes").all() == [(1, "a", 1), (2, "bcd", 3)]


def test_a_database_that_cannot_be_reached_is_named_in_words_without_its_password(tmp_path):
    postgres.server()
    with pytest.raises(AuditUnavailable) as refused:
        _curator(tmp_path, "postgresql://ann:zq-secret@127.0.0.1:1/x")
    assert "zq-secret" not in str(refused.value)
    with pytest.raises(StateConflict) as wrong:
        _curator(tmp_path, "postgresql://ann:zq-secret@h/x?nonsense=1")
    assert "zq-secret" not in str(wrong.value)


def test_the_password_is_masked_wherever_settings_are_shown(tmp_path, monkeypatch):
    address = "postgresql://ann:zq-secret@db.example/x?sslpassword=zq-secret"
    (tmp_path / "url").write_text(address + "\n")
    both = [
        Settings(data_dir=tmp_path, database_url=address),
        Settings(data_dir=tmp_path, database_url_file=tmp_path / "url"),
    ]
    for settings in both:
        assert settings.database_address == address
        assert "zq-secret" not in repr(settings) + str(settings.model_dump_json())
        assert "zq-secret" not in "".join(str(masked(value)) for _, value in settings)
    monkeypatch.setenv("BLINDOPT_CURATOR_DATABASE_URL", address)
    shown = CliRunner().invoke(cli.app, ["config", "show", "--json"])
    assert "zq-secret" not in shown.output
    assert json.loads(shown.stdout)["BLINDOPT_CURATOR_DATABASE_URL"] == "postgresql://***@db.example/x?***"
    monkeypatch.setenv("BLINDOPT_CURATOR_DATABASE_URL", "mysql://ann:zq-secret@h/x")
    refused = CliRunner().invoke(cli.app, ["config", "show"])
    assert refused.exit_code == 2
    assert "postgresql://" in refused.output
    assert "zq-secret" not in refused.output


def test_every_integer_is_a_bigint_and_every_text_sorts_by_code_point():
    pytest.importorskip("psycopg")
    from service_kit.store.postgres_dialect import Dialect

    statements = [
        " ".join(str(CreateTable(each).compile(dialect=Dialect())).split())
        for tables in METADATA
        for each in tables.sorted_tables
    ]
    columns = [column for statement in statements for column in statement.split(", ")]
    assert len(statements) > 20
    assert not [column for column in columns if " INTEGER" in column or " SERIAL" in column]
    assert not [column for column in columns if " TEXT" in column and 'COLLATE "C"' not in column]


def test_nothing_of_postgresql_is_loaded_for_sqlite(tmp_path):
    import subprocess
    import sys

    code = "import sys, curator_service.context, modeler_service.context; assert 'psycopg' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[4])


def test_the_schema_of_version_12_is_brought_to_this_one_once_by_programs_that_start_together(tmp_path, monkeypatch):
    """The first version with PostgreSQL. Its tables hold what a service of 0.1.0 left, and what followed."""
    name = f"twelve{secrets.token_hex(4)}"
    address = postgres.server().create(name)
    postgres.read_script(address, lzma.decompress((DATA / "postgres_12.sql.xz").read_bytes()))
    migrated, prepare = [], postgres_schema.prepare
    monkeypatch.setattr(postgres_schema, "prepare", lambda *given: migrated.append(prepare(*given)) or migrated[-1])
    with ThreadPoolExecutor() as threads:
        opened = list(threads.map(lambda n: _curator(tmp_path / str(n), address), range(3)))
    assert sorted(migrated) == [False, False, True]
    fresh = _curator(tmp_path / "fresh", postgres.server().create(f"fresh{secrets.token_hex(4)}"))
    for database in (*opened, fresh):
        database.check_writable()
        database.close()
    *older, functions = _form(name)
    *newer, needed = _form(postgres.name_of(fresh.url))
    assert older == newer
    assert set(functions) >= set(needed)  # more statements needed one in earlier versions
    with closing(_curator(tmp_path / "again", address)) as again, again.read() as db:
        assert again.foreign_writes.count == 0
        records = [entry.record for entry in audit_log.walk(db)]
        assert (len(records), audit_log.head(db).size) == (44, 44)
        log_checks.check(db, records)


def _form(name):
    """Columns, indexes, triggers and functions of the curator's schema."""
    of_curator = "c ON c.oid = {} WHERE c.relnamespace = 'curator'::regnamespace"
    queries = (
        "SELECT attrelid::regclass, attname, atttypid::regtype, attcollation FROM pg_attribute JOIN pg_class "
        + of_curator.format("attrelid AND attnum > 0"),
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'curator'",
        "SELECT pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class "
        + of_curator.format("tgrelid AND NOT tgisinternal"),
        "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'curator'::regnamespace",
    )
    return [sorted(map(str, postgres.server().execute(name, query))) for query in queries]
