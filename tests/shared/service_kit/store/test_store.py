"""The database under both services: durable, append-only where it says so, one writer, one serving process."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from blindopt.audit import merkle_log
from blindopt.audit.checkpoints import Countersignature, Receipt
from blindopt.audit.reconciliation import verify_export
from blindopt.errors import (
    AuditUnavailable,
    NotFound,
    StateConflict,
    StorageUnavailable,
    Unauthenticated,
)
from blindopt.wire import Health
from curator_service import store as curator_store
from curator_service.budget import table as ledger
from curator_service.budget.ledger import Account, Balance, Charge
from curator_service.datasets import table as withheld
from curator_service.queries import table as inbox
from curator_service.store import base as curator_base
from curator_service.studies import table as messages
from service_kit.context.audit_trail import SavedCheckpoint
from service_kit.context.context import ServiceContext
from service_kit.context.keys import Seal, signer
from service_kit.context.request import Effect, RequestContext
from service_kit.identity.tokens import mint
from service_kit.store import audit_log, checkpoints, schema, segments, stored_replies
from service_kit.store.base import APPEND_ONLY, METADATA, stamp
from service_kit.store.database import Database, StoreFault
from service_kit.store.folder_lock import only_process
from service_kit.store.stored_replies import StoredReply
from tests import beside, postgres
from tests.interventions import act_after

NOW = datetime(2020, 11, 21, 12, tzinfo=UTC)  # PostgreSQL deletes no record that is young by its own clock
TABLES = (*APPEND_ONLY, *curator_base.APPEND_ONLY)


def _open(path):
    tables = (METADATA, curator_base.METADATA)
    return Database(path, tables, append_only=TABLES, url=postgres.address_for(path))


@pytest.fixture
def database(tmp_path):
    opened = _open(tmp_path / "data" / "x.sqlite")
    yield opened
    opened.close()


def _context(database, folder, clock=lambda: NOW):
    key = signer(folder / "log.key", "curator")
    return ServiceContext.open(
        database, Seal.of(folder / "seal.key"), key, clock, checkpoint_file=folder / "checkpoint"
    )


@pytest.fixture
def context(database, tmp_path):
    return _context(database, tmp_path)


def _log(database):
    """The log's entries, verified."""
    with database.read() as db:
        entries = list(audit_log.walk(db))
        assert merkle_log.verify(entries) == audit_log.head(db)
    return entries


