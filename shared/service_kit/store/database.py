"""One database with one writer: SQLite, or PostgreSQL."""

import asyncio
import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar, Union, cast

from sqlalchemy import Connection, Engine, MetaData, select

from blindopt.errors import AuditUnavailable, StateConflict, StorageUnavailable, Verifying
from service_kit.store import StoreFault, schema
from service_kit.store.driver_errors import Damaged, converted, is_open, reading, savepoint
from service_kit.store.prepared_statement import Ahead, Driver, PreparedStatement, raw, remember_rows
from service_kit.store.sqlite import Sqlite, reader_of

__all__ = ["Connection", "Database", "Durations", "StoreFault", "is_open", "savepoint"]

log = logging.getLogger("blindopt.database")
T = TypeVar("T")
GROUP_MAX = 64
_COPIED_AT_ONCE = 1_000
QUICK_SECONDS = 0.005
"""After a commit that took no longer, the next one is made by the thread that wrote: a hand-over costs more."""
_ENDING = "the service is going down"
_WRITES = "blindopt_foreign_writes"
"""Of a connection: the ``ForeignWrites`` of the one that writes, or how many a reading transaction began after."""
RETRY_S_MAX = 10
_SETTLE_S = 1.0


class ForeignWrites:
    """Counts the commits of other connections, so of other programs, that were noticed at the begin of transactions."""

    def __init__(self) -> None:
        self.count = 0
        self.verified: int | None = None
        """The count that the last verification covered, -1 before the first; None: this process waits for none."""
        self.is_seen = False
        """Whether a read saw one, which the next transaction counts."""
        self.seconds = 0.0
        """How long a verification takes, about."""

    @property
    def are_verified(self) -> bool:
        """Whether a verification has covered all of them, and the start."""
        return self.verified is None or (self.verified >= self.count and not self.is_seen)

    async def settle(self) -> None:
        """Wait until they are verified, for a moment, unless a verification takes longer."""
        deadline = time.monotonic() + _SETTLE_S
        while not self.are_verified and self.seconds <= _SETTLE_S and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    def retry(self, act: Callable[[], T], is_over: Callable[[], bool]) -> T:
        """Act again for as long as it raises Verifying, in a thread whose work of minutes would be lost."""
        while True:
            try:
                return act()
            except Verifying:
                if is_over():
                    raise
                time.sleep(_SETTLE_S)

    def check_verified(self) -> None:
        """Raise Verifying unless they are verified."""
        if not self.are_verified:
            raise Verifying(min(max(1, round(self.seconds)), RETRY_S_MAX))


def noticed(db: Connection) -> int:
    """How many were noticed before this transaction read anything: what was read before another one may be changed."""
    writes: ForeignWrites | int = db.info.get(_WRITES, 0)
    return writes if isinstance(writes, int) else writes.count


def check_verified(db: Connection) -> None:
    """Raise Verifying in a transaction that writes, unless all foreign writes before it are verified."""
    writes = db.info.get(_WRITES)
    if isinstance(writes, ForeignWrites):
        writes.check_verified()


class Durations:
    """Counts durations by bucket. For one thread at a time."""

    BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0)
    """Upper ends of the buckets, in seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BOUNDS) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration, to the millisecond: what is finer might depend on what was written."""
        rounded = round(seconds, 3)
        self.counts[bisect_left(self.BOUNDS, rounded)] += 1
        self.total_s += rounded


class Backend(Protocol):
    """What both databases do for ``Database``; ``Sqlite`` and ``Postgres`` say more."""

    @property
    def schema(self) -> Any: ...

    def writer(self) -> Connection: ...
    def begin(self, driver: Driver, ahead: Sequence[Ahead], /) -> tuple[Any, list[Any]]: ...
    def readers(self) -> Engine: ...
    def row(self, statement: PreparedStatement, values: dict[str, Any], /) -> Any: ...
    def check_pages(self, db: Connection, metadata: tuple[MetaData, ...], /) -> None: ...
    def size_bytes(self) -> int: ...
    def close(self) -> None: ...


