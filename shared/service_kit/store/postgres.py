"""PostgreSQL as the database of a service: one schema of a database, and a session that writes."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Any, cast
from weakref import WeakSet

import psycopg
from psycopg import waiting
from sqlalchemy import Connection, Engine, MetaData, create_engine, event, literal_column, select, text
from sqlalchemy.pool import QueuePool, StaticPool

from service_kit.store import postgres_dialect, postgres_schema
from service_kit.store.driver_errors import converted, reading
from service_kit.store.postgres_session import Message, Session, check_url, connect
from service_kit.store.prepared_statement import Ahead, Driver, PreparedStatement

LEADS = 0x626F7001
"""First half of the key of the advisory lock of the session that leads."""
_LEAD_S = 3
_SILENT_S = 10
"""Longer than the session that writes is silent between two transactions: a heartbeat writes."""
_PAUSED_S = 20
"""Longer than a transaction pauses between two statements, and short enough for a standby to serve within 30 s."""
_ANSWER = PreparedStatement(select(literal_column("1").label("one")))
_WRITER = Session.message("SELECT writer FROM state", [])
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class Postgres:
    """The tables of one service in a schema that has its name.

    Transactions that write are READ COMMITTED and wait for each other by an advisory lock, so that each sees all
    before it and none fails because of another. SERIALIZABLE needs retries: of four writers it undoes most
    transactions. Transactions that read are REPEATABLE READ: one view.
    """

    schema = postgres_schema

    def __init__(self, url: str, schema: str) -> None:
        check_url(url)
        self._url, self._schema = url, schema
        self._name = secrets.token_hex(8)
        self._session: Session | None = None
        self._sessions: WeakSet[Session] = WeakSet()
        self._begin = [
            Session.message("BEGIN ISOLATION LEVEL READ COMMITTED", []),  # whatever the default of the database
            Session.message(f"SELECT pg_advisory_xact_lock({postgres_schema.writers_lock(schema)})", []),
        ]
        self._leader: Session | None = _leading.pop((url, schema), None)
        self._writer = _engine(self._open_writer, StaticPool)

    def _open_writer(self) -> Session:
        self._session = self._leader or self._open("writer", **{"blindopt.writer": self._name})
        if self._leader is not None:
            _led[self._url, self._schema] = self._session
            self._sessions.add(self._session)
            self._session.execute(f"SET blindopt.writer = '{self._name}'; SET blindopt.leads = '1'")
        return self._session

    def _open(self, purpose: str, **settings: str) -> Session:
        try:
            session = connect(self._url, self._schema, f"blindopt {self._schema} {purpose}", **settings)
            self._sessions.add(session)
            return session
        except psycopg.Error as error:
            raise psycopg.OperationalError(type(error).__name__) from None  # its text names hosts and users

    @property
    def is_lost(self) -> bool:
        return self._session is not None and self._session.closed

    def writer(self) -> Connection:
        return self._writer.connect()

    def begin(self, driver: Driver, ahead: Sequence[Ahead]) -> tuple[Any, list[Any]]:
        """Begin a transaction that writes, and read rows, in one round trip.

        Returns a value that changes with each commit of another writer, and the fields of each row, or None.
        """
        session = cast(Session, driver)
        if not hasattr(self, "_reader"):  # the schema may not be there yet
            session.run(self._begin)
            return None, []
        _, _, writer, *rows = session.run([*self._begin, _WRITER, *(Session.message_of(*lookup) for lookup in ahead)])
        if writer.fetchone()[0] != self._name:
            driver.execute(f"UPDATE state SET writer = '{self._name}'")
            self._writes += 1
        return self._writes, [row.fetchone() for row in rows]

    _writes = 0

    def readers(self) -> Engine:
        """Open the connections that read; the pool of those that SQLAlchemy uses."""
        self._reader = _engine(lambda: self._open("reader"), QueuePool)
        self._row_session = self._open("reader")
        self._lookup_session: Session | None = None
        self._lookups: list[tuple[Message, asyncio.Future[Any]]] = []
        self._looking_up: asyncio.Task[None] | None = None
        self.saw_foreign_write = False
        """Whether there was a commit of another writer after the last of ours, when ``row_soon`` read last."""

        @event.listens_for(self._reader, "begin")
        def on_begin(connection: Connection) -> None:
            connection.exec_driver_sql(_READ)

        return self._reader

    def row(self, statement: PreparedStatement, values: dict[str, Any]) -> Any:
        """The only row of a statement, or None; not in a transaction, for one thread at a time."""
        if self._row_session.closed:
            self._row_session = self._open("reader")
        return statement.row_on(self._row_session, **values)

    async def row_soon(self, statement: PreparedStatement, values: dict[str, Any]) -> Any:
        """``row`` for the event loop. Rows that are asked for while others are waited for are read together."""
        future = asyncio.get_running_loop().create_future()
        self._lookups.append((Session.message_of(statement, values), future))
        if self._looking_up is None or self._looking_up.done():
            self._looking_up = asyncio.create_task(self._look_up())
        return statement.made(await future)

    async def _look_up(self) -> None:
        while self._lookups:
            lookups, self._lookups = self._lookups, []
            messages = [message for message, _ in lookups]
            results: list[Any]
            try:
                if self._lookup_session is None or self._lookup_session.closed:
                    self._lookup_session = await asyncio.to_thread(self._open, "reader")
                session = self._lookup_session
                rows = await waiting.wait_async(session.running([*messages, _WRITER]), session.pgconn.socket)
                *results, (writer,) = (result.fetchone() for result in rows)
                self.saw_foreign_write = writer != self._name
            except Exception as error:
                results = [error] * len(lookups)
            for (_, future), fields in zip(lookups, results, strict=True):
                if future.done():  # its caller has gone
                    continue
                if isinstance(fields, Exception):
                    future.set_exception(fields)
                else:
                    future.set_result(fields)

    def end_when_idle(self) -> None:
        """Let the server end the session that writes when it is silent for so long that its process is frozen.

        Only while a heartbeat runs: what is done before, at an opening, may take longer.
        """
        assert self._session is not None
        limits = {"idle_session_timeout": _SILENT_S, "idle_in_transaction_session_timeout": _PAUSED_S}
        self._session.execute("; ".join(f"SET {name} = '{seconds}s'" for name, seconds in limits.items()))

    async def answer(self) -> None:
        """Wait until the server answers a read that waits for no lock. Raises StorageUnavailable."""
        with reading():
            await self.row_soon(_ANSWER, {})

    def abandon(self) -> None:
        """Cut all connections: whichever thread waits for the server goes on with an error."""
        for session in list(self._sessions):
            session.cut()

    def forget_old_pages(self) -> None:
        """Write all tables anew, so that their files hold nothing of what was overwritten."""
        with self._reader.connect() as db:
            tables = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename <> 'state'"
            names = db.execute(text(tables)).scalars().all()
        session = self._open("vacuum")
        try:
            for name in names:
                session.execute(f"SELECT write_anew('{name}')")
        finally:
            session.close()

    @staticmethod
    def check_pages(db: Connection, metadata: tuple[MetaData, ...]) -> None:
        """Read every row of every table. Raises what the driver does."""
        for table in (table for tables in metadata for table in tables.sorted_tables):
            for _ in db.execute(select(table).execution_options(yield_per=1_000)):
                pass

    def size_bytes(self) -> int:
        """The size of the tables with their indexes."""
        sizes = "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class"
        with self._reader.connect() as db:
            where = "relnamespace = current_schema()::regnamespace AND relkind = 'r'"
            return int(db.execute(text(f"{sizes} WHERE {where}")).scalar_one())

    def replicas_behind(self) -> list[int | None]:
        """Bytes of the server's log that each connected replica has not replayed; None: the role may not know."""
        query = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::bigint FROM pg_stat_replication"
        with self._reader.connect() as db:
            return list(db.execute(text(query)).scalars())

    def close(self) -> None:
        """Close every session, and with it the locks of this one."""
        self._row_session.close()
        if self._lookup_session is not None and self._looking_up is not None:
            self._lookup_session.cut()  # the event loop may wait for it
            if self._looking_up.done():
                self._lookup_session.close()
        self._reader.dispose()
        self._writer.dispose()