@pytest.fixture
def filled(database, context):
    return _fill(database, context)


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A database in which every change is refused, for all of them: they leave it as it is."""
    folder = tmp_path_factory.mktemp("full")
    opened = _open(folder / "data" / "x.sqlite")
    _fill(opened, _context(opened, folder))
    yield opened
    opened.close()


def _fill(database, context):
    """Add one row to every append-only table; whose reply it is."""
    _, principal = context.authentication.issue("owner", "o", days=1)

    def work(db):
        segments.add(db, number=0, size=1, sha256="", note="", positions="{}", summary="{}")
        created = {"created_at": stamp(NOW)}
        curator_store.insert(
            db, curator_store.datasets, id="ds_1", name="d", public=0, rows=1, columns="[]", dropped="[]", sha256="",
            **created,
        )  # fmt: skip
        curator_store.insert(
            db, curator_store.studies, id="std_1", dataset_id="ds_1", state="open", spec="{}", **created
        )
        curator_store.insert(
            db, curator_store.releases, id="rel_1", study_id="std_1", sha256="", n=1, r=1, report="{}", **created
        )
        curator_store.insert(
            db,
            curator_store.queries,
            id="qry_1",
            study_id="std_1",
            grant_id="grt_1",
            idempotency_key="key",
            request_sha256="digest",
            request="{}",
            **created,
        )
        ledger.add(db, "std_1", "release", [Charge(None, 0, 1, Balance(1, 1, 0))], query_id=None, at=stamp(NOW))
        withdrawn = {"id": "adv_1", "mechanism": "m", "version": 1, "reason": "r"}
        curator_store.insert(db, curator_store.advisories, **withdrawn, **created)
        sent = {"id": "msg_1", "study_id": "std_1", "grant_id": "grt_1", "name": "n", "kind": "budget", "body": "{}"}
        curator_store.insert(db, messages.messages, salt="s", **sent, **created)
        decided = {"message_id": "msg_1", "decision": "declined", "word": None, "salt": "s"}
        curator_store.insert(db, messages.decisions, **decided, **created)
        caps = {"study_id": "std_1", "before": "{}", "after": "{}", "reason": "r"}
        curator_store.insert(db, messages.budget_changes, **caps, **created)
        ledger.add_to_account(db, "ds_1", "tuning", after=Account(), at=stamp(NOW), subject="tun_1")
        withheld.withhold(db, "ds_1", withheld.record_unit(1), "s", stamp(NOW))
        measured_query = {"query_id": "qry_1", "study_id": "std_1", **created}
        measured = {
            "id": "msr_1",
            "query_id": "qry_1",
            "study_id": "std_1",
            "place": 0,
            "row": 0,
            "play": 1,
            "plays": 1,
        }
        inbox.add_query(db, {**measured_query, "grant_id": "grt_1"}, [measured])
        entry = {
            "measurement_id": "msr_1",
            "query_id": "qry_1",
            "kind": "answer",
            "version": 1,
            "actor": "a",
            "name": "n",
        }
        curator_store.insert(db, inbox.entries, salt="s", **entry, **created)
        curator_store.insert(db, inbox.rounds, query_id="qry_1", version=1, basis=1, fresh="[]", **created)
        revision = {"grant_id": "grt_1", "seq": 1, "query_id": "qry_1", "version": 1, "body": b"{}"}
        curator_store.insert(db, inbox.revisions, **revision, **created)
        curator_store.insert(db, inbox.refinements, study_id="std_1", row=0, z="[0.5]")
        audit_log.share(db, "grt_1", lambda seq: b"{}")
        checkpoints.pin(db, "grt_1", "vkey", NOW)
        checkpoints.RECEIPTS.add(db, "grt_1", Receipt(0, b"{}", "note"))
        checkpoints.COUNTERSIGNATURES.add(db, "grt_1", Countersignature(1, "note"), created_at=stamp(NOW))
        stored_replies.add(
            db, principal.id, "key", "digest", StoredReply(201, b"body"), sealed=False, at=stamp(NOW), log_seq=0
        )

    database.write(work)
    return principal


def _all(database, table):
    with database.read() as db:
        return list(db.execute(text(f"SELECT * FROM {table}")))


CHANGES = (
    "UPDATE {t} SET rowid = rowid",
    "DELETE FROM {t}",
    "INSERT OR REPLACE INTO {t} ({columns}) SELECT {columns} FROM {t}",
    "REPLACE INTO {t} ({columns}) SELECT {columns} FROM {t}",
    "UPDATE OR REPLACE {t} SET rowid = rowid + 1",
)


def test_what_is_append_only_cannot_be_changed_by_the_service(full):
    for table in TABLES:
        before = _all(full, table)
        assert before, table
        with full.read() as db:
            columns = ", ".join(row.name for row in db.execute(text(f"PRAGMA table_info({table})")))
        for change in CHANGES:
            with pytest.raises(StoreFault):
                full.write(lambda db, sql=change.format(t=table, columns=columns): db.execute(text(sql)))
            assert _all(full, table) == before, (table, change)


def test_an_upsert_cannot_change_a_stored_reply(database, filled):
    upsert = (
        "INSERT INTO replies SELECT * FROM replies WHERE true "
        "ON CONFLICT (principal, idempotency_key) DO UPDATE SET body = x'00'"
    )
    with pytest.raises(StoreFault):
        database.write(lambda db: db.execute(text(upsert)))
    assert [row.body for row in _all(database, "replies")] == [b"body"]


@pytest.mark.parametrize("at_once", [{}, {"yield_per": 100}])
@pytest.mark.parametrize("by", ["a reader", "the writer"])
def test_what_was_not_read_to_its_end_holds_no_connection_at_an_old_moment(database, by, at_once):
    """An exception keeps its frames, and so an iteration in them, until it is handled, and longer in a cycle."""
    count = 5_000
    database.write(lambda db: [audit_log.append(db, "a", actor="a", now=NOW) for _ in range(count)])
    kept = []

    def begin_to_read(db):
        kept.append(iter(db.execute(text("SELECT seq FROM log").execution_options(**at_once))))
        next(kept[-1])

    if by == "the writer":
        database.write(begin_to_read)
    else:
        with database.read() as db:
            begin_to_read(db)
    with closing(sqlite3.connect(database.path)) as other:  # another process, as a command beside a service
        other.execute("CREATE TABLE more (id INTEGER)")
        other.commit()
    database.write(lambda db: audit_log.append(db, "a", actor="a", now=NOW))
    with database.read() as db:
        assert audit_log.head(db).size == count + 1
    with pytest.raises((SQLAlchemyError, sqlite3.Error)):  # and not what is true no more
        list(kept[0])


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [0, 0, 3, 1, 3], [2, 1], [1, 3]])
@pytest.mark.parametrize("change", ["", "SET log_seq = 9", "SET log_seq = NULL"])
def test_an_answer_is_found_whatever_the_order_and_the_position_that_is_stored_with_it(database, order, change):
    check_answers(database, order, change)


def test_an_answer_is_found_though_no_number_is_stored_as_its_position(database):
    check_answers(database, [0, 1, 2, 3], "SET log_seq = 'text'")


def check_answers(database, order, change):
    def work(db):
        for i in range(4):
            for sealed in (True, False):  # a sealed reply before each, which is no answer
                principal, reply = f"{'adm' if sealed else 'grt'}_{i % 2}", StoredReply(200 + i, b"%d" % i)
                stored_replies.add(db, principal, f"k{i}", "", reply, sealed=sealed, at=stamp(NOW), log_seq=3 * i)
        if change:
            with schema.unguarded(db, "replies"):
                db.execute(text(f"UPDATE replies {change} WHERE idempotency_key = 'k1'"))

    database.write(work)
    with database.read() as db:
        answers = stored_replies.Answers(db)
        for i in order:
            row = answers.find(f"grt_{i % 2}", f"k{i}", 3 * i)
            assert (row.status, row.body) == (200 + i, b"%d" % i)
            assert answers.find("adm_0", "k0", 3 * i) is None
            assert answers.find(f"grt_{i % 2}", "k9", 3 * i) is None


def test_the_tables_that_are_append_only_are_these():
    evidence = {"log", "shared", "receipts", "keys", "countersignatures", "segments"}
    measured = {"entries", "rounds", "revisions", "refinements"}
    account = {"replies", "releases", "queries", "ledger", "advisories", "tuning_ledger", "withheld"}
    vendors = {"messages", "decisions", "budget_changes"}
    assert set(TABLES) == evidence | measured | account | vendors


def test_the_writer_waits_for_the_disk_and_readers_do_not_wait_for_it(database):
    def pragmas(db):
        names = ("synchronous", "journal_mode", "foreign_keys", "recursive_triggers")
        return [db.execute(text(f"PRAGMA {name}")).scalar_one() for name in names]

    assert database.write(pragmas) == [2, "wal", 1, 1]


def test_a_reader_cannot_write(database):
    with database.read() as db, pytest.raises(DBAPIError):
        db.execute(text("INSERT INTO log VALUES (0, x'00', x'00', x'00')"))
    assert _all(database, "log") == []


def test_a_reader_sees_one_moment(database, context):
    context.authentication.issue("owner", "first", days=1)
    with database.read() as db:
        count = text("SELECT count(*) FROM tokens")
        assert db.execute(count).scalar_one() == 1
        context.authentication.issue("owner", "second", days=1)
        assert db.execute(count).scalar_one() == 1
    assert len(context.authentication.tokens()) == 2


def test_a_transaction_that_raises_leaves_nothing(database, context):
    context.authentication.issue("owner", "kept", days=1)
    before = context.audit_trail.head()

    def work(db):
        context.authentication.grant(db, "undone", "std_1", days=1, actor="test")
        raise KeyError("stop")

    with pytest.raises(KeyError):
        database.write(work)
    assert [row.name for row in context.authentication.tokens()] == ["kept"]
    assert context.audit_trail.head() == before
    context.authentication.issue("owner", "next", days=1)
    assert len(_log(database)) == before.size + 1


def test_of_writes_that_share_a_commit_one_that_fails_takes_no_other_with_it(database):
    """What comes at once in a service is one transaction of the disk."""

    def work(db, number):
        audit_log.append(db, "test", actor="a", now=NOW, details={"n": number})
        if number % 3 == 0:
            raise KeyError(number)
        return number

    async def serve():
        database.attach()
        written = [database.write_soon(lambda db, n=n: work(db, n)) for n in range(30)]
        done = await asyncio.gather(*written, return_exceptions=True)
        await database.finish()
        return done

    done = asyncio.run(serve())
    assert [type(result) for result in done] == [KeyError if n % 3 == 0 else int for n in range(30)]
    assert [entry.record["details"]["n"] for entry in _log(database)] == [n for n in range(30) if n % 3]


@pytest.mark.parametrize("quick_s", [-1.0, 0.0003, 60.0], ids=["never quick", "now and then", "always quick"])
def test_writes_of_threads_and_of_the_loop_are_all_made_whatever_the_disk(tmp_path, quick_s):
    """A thread commits what it wrote while the disk is quick; a group of the loop that finds it at work comes after."""
    path = tmp_path / "quick.sqlite"
    address = postgres.address_for(path)
    database = Database(path, (METADATA,), append_only=APPEND_ONLY, url=address, quick_seconds=quick_s)

    def work(db, who, number):
        audit_log.append(db, "test", actor=who, now=NOW, details={"n": number})
        return who, number

    def of_thread(name):
        return [database.write(lambda db, n=n: work(db, name, n)) for n in range(25)]

    async def of_loop(name):
        return [await database.write_soon(lambda db, n=n: work(db, name, n)) for n in range(25)]

    async def serve():
        database.attach()
        names = [f"thread {n}" for n in range(4)], [f"loop {n}" for n in range(4)]
        threads = [asyncio.to_thread(of_thread, name) for name in names[0]]
        done = await asyncio.wait_for(asyncio.gather(*threads, *map(of_loop, names[1])), 60)
        await database.finish()
        return dict(zip([*names[0], *names[1]], done, strict=True))

    for name, results in asyncio.run(serve()).items():
        assert results == [(name, n) for n in range(25)]
        assert [e.record["details"]["n"] for e in _log(database) if e.record["actor"] == name] == list(range(25))
    assert merkle_log.verify(_log(database)).size == 200
    database.close()


def test_an_effect_that_raises_keeps_neither_reply_nor_record(context, filled):
    request = RequestContext(filled, "0" * 32, "POST", "/x", "new-key", "0" * 64)
    before = context.audit_trail.head()

    def effect(db):
        context.authentication.grant(db, "undone", "std_1", days=1, actor="test")
        raise NotFound("no")

    with pytest.raises(NotFound):
        context.idempotency.once(request, effect)
    assert context.audit_trail.head() == before
    assert context.idempotency.earlier(request) is None
    done = context.idempotency.once(request, lambda db: Effect(Health(status="ok"), "test", {}))
    assert (done.status, done.replayed) == (201, False)
    assert context.idempotency.once(request, effect).body == done.body  # from now on the stored reply


def save_checkpoints_often(monkeypatch):
    """With each commit, in the file outside the database."""
    monkeypatch.setattr("service_kit.context.audit_trail._SAVED_EVERY_S", 0.0)


def test_an_export_beside_a_service_that_goes_on_verifies(context, monkeypatch):
    """The checkpoint that is kept outside the database must not be younger than the log that is exported."""
    save_checkpoints_often(monkeypatch)
    context.audit_trail.begin()
    context.authentication.issue("owner", "kept", days=1)
    act_after(monkeypatch, audit_log, "grants", lambda db: context.authentication.issue("owner", "meanwhile", days=1))
    with context.database.read() as db:
        export = context.audit_trail.export(db)
        assert verify_export(export).size == 1
        assert len(list(export.of_kind("checkpoint", None))) == 2


def test_while_a_checkpoint_that_is_due_is_not_saved_the_service_is_not_ready(context, monkeypatch, tmp_path):
    """Otherwise a database that is put back to an earlier state is not noticed. It is tried again."""
    save_checkpoints_often(monkeypatch)
    monkeypatch.setattr("service_kit.context.audit_trail._READY_SECONDS", 0.0)
    trail, folder = context.audit_trail, tmp_path / "gone"
    monkeypatch.setattr(trail, "_saved", SavedCheckpoint(folder / "checkpoint", context.signer))
    trail.begin()
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="the checkpoint of the log cannot be saved"):
            trail.check_ready()
    folder.mkdir()
    trail.check_ready()
    assert context.signer.verifier.verify((folder / "checkpoint").read_text(encoding="utf-8")).head == trail.head()


def test_a_driver_s_text_does_not_leave_the_database(database, filled):
    """SQLAlchemy's messages quote the parameters of a statement, and an exception's context is printed with it."""
    canary = "canary" + "7f3a9c"  # in two parts: a traceback quotes this source
    for statement in ("INSERT INTO nothing VALUES (:v)", "INSERT INTO log VALUES (:v, NULL, NULL, NULL)"):
        with pytest.raises((AuditUnavailable, StoreFault)) as raised:
            database.write(lambda db, s=statement: db.execute(text(s), {"v": canary}))
        printed = "".join(traceback.format_exception(raised.value))
        assert canary not in printed


def test_a_schema_of_a_newer_program_is_refused_and_not_touched(tmp_path):
    path = tmp_path / "x.sqlite"
    _open(path).close()
    with closing(beside.connect(path)) as db:
        beside.set_version(db, 99)
        beside.drop_triggers(db, "log_UPDATE")
        db.commit()
    with pytest.raises(StateConflict, match=f"the database has schema 99, this program needs {schema.VERSION}"):
        _open(path)
    with closing(beside.connect(path)) as db:
        assert beside.version(db) == 99
        assert "log_update" not in {name.lower() for name, _ in beside.triggers(db)}


def test_a_database_that_is_opened_again_has_its_triggers_and_its_rows(tmp_path):
    path = tmp_path / "x.sqlite"
    first = _open(path)
    first.write(lambda db: audit_log.append(db, "test", actor="a", now=NOW))
    first.close()
    with closing(beside.connect(path)) as db:  # as a rebuild of the table would
        beside.drop_triggers(db, "log_DELETE")
        db.commit()
    second = _open(path)
    with pytest.raises(StoreFault):
        second.write(lambda db: db.execute(text("DELETE FROM log")))
    assert len(_all(second, "log")) == 1
    second.close()


def test_a_database_that_is_opened_again_has_the_indexes_of_this_program(tmp_path):
    """So a new index of a table needs no other schema."""
    path = tmp_path / "x.sqlite"
    _open(path).close()
    with closing(sqlite3.connect(path)) as db, db:
        before = set(db.execute("SELECT name FROM sqlite_master WHERE type = 'index'"))
        db.execute("DROP INDEX measurements_left")
    _open(path).close()
    with closing(sqlite3.connect(path)) as db:
        assert set(db.execute("SELECT name FROM sqlite_master WHERE type = 'index'")) == before


def test_a_folder_is_held_by_one_process(tmp_path):
    with only_process(tmp_path / "data"):
        with pytest.raises(StateConflict, match="another process already serves"), only_process(tmp_path / "data"):
            pass
        with only_process(tmp_path / "other"):
            pass
    with only_process(tmp_path / "data"):
        pass


def test_a_seal_opens_what_it_closed_and_nothing_else(tmp_path):
    first, again = Seal.of(tmp_path / "a.key"), Seal.of(tmp_path / "a.key")
    sealed = first.close(b"secret")
    assert b"secret" not in sealed
    assert again.open(sealed) == b"secret"
    other = Seal.of(tmp_path / "b.key")
    for wrong in (lambda: other.open(sealed), lambda: first.open(sealed[:-1] + b"A"), lambda: first.open(b"")):
        with pytest.raises(StateConflict):
            wrong()
    assert [oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()] == ["0o600"] * 2


def test_many_processes_that_make_one_key_at_once_agree_on_it(tmp_path):
    program = """
