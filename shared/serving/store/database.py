"""One SQLite database with one writer."""

import fcntl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from sqlalchemy import URL, Connection, Engine, MetaData, create_engine, event, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool, StaticPool

from shared.errors import AuditUnavailable, StateConflict

__all__ = ["Connection", "Database", "StoreFault", "only_process"]

T = TypeVar("T")
SCHEMA_VERSION = 1
APPEND_ONLY = """
CREATE TRIGGER IF NOT EXISTS {table}_{verb} BEFORE {verb} ON {table}
BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END
"""


class StoreFault(Exception):
    """The database refused a statement: a fault of ours. Its text is the kind alone, never a value."""


class Database:
    """A WAL database whose commits are durable (synchronous=FULL) before ``write`` returns.

    Writes run one at a time on one thread with BEGIN IMMEDIATE, so that a transaction which reads and
    then writes never loses to another; reads run beside them on read-only connections. Safe against
    kill -9 at any moment. The command line may write beside a running service.
    """

    def __init__(self, path: Path, metadata: tuple[MetaData, ...], *, append_only: tuple[str, ...] = ()) -> None:
        path = path.absolute()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(PermissionError):  # a folder of another user, made so on purpose
            path.parent.chmod(0o700)
        path.touch(mode=0o600)
        path.chmod(0o600)  # the write-ahead log and its index inherit it
        self._writer = create_engine(
            URL.create("sqlite", database=str(path)), poolclass=StaticPool, connect_args={"check_same_thread": False}
        )
        _configure(self._writer, "BEGIN IMMEDIATE")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="writer")
        self.write(lambda db: _create(db, metadata, append_only))
        read_only = URL.create("sqlite", database=path.as_uri(), query={"mode": "ro", "uri": "true"})
        self._reader = create_engine(read_only, poolclass=QueuePool, pool_size=8)
        _configure(self._reader, "BEGIN DEFERRED")

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one transaction; durable once this returns, undone if it raises.

        Raises AuditUnavailable where the database cannot be written (a full disk), StoreFault where it
        refuses what ``work`` does.
        """
        return self._thread.submit(self._transact, work).result()

    def _transact(self, work: Callable[[Connection], T]) -> T:
        try:
            with self._writer.begin() as db:
                return work(db)
        except OperationalError as error:  # full disk, locked, read-only
            # The text of a driver's error may quote values: it goes no further than its type.
            raise AuditUnavailable(f"the database cannot be written ({type(error.orig).__name__})") from None
        except DBAPIError as error:  # an append-only table, a constraint
            raise StoreFault(type(error).__name__) from None

    def check_writable(self) -> None:
        """Write one page, as any transaction would; raises what ``write`` raises."""
        self.write(lambda db: db.execute(text(f"PRAGMA user_version={SCHEMA_VERSION}")))

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read-only view of one moment."""
        with self._reader.connect() as db:
            yield db

    def close(self) -> None:
        """Finish writes under way and release the files."""
        self._thread.shutdown(wait=True)
        self._reader.dispose()
        self._writer.dispose()


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
        for verb in ("UPDATE", "DELETE"):
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
