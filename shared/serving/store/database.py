"""One SQLite database with one writer."""

import asyncio
import fcntl
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, MetaData, create_engine, event, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool, StaticPool

from shared.errors import AuditUnavailable, StateConflict

__all__ = ["Connection", "Database", "StoreFault", "only_process"]

T = TypeVar("T")
SCHEMA_VERSION = 2
GROUP_MAX = 64
VERBS = ("UPDATE", "DELETE")
APPEND_ONLY = """
CREATE TRIGGER IF NOT EXISTS {table}_{verb} BEFORE {verb} ON {table}
BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END
"""


class StoreFault(Exception):
    """The database refused a statement: a fault of ours. Its text is the kind alone, never a value."""


class Database:
    """A WAL database whose commits are durable (synchronous=FULL) before ``write`` returns.

    Writes run one at a time on one thread with BEGIN IMMEDIATE, so that a transaction which reads and
    then writes never loses to another; those that wait while the disk is busy share the next commit, each
    in a savepoint of its own. Reads run beside them on read-only connections. Safe against kill -9 at any
    moment. The command line may write beside a running service.
    """

    def __init__(self, path: Path, metadata: tuple[MetaData, ...], *, append_only: tuple[str, ...] = ()) -> None:
        path = path.absolute()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(PermissionError):  # a folder of another user, made so on purpose
            path.parent.chmod(0o700)
        path.touch(mode=0o600)
        path.chmod(0o600)  # the write-ahead log and its index inherit it
        self.path = path
        self._append_only = append_only
        self._committed: Callable[[], None] = lambda: None
        self._writer = create_engine(
            URL.create("sqlite", database=str(path)), poolclass=StaticPool, connect_args={"check_same_thread": False}
        )
        _configure(self._writer, "BEGIN IMMEDIATE")
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="writer", daemon=True)
        self._thread.start()
        self.write(lambda db: _create(db, metadata, append_only))
        read_only = URL.create("sqlite", database=path.as_uri(), query={"mode": "ro", "uri": "true"})
        self._reader = create_engine(read_only, poolclass=QueuePool, pool_size=8)
        _configure(self._reader, "BEGIN DEFERRED")

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one transaction; durable once this returns, undone if it raises.

        Raises AuditUnavailable where the database cannot be written (a full disk), StoreFault where it
        refuses what ``work`` does.
        """
        return self.submit(work).result()

    async def write_soon(self, work: Callable[[Connection], T]) -> T:
        """``write`` without a thread that waits."""
        return await asyncio.wrap_future(self.submit(work))

    def submit(self, work: Callable[[Connection], T]) -> "Future[T]":
        """Queue ``work`` for the writer; its future is settled once it is durable."""
        if self._closed:
            raise AuditUnavailable("the service is going down")
        future: Future[T] = Future()
        self._queue.put((work, future))
        return future

    def after_commit(self, act: Callable[[], None]) -> None:
        """Let the writer run ``act`` after each commit. It must be quick and raise nothing."""
        self._committed = act

    def _serve(self) -> None:
        with self._writer.connect() as db:
            while (item := self._queue.get()) is not None:
                self._commit_group(db, item)

    def _commit_group(self, db: Connection, item: "_Item | None") -> None:
        """Run ``item`` and those that have come meanwhile in one transaction, then settle all."""
        settled: list[tuple[Future[Any], Any, BaseException | None]] = []
        try:
            with db.begin():
                while item is not None:
                    work, future = item
                    if future.set_running_or_notify_cancel():
                        settled.append((future, *self._run(db, work)))
                    item = self._waiting() if len(settled) < GROUP_MAX else None
        except Exception as error:  # the whole transaction is lost: a full disk, most likely
            failure = _ours(error)
            settled = [(future, None, earlier or failure) for future, _, earlier in settled]
            if item is not None:
                settled.append((item[1], None, failure))
        for future, result, problem in settled:
            with suppress(InvalidStateError):  # who asked has gone
                if problem is None:
                    future.set_result(result)
                else:
                    future.set_exception(problem)
        self._committed()

    def _run(self, db: Connection, work: Callable[[Connection], Any]) -> tuple[Any, BaseException | None]:
        db.exec_driver_sql("SAVEPOINT one")
        try:
            result = work(db)
        except BaseException as error:
            if not db.connection.driver_connection.in_transaction:  # type: ignore[union-attr]
                raise  # SQLite took back all of it
            db.exec_driver_sql("ROLLBACK TO one")
            db.exec_driver_sql("RELEASE one")
            return None, _ours(error)
        db.exec_driver_sql("RELEASE one")
        return result, None

    def _waiting(self) -> "_Item | None":
        try:
            item = self._queue.get_nowait()
        except queue.Empty:
            return None
        if item is None:
            self._queue.put(None)  # the end is for ``_serve``
        return item

    def check_writable(self) -> None:
        """Write one page, as any transaction would, and see that the append-only tables are held."""
        self.write(self._check)

    def _check(self, db: Connection) -> None:
        db.execute(text(f"PRAGMA user_version={SCHEMA_VERSION}"))
        held = set(db.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars())
        if not held >= {f"{table}_{verb}" for table in self._append_only for verb in VERBS}:
            raise StoreFault("an append-only table has lost its trigger")

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read-only view of one moment."""
        with self._reader.connect() as db:
            yield db

    @staticmethod
    @contextmanager
    def read_from(path: Path) -> Iterator[Connection]:
        """A read-only view of another database file of the same schema."""
        url = URL.create("sqlite", database=path.absolute().as_uri(), query={"mode": "ro", "uri": "true"})
        engine = create_engine(url)
        try:
            with engine.connect() as db:
                yield db
        finally:
            engine.dispose()

    def copy(self, target: Path) -> None:
        """A consistent copy of the database as it is now, made beside writers."""
        # In one step: a stepwise backup starts anew at every write beside it.
        with self._reader.connect() as db:
            source = db.connection.driver_connection
            with closing(sqlite3.connect(target)) as to:
                source.backup(to)  # type: ignore[union-attr]

    def close(self) -> None:
        """Finish writes under way and release the files."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        self._reader.dispose()
        self._writer.dispose()


_Item = tuple[Callable[[Connection], Any], Future[Any]]


def _ours(error: BaseException) -> BaseException:
    """An error of the driver without its text, which may quote values; any other as it is."""
    if isinstance(error, OperationalError):  # full disk, locked, read-only
        return AuditUnavailable(f"the database cannot be written ({type(error.orig).__name__})")
    if isinstance(error, DBAPIError):  # an append-only table, a constraint
        return StoreFault(type(error).__name__)
    return error


def _configure(engine: Engine, begin: str) -> None:
    # Python's sqlite3 opens transactions late by itself; we say when, so that reads cannot upgrade.
    @event.listens_for(engine, "connect")
    def on_connect(connection: object, record: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # type: ignore[attr-defined]
        cursor = connection.cursor()  # type: ignore[attr-defined]
        pragmas = ["busy_timeout=5000", "foreign_keys=ON", "recursive_triggers=ON"]
        if "IMMEDIATE" in begin:
            pragmas += ["journal_mode=WAL", "synchronous=FULL"]
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)


def _create(db: Connection, metadata: tuple[MetaData, ...], append_only: tuple[str, ...]) -> None:
    version = db.execute(text("PRAGMA user_version")).scalar_one()
    if version not in (0, SCHEMA_VERSION):
        raise StateConflict(f"the database has schema {version}, this program needs {SCHEMA_VERSION}")
    for tables in metadata:
        tables.create_all(db)
    for table in append_only:
        for verb in VERBS:
            db.execute(text(APPEND_ONLY.format(table=table, verb=verb)))
    db.execute(text(f"PRAGMA user_version={SCHEMA_VERSION}"))


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for one serving process; StateConflict if another holds it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StateConflict(f"another process already serves {folder}") from None
        yield