import sys
from pathlib import Path
from service_kit.context.keys import Seal
print(Seal.of(Path(sys.argv[1])).close(b"x").decode())
"""
    made = [
        subprocess.Popen([sys.executable, "-c", program, tmp_path / "s" / "seal.key"], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    sealed = [process.communicate(timeout=30)[0].strip() for process in made]
    assert [Seal.of(tmp_path / "s" / "seal.key").open(text) for text in sealed] == [b"x"] * 4
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["seal.key"]


def test_tokens_are_found_by_their_exact_form_only(context):
    token, principal = context.authentication.issue("owner", "o", days=1)
    assert asyncio.run(context.authentication.authenticate(f"Bearer {token.text}")) == principal
    assert asyncio.run(context.authentication.authenticate(f"bearer {token.text}")) == principal
    for wrong in (
        token.text,
        f"Bearer {token.text} ",
        f"Bearer {token.text.upper()}",
        f"Bearer {mint().text}",
        "Bearer",
    ):
        with pytest.raises(Unauthenticated):
            asyncio.run(context.authentication.authenticate(wrong))


def test_a_token_ends_at_its_moment(database, tmp_path):
    now = [NOW]
    context = _context(database, tmp_path, lambda: now[0])
    token, _ = context.authentication.issue("owner", "o", days=2)
    now[0] = NOW + timedelta(days=2, microseconds=-1)
    asyncio.run(context.authentication.authenticate(f"Bearer {token.text}"))
    now[0] = NOW + timedelta(days=2)
    with pytest.raises(Unauthenticated):
        asyncio.run(context.authentication.authenticate(f"Bearer {token.text}"))


# --- real processes ------------------------------------------------------------------------------


def test_a_second_process_on_the_same_folder_is_refused_and_the_first_goes_on(curator, make_service):
    second = make_service("curator", curator.folder.parent)
    assert second.data == curator.data
    before = curator.log
    done = subprocess.run(
        [sys.executable, "-m", "curator_service", "serve"],
        env=second.environment, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr.strip() == f"error: another process already serves {curator.data}: stop it first"
    assert "Traceback" not in done.stdout + done.stderr
    with curator.http() as http:
        assert http.get("/v1/studies").status_code == 200
    assert before in curator.log


def test_opening_a_new_database_waits_for_the_process_that_makes_it(tmp_path):
    """SQLite itself gives up at once where it would turn a file to write-ahead logging that another writes."""
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as another:
        another.execute("BEGIN IMMEDIATE")
        threading.Timer(0.3, another.execute, ["COMMIT"]).start()
        _open(path).close()
        assert not another.in_transaction


def test_processes_that_open_a_new_database_at_once_share_one_log(tmp_path):
    program = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from service_kit.store import audit_log, checkpoints, stored_replies, tokens  # each adds its tables
from service_kit.store.base import APPEND_ONLY, METADATA
from service_kit.store.database import Database
print("ready", flush=True)
sys.stdin.readline()
database = Database(Path(sys.argv[1]), (METADATA,), append_only=APPEND_ONLY)
for n in range(25):
    database.write(lambda db: audit_log.append(db, "test", actor=sys.argv[2], now=datetime.now(UTC), details={"n": n}))
"""
    path = tmp_path / "made" / "x.sqlite"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([sys.executable, "-c", program, path, str(n)], **pipes) for n in range(4)]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    errors = [process.communicate(timeout=60)[1] for process in started]
    assert [process.returncode for process in started] == [0] * 4, errors
    database = Database(path, (METADATA,), append_only=APPEND_ONLY)
    entries = _log(database)
    database.close()
    assert len(entries) == 100
    records = sorted((entry.record["actor"], entry.record["details"]["n"]) for entry in entries)
    assert records == [(str(actor), n) for actor in range(4) for n in range(25)]


