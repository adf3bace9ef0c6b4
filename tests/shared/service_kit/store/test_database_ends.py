"""Errors at a commit or at the end of a service leave no caller waiting and no write lost."""

import asyncio
import os
import resource
import shutil
import threading
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, select, text

from blindopt.errors import AuditUnavailable, StorageUnavailable
from curator_service import app as curator_app
from curator_service.settings import Settings as CuratorSettings
from curator_service.vault import Vault
from modeler_service import app as modeler_app
from modeler_service.settings import Settings as ModelerSettings
from service_kit.context.context import ServiceContext
from service_kit.context.keys import Seal, signer
from service_kit.store.database import Database, StoreFault
from service_kit.store.prepared_statement import PreparedStatement, raw
from tests import postgres
from tests.interventions import act_before
from tests.shared.service_kit.store.test_store import (
    METADATA,
    NOW,
    TABLES,
    audit_log,
    curator_base,
    save_checkpoints_often,
)

WAIT = 20.0
BUILT = {"curator": (curator_app.build, CuratorSettings), "modeler": (modeler_app.build, ModelerSettings)}


@pytest.fixture
def database(tmp_path):
    path, tables = tmp_path / "data" / "x.sqlite", (METADATA, curator_base.METADATA)
    opened = Database(path, tables, append_only=TABLES, url=postgres.address_for(path))
    yield opened
    opened.close()


@pytest.fixture
def context(database, tmp_path, monkeypatch):
    save_checkpoints_often(monkeypatch)
    key = signer(tmp_path / "log.key", "curator")
    made = ServiceContext.open(
        database, Seal.of(tmp_path / "seal.key"), key, lambda: NOW, checkpoint_file=tmp_path / "checkpoint"
    )
    made.audit_trail.begin()
    return made


