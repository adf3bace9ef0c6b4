"""SQLite as the database of a service: one file in WAL mode, and a connection that writes."""

import logging
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sqlalchemy import URL, Connection, Engine, MetaData, create_engine, event
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool, StaticPool

from blindopt.errors import AuditUnavailable, StorageUnavailable
from service_kit.store import schema
from service_kit.store.driver_errors import Damaged
from service_kit.store.prepared_statement import Ahead, Driver, PreparedStatement, raw

log = logging.getLogger("blindopt.database")
BUSY_SECONDS = 5.0
SECURE_DELETE = 12
"""The first version of the schema whose files hold nothing that was deleted."""
_CURSORS = "blindopt_cursors"


class Sqlite:
    """One file. Its commits are durable (synchronous=FULL); reads have connections that cannot write."""

    schema = schema

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(PermissionError):  # a folder that another user owns
            path.parent.chmod(0o700)
        path.touch(mode=0o600)
        path.chmod(0o600)  # the write-ahead log and its index inherit it
        self._path = path
        url = URL.create("sqlite", database=str(path))
        self._writer = create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
        _configure(self._writer, writes=True)

    def writer(self) -> Connection:
        connection = self._writer.connect()
        self._info = connection.info
        self._opened = _identity(self._path)
        return connection

    def begin(self, driver: Driver, ahead: Sequence[Ahead]) -> tuple[Any, list[Any]]:
        """Begin a transaction that writes; a value that changes with each commit of another connection.

        Raises AuditUnavailable where the path has another file than the one that is open: what is written to that file
        is gone with the process.
        """
        _close_cursors(self._info)
        if _identity(self._path) != self._opened:
            raise AuditUnavailable("the file of the database was deleted or replaced: put it back")
        driver.execute("BEGIN IMMEDIATE")
        return Sqlite.version(driver), []

    @staticmethod
    def version(driver: Driver) -> Any:
        """A value that changes with each commit of another connection."""
        version = driver.execute("PRAGMA data_version").fetchone()
        return None if version is None else version[0]

    @staticmethod
    def rewrite(db: Connection) -> None:
        """Write the database of an old version anew, so that nothing of what that version deleted is in its file.

        Before it is migrated: a start that was killed meanwhile leaves the old version, and the next one does it again.
        A disk without room for a second copy is ignored: the database is as it was.
        """
        (version,) = raw(db).execute("PRAGMA user_version").fetchone()
        if not 0 < version < SECURE_DELETE:
            return
        log.info("the database of an old version is written anew, once: that takes minutes for a million records")
        try:
            raw(db).execute("VACUUM")
            raw(db).execute("PRAGMA wal_checkpoint(TRUNCATE)")  # or the file keeps the old pages until a later one
        except sqlite3.DatabaseError as error:
            log.warning("the database could not be written anew: %s", type(error).__name__)

    def readers(self) -> Engine:
        """Open the connections that read; the pool of those that SQLAlchemy uses."""
        self._reader = reader_of(self._path)
        self._row_connection = sqlite3.connect(
            f"{self._path.as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False, timeout=5
        )
        self._row_connection.execute("SELECT count(*) FROM sqlite_master")  # opens its files now
        return self._reader

    def row(self, statement: PreparedStatement, values: dict[str, Any]) -> Any:
        """The only row of a statement, or None; not in a transaction, for one thread at a time."""
        return statement.row_on(self._row_connection, **values)

    def forget_old_pages(self, driver: Driver) -> None:
        """Empty the write-ahead log, which holds old pages. Raises AuditUnavailable while a reader is in it.

        On the connection that writes: after that of another one the log would be verified anew.
        """
        if driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            raise AuditUnavailable("the write-ahead log cannot be emptied: a long read is under way")

    def copy(self, target: Path) -> None:
        """Copy the database to a file, consistently and beside writers. Raises StorageUnavailable (a full disk)."""
        # In one step, because a stepwise backup starts again at every write beside it.
        with self._reader.connect() as db, closing(sqlite3.connect(target)) as to:
            try:
                db.connection.driver_connection.backup(to)  # type: ignore[union-attr]
            except sqlite3.OperationalError as error:  # its text is SQLite's own, and quotes no value
                raise StorageUnavailable(f"the copy of the database cannot be written: {error}") from None

    @staticmethod
    def check_pages(db: Connection, metadata: tuple[MetaData, ...]) -> None:
        """Read every page of the file. Raises Damaged."""
        if db.exec_driver_sql("PRAGMA quick_check(1)").scalar_one() != "ok":
            raise Damaged("a page of the database is damaged")

    def size_bytes(self) -> int:
        """The size of the database with its write-ahead log."""
        return sum(path.stat().st_size for path in self._path.parent.glob(f"{self._path.name}*"))

    def close(self) -> None:
        """Close what ``readers`` opened, and the connection that writes."""
        self._row_connection.close()
        self._reader.dispose()
        self._writer.dispose()


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from every other one; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def reader_of(path: Path) -> Engine:
    read_only = URL.create("sqlite", database=path.absolute().as_uri(), query={"mode": "ro", "uri": "true"})
    engine = create_engine(read_only, poolclass=QueuePool, pool_size=8)
    _configure(engine, writes=False)
    return engine


def _configure(engine: Engine, *, writes: bool) -> None:
    # Python's sqlite3 begins transactions late. We begin them ourselves, so that no read is upgraded to a write.
    @event.listens_for(engine, "connect")
    def on_connect(connection: object, record: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # type: ignore[attr-defined]
        cursor = connection.cursor()  # type: ignore[attr-defined]
        for pragma in ("busy_timeout=5000", "foreign_keys=ON", "recursive_triggers=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        if writes:
            _use_wal(cursor)
            cursor.execute("PRAGMA synchronous=FULL")
            cursor.execute("PRAGMA secure_delete=ON")  # what is overwritten or deleted is nowhere in the file
        cursor.close()

    @event.listens_for(engine, "after_cursor_execute")
    def on_execute(connection: Connection, cursor: sqlite3.Cursor, *more: object) -> None:
        connection.info.setdefault(_CURSORS, WeakSet()).add(cursor)

    if not writes:  # the writer begins and commits on the driver's connection

        @event.listens_for(engine, "begin")
        def on_begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN DEFERRED")

        @event.listens_for(engine, "commit")
        @event.listens_for(engine, "rollback")
        def on_end(connection: Connection) -> None:
            _close_cursors(connection.info)


def _close_cursors(info: dict[Any, Any]) -> None:
    """Close what a transaction did not read to its end, and an exception may still hold.

    To SQLite its moment goes on: later reads would see an old state, and writes fail after one of another process.
    """
    for cursor in info.pop(_CURSORS, ()):
        cursor.close()


def _use_wal(cursor: sqlite3.Cursor) -> None:
    """Switch to WAL. SQLite itself does not wait for another process that switches the same new file at this moment."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