def test_command_lines_beside_each_other_and_the_service_keep_one_log(curator):
    """Three tokens are made at once while the service registers files: none is lost, and the log verifies."""
    size = len(curator.records())
    served = []
    with ThreadPoolExecutor(3) as pool, curator.http() as http:
        started = [pool.submit(curator.run, "token", "create", "--name", f"parallel {n}") for n in range(3)]
        while not all(made.done() for made in started):
            sent = {"files": {"file": ("a.csv", b"a\n1\n")}, "data": {"name": "beside"}}
            key = {"Idempotency-Key": f"beside {size} {len(served)}"}
            while (status := http.post("/v1/datasets", **sent, headers=key).status_code) == 503:
                time.sleep(0.1)  # it verifies what the commands wrote
            served.append(status)
    outputs = [made.result() for made in started]
    assert [made.returncode for made in outputs] == [0] * 3, outputs
    assert len({made.stdout for made in outputs}) == 3
    assert set(served) == {201}
    assert len(curator.records()) == size + 3 + len(served)
    issued = curator.rows("SELECT name FROM tokens WHERE name LIKE 'parallel%' ORDER BY name")
    assert issued == [(f"parallel {n}",) for n in range(3)]


def test_writes_that_returned_are_there_after_kill_9(tmp_path):
    """A process that appends and prints each append is killed: what it printed is in the database."""
    program = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from service_kit.store import audit_log, checkpoints, stored_replies, tokens  # each adds its tables