_leading: dict[tuple[str, str], Session] = {}
"""Sessions that have the lock of a leader, until the database is opened over them."""
_led: dict[tuple[str, str], Session] = {}
"""Those over which it was opened last: one that could not be opened whole has left its session, and so the lock."""


def lead(url: str, schema: str) -> bool:
    """Wait for the lock of the leader; False after ``_LEAD_S``. The next ``Postgres`` writes in the session with it."""
    check_url(url)
    for sessions in (_leading, _led):
        if (old := sessions.pop((url, schema), None)) is not None:
            old.close()
    try:
        session = connect(url, schema, f"blindopt {schema} writer", lock_timeout=f"{_LEAD_S}s")
        session.execute(f"SELECT pg_advisory_lock({LEADS}, {postgres_schema.key_of(schema)}); SET lock_timeout = 0")
    except psycopg.errors.LockNotAvailable:
        session.close()
        return False
    except psycopg.Error as error:
        raise converted(error) from None
    _leading[url, schema] = session
    return True


def _engine(creator: Callable[[], Session], pool: Any) -> Engine:
    options: dict[str, Any] = {"pool_size": 8, "pool_pre_ping": False} if pool is QueuePool else {}
    return create_engine(
        f"{postgres_dialect.NAME}://", creator=creator, poolclass=pool, use_native_hstore=False, **options
    )