def lead(path: Path, url: str) -> bool:
    """Wait for the lock of the leader of a schema; False after some seconds. Raises AuditUnavailable, StateConflict.

    The next database of this process at ``url`` writes in the session that has the lock.
    """
    return bool(postgres().lead(url, path.stem))


def postgres() -> Any:
    """The module of PostgreSQL. Raises StateConflict without psycopg."""
    try:
        from service_kit.store import postgres as module
    except ImportError:
        raise StateConflict(
            "PostgreSQL needs psycopg: in a checkout of blindopt, pip install ./shared '.[postgres]'"
        ) from None
    return module


class Database:
    """A database whose commits are durable before ``write`` returns: a file of SQLite, or a schema of PostgreSQL.

    One connection writes, one transaction at a time, so that a transaction which reads and then writes never fails
    because of another. In a service (``attach``), what arrives in one turn of the event loop shares a commit, each in
    a savepoint of its own. While SQLite's disk is quick, each thread runs and commits its own work; after a slow
    commit, statements run on the thread of the event loop and commits on another one. With PostgreSQL both run there.
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
        upgraded: Callable[[Connection], None] = lambda db: None,
        url: str | None = None,
        quick_seconds: float = QUICK_SECONDS,
    ) -> None:
        """Open the file ``path``; with ``url``, PostgreSQL there, in a schema with the name of the file.

        ``upgraded`` runs in the transaction in which an older database is migrated.
        After a commit that took ``quick_seconds`` at most, a thread that writes commits by itself.
        """
        self.path, self.url = path.absolute(), url
        self.foreign_writes = ForeignWrites()
        self.commits = Durations()
        """How long its commits took."""
        self.damages = self._damages_gone = 0
        """How often damage on the disk was met; and how often before a verification that met none."""
        self._data_version: Any = None
        self._tables = metadata, append_only, migrations
        self.after_commit: Callable[[], None] = lambda: None
        """Is called after each commit, before the next transaction: quick. What it raises is logged."""
        self.on_foreign_write: Callable[[], None] = lambda: None
        """Is called when a transaction notices a commit of another connection: quick."""
        self._backend: Backend
        self._file: Sqlite | None = None
        self.server: Any = None
        """PostgreSQL; None: SQLite, whose statements may run on the event loop, as they wait for no other machine."""
        if url is None:
            self._backend = self._file = Sqlite(self.path)
        else:
            self._backend = self.server = postgres().Postgres(url, self.path.stem)
        self._db = self._reached(self._backend.writer)
        self._memory = remember_rows(self._db)
        self._db.info[_WRITES] = self.foreign_writes
        self._lock, self._submitting = threading.Lock(), threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[_Item] = []
        self._busy = self._closed = False
        self._is_put_off = False  # whether a group waits for the lock, which another thread holds
        self._is_quick, self._quick_seconds = False, quick_seconds
        self._committer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="commit")
        self._slow_reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read")

        def prepare(db: Connection) -> None:
            if self._backend.schema.prepare(db, *self._tables):
                upgraded(db)

        if self._file is not None:
            self._file.rewrite(self._db)
        self.write(prepare)
        self._reader = self._reached(self._backend.readers)
        self._row_lock = threading.Lock()

    @staticmethod
    def _reached(connect: Callable[[], T]) -> T:
        try:
            return connect()
        except Exception as error:
            raise converted(error) from None

    def attach(self) -> None:
        """Group the writes of the running event loop from now on."""
        self._loop = asyncio.get_running_loop()

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one transaction: durable when this returns, undone if it raises.

        On the event loop's own thread use ``write_soon``. Raises AuditUnavailable if the database cannot be written
        (a full disk), and StoreFault if it refuses a statement of ``work``.
        """
        self._check_thread("write_soon")
        if self._is_quick and not self._busy and self._lock.acquire(blocking=False):
            try:
                if self._closed:
                    raise AuditUnavailable(_ENDING)
                _, result, error = self._commit(self._run_all([(work, None, None)]))[0]
            finally:
                self._release()
            if error is not None:
                raise error
            return cast(T, result)
        return self.submit(work).result()

    def _check_thread(self, on_loop: str) -> None:
        """Raise RuntimeError on the event loop's own thread, where ``on_loop`` is what waits without blocking it."""
        if self._loop is not None and asyncio._get_running_loop() is self._loop:
            raise RuntimeError(f"the event loop would wait for the database: use {on_loop}")

    async def write_soon(self, work: Callable[[Connection], T], ahead: "_AheadOf | None" = None) -> T:
        """``write`` for the event loop, which is not blocked.

        ``ahead`` returns the rows that ``work`` will read: a database on another machine is sent for them together.
        """
        if self._loop is None or self._closed:
            return self.write(work)
        future: asyncio.Future[T] = self._loop.create_future()
        self._enqueue((work, future, ahead))
        return await future

    def submit(self, work: Callable[[Connection], T]) -> "Future[T]":
        """Queue ``work``. Its future is done when it is durable."""
        if self._closed:
            raise AuditUnavailable(_ENDING)
        future: Future[T] = Future()
        with self._submitting:
            has_loop = self._loop is not None
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._enqueue, (work, future, None))
        if not has_loop:
            with self._lock:
                self._settle(self._commit(self._run_all([(work, future, None)])))
        return future

    def look(self) -> None:
        """Notice the commits of other connections until now. On the event loop's own thread it would block."""
        if self._file is None:
            self.write(lambda db: None)
            return
        self._lock.acquire()
        try:
            if not self._closed:
                self._notice_foreign(self._file.version(raw(self._db)))
        finally:
            self._release()

    def verified(self, read: Callable[[], T], check: Callable[[], None]) -> T:
        """What ``read`` returns, of a state that a verification covers: read again if another program wrote meanwhile.

        ``check`` raises if the verification found that the rows were changed. For work whose effect is committed later:
        an edit that is taken back before that commit is found by nothing. Not on the event loop's own thread. Raises
        Verifying, and as ``check`` does.
        """
        while True:
            self.look()
            before = self.foreign_writes.count
            self.foreign_writes.check_verified()
            check()
            result = read()
            check()  # a later part of the verification may have ended
            self.look()
            if self.foreign_writes.count == before:
                return result

    def read_row(self, statement: PreparedStatement, **values: Any) -> Any:
        """The only row of a statement, or None, as it was committed last: for the hot path. Raises as ``read``."""
        self._check_thread("read_row_soon")
        return self.committed_row(statement, **values)

    def committed_row(self, statement: PreparedStatement, **values: Any) -> Any:
        """``read_row`` for what follows a commit, which may run on the event loop's own thread with SQLite."""
        try:
            if self._file is not None and self._lock.acquire(blocking=False):  # nobody writes: what is remembered is so
                try:
                    if not self._closed:
                        self._notice_foreign(self._file.version(raw(self._db)))
                        if statement.is_known(self._db, values):
                            return statement.row(self._db, **values)
                finally:
                    self._release()
            with self._row_lock:
                return self._backend.row(statement, values)
        except Exception:
            with self._reading():
                raise

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with reading():
                yield
        except Damaged:
            self.damages += 1
            raise

    def _converted(self, error: Exception) -> Exception:
        failure = converted(error)
        self.damages += isinstance(failure, Damaged)
        return failure

    def check_whole(self) -> None:
        """Raise Damaged if damage was met, until a verification has met none."""
        if self.damages > self._damages_gone:
            raise Damaged("a part of the database on its disk is damaged")

    def check_pages(self) -> None:
        """Read everything that the database has on its disk. Raises Damaged."""
        with self.read() as db:
            self._backend.check_pages(db, self._tables[0])

    def forget_damages(self, count: int) -> None:
        """Note that after the first ``count`` damages everything was read and was sound."""
        self._damages_gone = count

    async def read_soon(self, work: Callable[[Connection], T]) -> T:
        """``read`` for the event loop, where ``work`` may take long: in a thread, others wait in line."""

        def reads() -> T:
            with self.read() as db:
                return work(db)

        return await asyncio.wrap_future(self._slow_reader.submit(reads))

    async def read_row_soon(self, statement: PreparedStatement, **values: Any) -> Any:
        if self.server is None or self._loop is None:
            return self.committed_row(statement, **values)
        with self._reading():
            row = await self.server.row_soon(statement, values)
        if self.server.saw_foreign_write and not self.foreign_writes.is_seen:
            self.foreign_writes.is_seen = True
            self.on_foreign_write()
        return row

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
        if self._file is None:
            self._committer.submit(lambda: self._commit_group(self._run_all(group)))
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
            self._memory.clear()
            return self._failed(done, error)

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
            ahead: list[Ahead] = []
            if self.server is not None:
                lookups = (each for *_, ahead_of in group if ahead_of is not None for each in ahead_of())
                ahead = [each for each in lookups if not each[0].is_known(self._db, each[1])]
            version, rows = self._backend.begin(connection, ahead)
            self._notice_foreign(version)
            for (statement, values), fields in zip(ahead, rows, strict=False):
                statement.read_ahead(self._db, fields, values)
            if len(group) == 1:
                work, future, _ = group[0]
                return [(future, work(self._db), None)]
            for work, future, _ in group:
                done.append((future, *self._run(connection, work)))
        except Exception as error:  # the transaction is lost, probably because of a full disk
            return self._lost(connection, [(item[1], None, None) for item in group], error)
        return done

    def _notice_foreign(self, version: Any) -> None:
        if version != self._data_version:
            self._memory.clear()
            if self._data_version is not None:
                self.foreign_writes.count += 1
                self.on_foreign_write()
            self._data_version = version
        self.foreign_writes.is_seen = False

    def _run(self, connection: Driver, work: Callable[[Connection], Any]) -> tuple[Any, Exception | None]:
        connection.execute("SAVEPOINT work")
        try:
            result = work(self._db)
        except Exception as error:
            self._memory.clear()
            if not connection.in_transaction:
                raise  # the database has rolled back the transaction
            connection.execute("ROLLBACK TO work")
            connection.execute("RELEASE work")
            return None, self._converted(error)
        connection.execute("RELEASE work")
        return result, None

    def _commit(self, done: "_Done") -> "_Done":
        connection = raw(self._db)
        if not connection.in_transaction:  # at an error, which a work may have taken for its own
            return self._lost(connection, done, AuditUnavailable("the transaction had ended before its commit"))
        began = time.perf_counter()
        try:
            connection.execute("COMMIT")
        except Exception as error:
            return self._lost(connection, done, error)
        took_s = time.perf_counter() - began
        self._is_quick = self._file is not None and took_s <= self._quick_seconds
        self.commits.add(took_s)
        try:
            self.after_commit()
        except Exception as error:  # the commit is durable, and its callers get their results
            log.error("what follows a commit failed", extra={"fields": {"kind": type(error).__name__}})
        return done

    def _lost(self, connection: Driver, done: "_Done", error: Exception) -> "_Done":
        self._memory.clear()
        if connection.in_transaction:
            with suppress(Exception):  # then the next transaction fails, and rolls it back
                connection.execute("ROLLBACK")
        return self._failed(done, error)

    def _failed(self, done: "_Done", error: Exception) -> "_Done":
        failure = self._converted(error)
        if len(done) > 1 and isinstance(failure, StoreFault):  # a statement of one of them, sent with another's
            failure = AuditUnavailable("a transaction that several requests shared was undone")
        return [(future, None, earlier or failure) for future, _, earlier in done]

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
        self.write(lambda db: self._backend.schema.check(db, self._tables[1]))

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read-only view of the database at one moment.

        Raises StorageUnavailable if the database cannot be read for now (no file can be opened, too many readers), and
        StoreFault if it refuses a statement. On the event loop's own thread use ``read_soon``.
        """
        self._check_thread("read_soon")
        with self._reading(), self._reader.connect() as db:
            db.info[_WRITES] = self.foreign_writes.count
            with db.begin():  # statements that bypass SQLAlchemy do not begin a transaction
                yield db

    @staticmethod
    @contextmanager
    def read_from(path: Path, url: str | None = None) -> Iterator[Connection]:
        """A read-only view, at one moment, of a database of the same schema, as the arguments of ``Database`` say."""
        engine: Engine = reader_of(path) if url is None else postgres().Postgres(url, path.stem).readers()
        try:
            with engine.connect() as db, db.begin():
                yield db
        finally:
            engine.dispose()

    def copy(self, target: Path) -> None:
        """Copy the database to a file of SQLite, consistently and beside writers."""
        if self._file is not None:
            self._file.copy(target)
            return
        try:
            with self.read() as db, closing(Database(target, self._tables[0], append_only=self._tables[1])) as copied:
                copied.write(lambda to: _copy_tables(db, to, self._tables[0]))
        except AuditUnavailable as error:
            raise StorageUnavailable(f"the copy of the database cannot be written: {error}") from None

    def copy_to(self, url: str) -> None:
        """Copy every row to PostgreSQL, in one transaction. Raises StateConflict if there are rows already."""
        metadata, append_only, migrations = self._tables
        target = Database(self.path, metadata, append_only=append_only, migrations=migrations, url=url)
        try:
            with self.read() as db:
                target.write(lambda to: _copy_tables(db, to, metadata))
        finally:
            target.close()

    def forget_old_pages(self) -> None:
        """Leave nothing of what was overwritten in the database's files. Raises AuditUnavailable if it cannot now."""
        if self._file is None:
            self.server.forget_old_pages()
            return
        self._lock.acquire()
        try:
            if self._closed:
                raise AuditUnavailable(_ENDING)
            self._file.forget_old_pages(raw(self._db))
        finally:
            self._release()

    def rights_of(self, role: str) -> str:
        """The statements that let a role of PostgreSQL serve and no more. Raises StateConflict for SQLite."""
        if self.server is None:
            raise StateConflict("the database is SQLite, which has no roles: DATABASE_URL is not set")
        return str(self.server.schema.rights(self.path.stem, role, *self._tables[:2]))

    def size_bytes(self) -> int:
        return self._backend.size_bytes()

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
        for pool in (self._committer, self._slow_reader):
            pool.shutdown(wait=True)
        with self._lock:
            with suppress(Exception):  # a session that is lost cannot be rolled back
                self._db.close()
            self._backend.close()


_Future = Union[Future[Any], "asyncio.Future[Any]", None]
_AheadOf = Callable[[], Iterable[Ahead]]
_Item = tuple[Callable[[Connection], Any], _Future, _AheadOf | None]
_Done = list[tuple[_Future, Any, Exception | None]]


def _copy_tables(source: Connection, target: Connection, metadata: tuple[MetaData, ...]) -> None:
    """Copy all rows into ``target``, in the caller's transactions. Raises StateConflict unless its tables are empty."""
    for table in (table for tables in metadata for table in tables.sorted_tables):
        if target.execute(select(*table.primary_key).limit(1)).first() is not None:
            raise StateConflict("the database to copy to is not empty")
        columns = [column for column in table.columns if column.computed is None]
        query = select(*columns).order_by(*table.primary_key).execution_options(yield_per=_COPIED_AT_ONCE)
        for rows in source.execute(query).partitions():
            target.execute(table.insert(), [dict(zip((c.key for c in columns), row, strict=True)) for row in rows])