from service_kit.store.base import APPEND_ONLY, METADATA
from service_kit.store.database import Database
from tests import postgres
database = Database(Path(sys.argv[1]), (METADATA,), append_only=APPEND_ONLY)
while True:
    entry = database.write(lambda db: audit_log.append(db, "test", actor="a", now=datetime.now(UTC)))
    sys.stdout.write(f"{entry.seq} {entry.at}\\n")
    sys.stdout.flush()
"""
    path = tmp_path / "x.sqlite"
    process = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True)
    lines = [next(process.stdout) for _ in range(200)]
    os.kill(process.pid, signal.SIGKILL)
    lines += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    database = Database(path, (METADATA,), append_only=APPEND_ONLY)
    entries = _log(database)
    with database.read() as db:
        assert db.execute(text("PRAGMA integrity_check")).scalar_one() == "ok"
    database.close()
    assert len(entries) >= 200
    whole = [line.split() for line in lines if line.endswith("\n")]
    assert [(str(e.seq), e.record["time"]) for e in entries][: len(whole)] == [tuple(line) for line in whole]


def test_a_port_that_is_taken_ends_the_service_with_an_error(curator, make_service, tmp_path):
    service = make_service("curator", tmp_path)
    service.port = curator.port
    service.folder.mkdir()
    done = service.run("serve")
    assert done.returncode not in (0, None)
    assert "Traceback" not in done.stderr
    assert "address already in use" in done.stderr
