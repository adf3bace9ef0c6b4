"""One SQLite database with one writer."""

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, Union, cast

from sqlalchemy import URL, Connection, Engine, MetaData, create_engine, event, text
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool, StaticPool

from blindopt.errors import AuditUnavailable
from service_kit.store import schema
from service_kit.store.driver_errors import StoreFault, converted, is_open, reading, savepoint
from service_kit.store.prepared_statement import PreparedStatement, raw
from service_kit.store.wal import rewrite, use_wal

__all__ = ["Connection", "Database", "StoreFault", "is_open", "savepoint"]

log = logging.getLogger("blindopt.database")
T = TypeVar("T")
GROUP_MAX = 64
QUICK_SECONDS = 0.005
"""After a commit that took no longer, the next one is made by the thread that wrote: a hand-over costs more."""
_ENDING = "the service is going down"


class Database:
    """A WAL database whose commits are durable (synchronous=FULL) before ``write`` returns.

    One connection writes, one transaction at a time with BEGIN IMMEDIATE, so that a transaction which reads and then
    writes never fails because of another. In a service (``attach``), what arrives in one turn of the event loop shares
    a commit, each in a savepoint of its own. While the disk is quick, each thread runs and commits its own work; after
    a slow commit, statements run on the thread of the event loop and commits on another one.
    Reads run at the same time on read-only connections. A kill -9 at any moment is safe. The command line may write
    beside a running service.
    """

    def __init__(
        self,
        path: Path,
        metadata: tuple[MetaData, ...],
        *,
        append_only: tuple[str, ...] = (),
        migrations: tuple[schema.Migrations, ...] = (),
    ) -> None:
        path = path.absolute()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(PermissionError):  # a folder that another user owns
            path.parent.chmod(0o700)
        path.touch(mode=0o600)
        path.chmod(0o600)  # the write-ahead log and its index inherit it
        self.path = path
        self.foreign_writes = 0
        """How often a commit of another connection, so of another process, was seen before a transaction."""
        self._data_version: int | None = None
        self._append_only = append_only
        self._after_commit: Callable[[], None] = lambda: None
        url = URL.create("sqlite", database=str(path))
        self._writer = create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
        _configure(self._writer, writes=True)
        self._db = self._writer.connect()
        self._lock = threading.Lock()
        self._submitting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[_Item] = []
        self._busy = False
        self._is_put_off = False  # whether a group waits for the lock, which another thread holds
        self._is_quick = False
        self._closed = False
        self._committer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="commit")
        if self.write(lambda db: schema.prepare(db, metadata, append_only, migrations)):
            rewrite(raw(self._db))
        read_only = URL.create("sqlite", database=path.as_uri(), query={"mode": "ro", "uri": "true"})
        self._reader = create_engine(read_only, poolclass=QueuePool, pool_size=8)
        _configure(self._reader, writes=False)
        self._row_lock = threading.Lock()
        self._row_connection = sqlite3.connect(
            f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False, timeout=5
        )
        self._row_connection.execute("SELECT count(*) FROM sqlite_master")  # opens its files now

    def attach(self) -> None:
        """Group the writes of the running event loop from now on."""
        self._loop = asyncio.get_running_loop()

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one transaction: durable when this returns, undone if it raises.

        On the event loop's own thread use ``write_soon``. Raises AuditUnavailable if the database cannot be written
        (a full disk), and StoreFault if it refuses a statement of ``work``.
        """
        if self._loop is not None and asyncio._get_running_loop() is self._loop:
            raise RuntimeError("a write on the event loop's own thread would wait for itself: use write_soon")
        if self._is_quick and not self._busy and self._lock.acquire(blocking=False):
            try:
                if self._closed:
                    raise AuditUnavailable(_ENDING)
                _, result, error = self._commit(self._run_all([(work, None)]))[0]
            finally:
                self._release()
            if error is not None:
                raise error
            return cast(T, result)
        return self.submit(work).result()

    async def write_soon(self, work: Callable[[Connection], T]) -> T:
        """``write`` for the event loop, which is not blocked."""
        if self._loop is None or self._closed:
            return self.write(work)
        future: asyncio.Future[T] = self._loop.create_future()
        self._enqueue((work, future))
        return await future

    def submit(self, work: Callable[[Connection], T]) -> "Future[T]":
        """Queue ``work``. Its future is done when it is durable."""
        if self._closed:
            raise AuditUnavailable(_ENDING)
        future: Future[T] = Future()
        with self._submitting:
            has_loop = self._loop is not None
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._enqueue, (work, future))
        if not has_loop:
            with self._lock:
                self._settle(self._commit(self._run_all([(work, future)])))
        return future

    def after_commit(self, act: Callable[[], None]) -> None:
        """Run ``act``, which must be quick, after each commit and before the next transaction.

        What it raises is logged and changes nothing: the commit is durable by then.
        """
        self._after_commit = act

    def read_row(self, statement: PreparedStatement, **values: Any) -> Any:
        """The only row of a statement, or None: a read without a transaction, for the hot path.

        Raises as ``read`` does.
        """
        with self._row_lock:
            try:
                return statement.row_on(self._row_connection, **values)
            except sqlite3.Error:
                with reading():
                    raise

    # --- groups of writes: on the loop's thread, except a slow commit --------------------------------

    def _enqueue(self, item: "_Item") -> None:
        if self._loop is None:  # it was submitted before ``finish``, and arrives after it
            self._settle([(item[1], None, AuditUnavailable(_ENDING))])
            return
        self._waiting.append(item)
        if not self._busy:
            self._busy = True
            self._loop.call_soon(self._next_group)  # together with what else arrives in this turn of the loop

    def _next_group(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._is_put_off = True
            if not self._lock.acquire(blocking=False):  # the thread that holds it calls back
                return
            self._is_put_off = False
        group, self._waiting = self._waiting[:GROUP_MAX], self._waiting[GROUP_MAX:]
        if not group:  # it was put off, and another call was first
            self._lock.release()
            return
        done = self._run_all(group)
        if self._is_quick:
            done = self._commit_or_fail(done)
            self._lock.release()
            self._group_ended(done)
        else:
            self._committer.submit(self._commit_group, done)

    def _release(self) -> None:
        """Release the lock on another thread than the loop's."""
        self._lock.release()
        if self._is_put_off and self._loop is not None:
            self._is_put_off = False
            self._loop.call_soon_threadsafe(self._next_group)

    def _commit_group(self, done: "_Done") -> None:
        done = self._commit_or_fail(done)
        self._release()
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._group_ended, done)

    def _commit_or_fail(self, done: "_Done") -> "_Done":
        try:
            return self._commit(done)
        except Exception as error:  # no caller may wait for ever for a commit that will not come
            return _failed(done, converted(error))

    def _group_ended(self, done: "_Done") -> None:
        self._settle(done)
        self._busy = bool(self._waiting)
        if self._busy:
            assert self._loop is not None
            self._loop.call_soon(self._next_group)

    # --- one transaction ----------------------------------------------------------------------------

    def _run_all(self, group: list["_Item"]) -> "_Done":
        """Begin, run each work in a savepoint, and return their results, which are not durable yet."""
        connection = raw(self._db)
        done: _Done = []
        try:
            connection.execute("BEGIN IMMEDIATE")
            self._notice_foreign(connection)
            for work, future in group:
                done.append((future, *self._run(connection, work)))
        except Exception as error:  # the transaction is lost, probably because of a full disk
            return self._lost(connection, [(future, None, None) for _, future in group], error)
        return done

    def _notice_foreign(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._data_version:
            self.foreign_writes += self._data_version is not None
            self._data_version = version

    def _run(self, connection: sqlite3.Connection, work: Callable[[Connection], Any]) -> tuple[Any, Exception | None]:
        connection.execute("SAVEPOINT work")
        try:
            result = work(self._db)
        except Exception as error:
            if not connection.in_transaction:
                raise  # SQLite has rolled back the transaction
            connection.execute("ROLLBACK TO work")
            connection.execute("RELEASE work")
            return None, converted(error)
        connection.execute("RELEASE work")
        return result, None

    def _commit(self, done: "_Done") -> "_Done":
        connection = raw(self._db)
        if not connection.in_transaction:
            return done
        began = time.perf_counter()
        try:
            connection.execute("COMMIT")
        except Exception as error:
            return self._lost(connection, done, error)
        self._is_quick = time.perf_counter() - began <= QUICK_SECONDS
        try:
            self._after_commit()
        except Exception as error:  # the commit is durable, and its callers get their results
            log.error("what follows a commit failed", extra={"fields": {"kind": type(error).__name__}})
        return done

    @staticmethod
    def _lost(connection: sqlite3.Connection, done: "_Done", error: Exception) -> "_Done":
        if connection.in_transaction:
            with suppress(sqlite3.Error):  # then the next transaction fails, and rolls it back
                connection.execute("ROLLBACK")
        return _failed(done, converted(error))

    @staticmethod
    def _settle(done: "_Done") -> None:
        for future, result, error in done:
            assert future is not None
            if future.cancelled():  # its caller has gone
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def check_writable(self) -> None:
        """Write one page, as any transaction does, and check the triggers of the append-only tables."""
        self.write(self._check)

    def _check(self, db: Connection) -> None:
        db.execute(text(f"PRAGMA user_version={schema.VERSION}"))
        triggers = set(db.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars())
        if not triggers >= {f"{table}_{verb}" for table in self._append_only for verb in schema.VERBS}:
            raise StoreFault("an append-only table has lost its trigger")

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read-only view of the database at one moment.

        Raises StorageUnavailable if the database cannot be read for now (no file can be opened, too many readers), and
        StoreFault if it refuses a statement.
        """
        with (
            reading(),
            self._reader.connect() as db,
            db.begin(),  # statements that bypass SQLAlchemy do not begin a transaction
        ):
            yield db

    @staticmethod
    @contextmanager
    def read_from(path: Path) -> Iterator[Connection]:
        """A read-only view, at one moment, of a database file of the same schema."""
        url = URL.create("sqlite", database=path.absolute().as_uri(), query={"mode": "ro", "uri": "true"})
        engine = create_engine(url)
        _configure(engine, writes=False)
        try:
            with engine.connect() as db, db.begin():
                yield db
        finally:
            engine.dispose()

    def copy(self, target: Path) -> None:
        """Copy the database to ``target``, consistently and beside writers."""
        # In one step, because a stepwise backup starts again at every write beside it.
        with self._reader.connect() as db:
            source = db.connection.driver_connection
            with closing(sqlite3.connect(target)) as to:
                source.backup(to)  # type: ignore[union-attr]

    async def finish(self) -> None:
        """Finish the writes in progress, and stop using the event loop.

        What other threads submit at this moment is refused, so that none waits for ever.
        """
        while self._busy:
            await asyncio.sleep(0.001)
        with self._submitting:
            self._loop = None
        await asyncio.sleep(0)  # what was submitted until then arrives, and is refused

    def close(self) -> None:
        """Refuse further writes and release the files. Call ``finish`` first if a loop is attached."""
        self._closed = True
        self._committer.shutdown(wait=True)
        with self._lock:
            self._row_connection.close()
            self._reader.dispose()
            self._db.close()
            self._writer.dispose()


_Future = Union[Future[Any], "asyncio.Future[Any]", None]
_Item = tuple[Callable[[Connection], Any], _Future]
_Done = list[tuple[_Future, Any, Exception | None]]


def _failed(done: _Done, failure: Exception) -> _Done:
    return [(future, None, earlier or failure) for future, _, earlier in done]


def _configure(engine: Engine, *, writes: bool) -> None:
    # Python's sqlite3 begins transactions late. We begin them ourselves, so that no read is upgraded to a write.
    @event.listens_for(engine, "connect")
    def on_connect(connection: object, record: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # type: ignore[attr-defined]
        cursor = connection.cursor()  # type: ignore[attr-defined]
        for pragma in ("busy_timeout=5000", "foreign_keys=ON", "recursive_triggers=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        if writes:
            use_wal(cursor)
            cursor.execute("PRAGMA synchronous=FULL")
            cursor.execute("PRAGMA secure_delete=ON")  # what is overwritten or deleted is nowhere in the file
        cursor.close()

    if not writes:  # the writer begins and commits on the driver's connection

        @event.listens_for(engine, "begin")
        def on_begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN DEFERRED")