@contextmanager
def no_descriptors():
    """This process may open no further file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (sum(1 for _ in Path("/proc/self/fd").iterdir()) + 16, limits[1]))
    held = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _record(db):
    audit_log.append(db, "test", actor="a", now=NOW)


def _saved_size(context, folder):
    """How many records the saved checkpoint is of."""
    return context.signer.verifier.verify((folder / "checkpoint").read_text()).head.size


def _recorded(database):
    with database.read() as db:
        return audit_log.head(db).size


def test_a_commit_without_a_free_descriptor_is_a_commit(context, tmp_path):
    """The checkpoint that follows it cannot be written then; the next one is."""
    database = context.database

    async def serve():
        database.attach()
        await database.write_soon(_record)
        reader = database.read()
        await asyncio.to_thread(reader.__enter__)
        with no_descriptors():  # another read would need a new connection
            with pytest.raises(StorageUnavailable):
                await asyncio.to_thread(database.read().__enter__)
            await asyncio.wait_for(database.write_soon(_record), WAIT)
        await asyncio.to_thread(reader.__exit__, None, None, None)
        await asyncio.wait_for(database.write_soon(_record), WAIT)
        await database.finish()

    asyncio.run(serve())
    assert _recorded(database) == 3
    assert _saved_size(context, tmp_path) == 3


@pytest.mark.parametrize("act", ["deleted", "replaced"])
def test_nothing_is_written_to_a_file_that_was_deleted_or_replaced_and_what_was_put_back_goes_on(tmp_path, act):
    """What the open file gets then is in no folder: answers and their charges would be gone with the process."""
    path, away = tmp_path / "data" / "x.sqlite", tmp_path / "away"
    database = Database(path, (METADATA, curator_base.METADATA), append_only=TABLES)
    database.write(_record)
    path.rename(away)
    if act == "replaced":
        shutil.copyfile(away, path)
    for write in (lambda: database.write(_record), database.check_writable):
        with pytest.raises(AuditUnavailable, match="was deleted or replaced"):
            write()
    away.replace(path)
    database.write(_record)
    assert _recorded(database) == 2
    database.close()


def test_slow_readers_keep_no_write_waiting(context, tmp_path):
    """As many as the pool has connections, and as many as it may make beside them."""
    database = context.database

    async def serve():
        database.attach()
        readers = [database.read() for _ in range(18)]
        for reader in readers:
            await asyncio.to_thread(reader.__enter__)
        try:
            await asyncio.wait_for(database.write_soon(_record), WAIT)
        finally:
            for reader in readers:
                await asyncio.to_thread(reader.__exit__, None, None, None)
        await database.finish()

    asyncio.run(serve())
    assert _saved_size(context, tmp_path) == 1


@pytest.mark.parametrize("served", [True, False], ids=["served", "by itself"])
def test_what_raises_after_a_commit_undoes_nothing_and_stops_nothing(served, database):
    """A writer deletes its files if its write raises, so a durable write must not raise."""

    def wrong():
        raise ZeroDivisionError

    database.after_commit = wrong

    async def serve():
        database.attach()
        for _ in range(2):
            await asyncio.wait_for(database.write_soon(_record), WAIT)
        await database.finish()

    if served:
        asyncio.run(serve())
    else:
        for _ in range(2):
            database.write(_record)
    assert _recorded(database) == 2


def test_a_commit_that_cannot_even_be_tried_fails_for_its_waiters_and_the_next_goes_on(database, monkeypatch):
    broken = [True]

    def break_once(done):
        if broken.pop() if broken else False:
            database._db.connection.driver_connection.execute("ROLLBACK")
            raise MemoryError

    act_before(monkeypatch, database, "_commit", break_once)

    async def serve():
        database.attach()
        with pytest.raises(MemoryError):
            await asyncio.wait_for(database.write_soon(_record), WAIT)
        await asyncio.wait_for(database.write_soon(_record), WAIT)
        await database.finish()

    asyncio.run(serve())
    assert _recorded(database) == 1


# --- reads ------------------------------------------------------------------------------------------


def test_a_read_without_a_free_descriptor_may_be_tried_again(database):
    database.write(_record)
    with (
        database.read(),  # another one needs a new connection
        no_descriptors(),
        pytest.raises(StorageUnavailable, match="cannot be read") as raised,
        database.read(),
    ):
        pass
    assert raised.value.retryable
    assert _recorded(database) == 1


def test_a_refused_read_is_reported_without_the_driver_s_words(database):
    canary = "canary" + "7f3a9c"  # in two parts: a traceback quotes this source
    for statement, kind in (
        ("SELECT :v FROM nothing", StorageUnavailable),
        ("INSERT INTO log VALUES (:v, NULL, NULL, NULL)", StorageUnavailable),
        ("SELECT json(CAST(:v AS BLOB)), abs(-9223372036854775808)", StorageUnavailable),
    ):
        with pytest.raises(kind) as raised, database.read() as db:
            db.execute(text(statement), {"v": canary}).all()
        assert canary not in "".join(traceback.format_exception(raised.value))
    with pytest.raises(StoreFault, match="ProgrammingError"), database.read() as db:
        raw(db).execute("SELECT ?", ())


def test_the_same_holds_for_a_single_row(database):
    missing = PreparedStatement(select(Table("nothing", MetaData(), Column("a", Integer))))
    with pytest.raises(StorageUnavailable, match="cannot be read"):
        database.read_row(missing)
    assert database.read_row(audit_log.LAST) is None


def test_the_event_loop_is_told_what_waits_for_the_database_without_blocking_it(database):
    async def serve():
        database.attach()
        assert await database.read_row_soon(audit_log.LAST) is None
        for wait, instead in (
            (lambda: database.read_row(audit_log.LAST), "read_row_soon"),
            (lambda: database.read().__enter__(), "read_soon"),
            (lambda: database.write(_record), "write_soon"),
        ):
            with pytest.raises(RuntimeError, match=instead):
                wait()
            await database.read_soon(audit_log.head)
        await database.finish()

    asyncio.run(serve())


# --- the end ----------------------------------------------------------------------------------------


def test_what_another_thread_writes_at_the_last_moment_is_refused_or_done_and_never_left(database):
    """It was handed to the loop before the end, and comes after it."""

    async def serve():
        database.attach()
        late = database.submit(_record)  # from now on it is on its way
        await database.finish()
        return late

    with pytest.raises(AuditUnavailable, match="going down"):
        asyncio.run(serve()).result(WAIT)
    assert _recorded(database) == 0
    database.write(_record)  # by itself, as the command line does


@pytest.mark.parametrize("side", ["curator", "modeler"])
def test_a_service_closes_its_database_also_where_something_before_fails(side, tmp_path):
    """Otherwise the last checkpoint is not saved, and callers wait for their writes for ever."""
    build, settings = BUILT[side]
    app = build(settings(data_dir=tmp_path / side))
    context = app.state.context

    def fails(*_):
        raise ZeroDivisionError

    async def live():
        async with app.router.lifespan_context(app):
            await context.database.write_soon(_record)

    app.state.notice_delivery.close = fails
    with pytest.raises(ZeroDivisionError):
        asyncio.run(live())
    assert _saved_size(context, tmp_path / side) == 1
    with pytest.raises(AuditUnavailable, match="going down"):
        context.database.write(_record)


# --- the start --------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["curator", "modeler"])
def test_nothing_works_beside_the_event_loop_before_the_database_has_it(side, tmp_path):
    """A thread that writes meanwhile would not share its commits, nor wait for its turn."""
    before = set(threading.enumerate())
    build, settings = BUILT[side]
    app = build(settings(data_dir=tmp_path / side))
    begun = {thread.name for thread in set(threading.enumerate()) - before}
    app.state.context.database.close()
    assert not {name for name in begun if not name.startswith("commit")}, begun


def test_a_folder_in_the_curator_s_scratch_folder_keeps_no_service_from_starting(tmp_path):
    """Such as lost+found, or files that an operator unpacked there: they are not the service's, and stay."""
    vault = Vault(tmp_path / "files")
    (vault.scratch / "lost+found").mkdir()
    (vault.scratch / "link").symlink_to(tmp_path)
    (vault.scratch / "ds_1.npy").write_bytes(b"")
    vault.keep_only(set())
    assert [path.name for path in vault.scratch.iterdir()] == ["lost+found"]
    assert tmp_path.is_dir()


def test_a_folder_among_the_pending_uploads_keeps_no_service_from_starting(tmp_path):
    pending = Vault(tmp_path / "files").pending
    (tmp_path / "files" / "pending" / "lost+found").mkdir()
    pending.path("upl_1").write_bytes(b"")
    pending.drop_unfinished()
    assert [path.name for path in (tmp_path / "files" / "pending").iterdir()] == ["lost+found"]
