"""A connection to PostgreSQL: exact values, and the statements of ``PreparedStatement``."""

import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any, Self, cast

import psycopg
from psycopg import generators
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ConnStatus, ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.types.numeric import FloatBinaryDumper, FloatDumper, Int8Dumper, NumericLoader
from psycopg.types.string import StrDumperUnknown, TextBinaryLoader, TextLoader

from blindopt.errors import StateConflict
from service_kit.store import driver_errors
from service_kit.store.postgres_dialect import Dialect
from service_kit.store.prepared_statement import PreparedStatement

driver_errors.add_driver(psycopg.Error, (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError))
_DIALECT = Dialect(paramstyle="numeric_dollar")
_CONNECT = {
    "client_encoding": "UTF8",
    "connect_timeout": "10",
    "tcp_user_timeout": "10000",  # milliseconds
    "keepalives_idle": "10",
}


_SERVER_SIDE = {
    "tcp_keepalives_idle": "3",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
"""How soon the server ends the session of a machine that has vanished: its own defaults are two hours."""


def without_nul(value: str) -> str:
    r"""A text that PostgreSQL stores, which has no NUL: a different one for each text, in the same order.

    >>> without_nul("a\x00b\x01"), with_nul(without_nul("a\x00b\x01"))
    ('a\x01\x01b\x01\x02', 'a\x00b\x01')
    """
    if "\x00" not in value and "\x01" not in value:
        return value
    return value.replace("\x01", "\x01\x02").replace("\x00", "\x01\x01")


def with_nul(stored: str) -> str:
    """The text that ``without_nul`` stored."""
    return stored.replace("\x01\x01", "\x00").replace("\x01\x02", "\x01") if "\x01" in stored else stored


class _Text(StrDumperUnknown):
    def dump(self, obj: str) -> Any:
        return super().dump(without_nul(obj))


class _TextLoader(TextLoader):
    def load(self, data: Any) -> Any:
        return with_nul(str(super().load(data)))


class _TextBinaryLoader(TextBinaryLoader):
    def load(self, data: Any) -> Any:
        return with_nul(str(super().load(data)))


class _Truth(Int8Dumper):
    def dump(self, obj: Any) -> Any:
        return b"1" if obj else b"0"


class _Float(FloatDumper):
    def dump(self, obj: float) -> Any:
        return None if math.isnan(obj) else super().dump(obj + 0.0)


class _FloatBinary(FloatBinaryDumper):
    def dump(self, obj: float) -> Any:
        return None if math.isnan(obj) else super().dump(obj + 0.0)


class _Sum(NumericLoader):
    def load(self, data: Any) -> Any:  # the sum of integers
        value = super().load(data)
        return int(value) if value == value.to_integral_value() else value


def _register(adapters: AdaptersMap) -> None:
    adapters.register_dumper(str, _Text)
    adapters.register_dumper(int, Int8Dumper)
    adapters.register_dumper(bool, _Truth)
    for dumper in (_Float, _FloatBinary):
        adapters.register_dumper(float, dumper)
    for name in ("text", "varchar"):
        adapters.register_loader(name, _TextLoader)
        adapters.register_loader(name, _TextBinaryLoader)
    adapters.register_loader("numeric", _Sum)


class _Cursor(psycopg.Cursor[Any]):
    """SQLAlchemy's."""

    def execute(self, *args: Any, **options: Any) -> Self:
        try:
            return super().execute(*args, **options)
        except psycopg.Error as error:
            cast(Session, self.connection).note(error)
            raise


class _Result:
    """What a statement returned; of one that is sent with the next, what can be said of it before."""

    def __init__(self, rows: list[Any], rowcount: int = 1) -> None:
        self._rows, self.rowcount = iter(rows), rowcount

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def __iter__(self) -> Iterator[Any]:
        return self._rows


_SENT = _Result([])
Message = tuple[str, list[bytes | None], list[Format]]
"""A statement in PostgreSQL's own text, with the bytes and format of each parameter in order."""


class Session(psycopg.Connection[Any]):
    """A connection that begins a transaction at BEGIN alone, like that of ``sqlite3``.

    Inserts by a ``PreparedStatement`` and savepoints, whose results nobody reads, are sent together with the next
    statement, the latest is COMMIT: the wait for the server is for reads alone. An error of theirs comes then. They
    wait in libpq's buffer, in pipeline mode. psycopg's own pipeline takes over twice the processor time of a
    transaction, as each statement is a cursor's (measured): cursors are for SQLAlchemy.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._names: dict[str, bytes] = {}
        self._numbers = count()
        self._savepoints: list[str] = []
        self._loads = Transformer(self)
        self.found_no_room_at = -math.inf
        """When a statement last found the server's disk full, by the monotonic clock."""

    def execute(self, query: Any, params: Any = None, /, **options: Any) -> Any:
        """Run a statement: the text of a ``PreparedStatement``, or PostgreSQL's own without parameters."""
        if query.startswith(_PARTS):
            sql, positions = self._renamed(query), list[int]()
        else:
            sql, positions = _TEXTS.get(query) or _learn(query)
        if ";" in sql:  # several, which only the simple protocol takes
            return self.cursor().execute(sql)
        message = self.message(sql, [params[position] for position in positions])
        if query.startswith(_LATER) and self.in_transaction:
            self.send(message)
            return _SENT
        if query.startswith("ROLLBACK"):
            with suppress(psycopg.Error):  # of what is undone: of other statements, the savepoint would not be there
                self.run([])
        return self.run([message])[-1]

    def _renamed(self, query: str) -> str:
        """A statement about a savepoint, by a name of its own: one that was never sent is not taken for an earlier."""
        verb, _, name = query.rpartition(" ")
        if verb == "SAVEPOINT":
            self._savepoints = [*(self._savepoints if self.in_transaction else []), f"{name}_{next(self._numbers)}"]
        while not self._savepoints[-1].startswith(f"{name}_"):
            self._savepoints.pop()
        return f"{verb} {self._savepoints.pop() if verb == 'RELEASE' else self._savepoints[-1]}"

    def run(self, messages: list[Message]) -> list[_Result]:
        """``running``, on a thread that waits."""
        return cast(list[_Result], self.wait(self.running(messages)))

    def running(self, messages: list[Message]) -> Any:
        """Send statements together, wait once, and return the results. Raises the first error, after which none ran.

        A generator of psycopg's, which yields what to wait for.
        """
        for message in messages:
            self.send(message)
        results, error = (yield from self._arriving()), None
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR and error is None:
                error = psycopg.errors.error_from_result(result)
                self.note(error)
        if messages and messages[-1][0] == "COMMIT" and results[-1].command_status == b"ROLLBACK":  # it had failed
            error = psycopg.errors.InFailedSqlTransaction("the transaction was undone")
        if error is not None:
            self._names.clear()  # some may not have been prepared
            raise error
        return [self._rows_of(result) for result in results[len(results) - len(messages) :]]

    @staticmethod
    def message(sql: str, values: list[Any]) -> Message:
        """A statement as it is sent. Raises for a value that cannot be."""
        formats = [Format.BINARY if isinstance(value, bytes) else Format.TEXT for value in values]
        return sql, [_encoded(value) for value in values], formats

    @staticmethod
    def message_of(statement: PreparedStatement, values: dict[str, Any]) -> Message:
        bound = statement.bound(values)
        sql, positions = _TEXTS.get(statement.sql) or _learn(statement.sql)
        return Session.message(sql, [bound[position] for position in positions])

    def send(self, message: Message) -> None:
        """Send a statement with the next that are waited for; one that is new to the server is prepared before it."""
        if self.pgconn.pipeline_status == PipelineStatus.OFF:
            self.pgconn.enter_pipeline_mode()
        sql, values, formats = message
        if sql.startswith(_PARTS):  # each has a name of its own
            self.pgconn.send_query_params(sql.encode(), None)
            return
        name = self._names.get(sql)
        if name is None:
            name = self._names[sql] = b"s%d" % next(self._numbers)
            self.pgconn.send_prepare(name, sql.encode())
        self.pgconn.send_query_prepared(name, values, formats, Format.BINARY)

    def _arriving(self) -> Any:
        """The results of all statements that were sent."""
        results: list[Any] = []
        if self.pgconn.pipeline_status == PipelineStatus.OFF:
            return results
        self.pgconn.pipeline_sync()
        yield from generators.send(self.pgconn)
        while True:
            result = yield from generators.fetch(self.pgconn)
            if self.pgconn.status == ConnStatus.BAD:  # no sync will come
                raise psycopg.OperationalError("the connection is lost")
            if result is not None and result.status == ExecStatus.PIPELINE_SYNC:
                self.pgconn.exit_pipeline_mode()
                return results
            if result is not None and (result.status != ExecStatus.COMMAND_OK or result.command_status):
                results.append(result)  # not that of a preparation

    def _rows_of(self, result: Any) -> _Result:
        if result.status != ExecStatus.TUPLES_OK:
            return _Result([], result.command_tuples or 0)
        self._loads.set_pgresult(result)
        return _Result(self._loads.load_rows(0, result.ntuples, tuple), result.ntuples)

    def cursor(self, *args: Any, **options: Any) -> Any:
        """A cursor, for SQLAlchemy too. What was sent before is waited for."""
        self.run([])
        return super().cursor(*args, **options)

    def note(self, error: Exception) -> None:
        """Note what an error says of the server's disk."""
        if isinstance(error, psycopg.errors.DiskFull):
            self.found_no_room_at = time.monotonic()

    def cut(self) -> None:
        """Cut the connection, from any thread: its own, which may wait for the server, goes on with an error."""
        if not self.closed:
            with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.pgconn.socket)) as connection:
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is under way, also one that failed and was not rolled back."""
        return self.pgconn.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)


def _encoded(value: Any) -> bytes | None:
    if isinstance(value, str):
        return without_nul(value).encode()
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, float):  # as SQLite stores it: not a number is NULL, and zero has no sign
        return None if math.isnan(value) else float.__repr__(value + 0.0).encode()
    return repr(value + 0).encode()  # True is 1


_PARTS = ("SAVEPOINT ", "RELEASE ", "ROLLBACK TO ")
_LATER = ("INSERT ", "SAVEPOINT ", "RELEASE ")
_TEXTS: dict[str, tuple[str, list[int]]] = {}


def _learn(sql: str) -> tuple[str, list[int]]:
    plain: tuple[str, list[int]] = (sql, [])
    prepared = _TEXTS[sql] = PreparedStatement.of(sql, _DIALECT) or plain
    return prepared


def check_url(url: str) -> None:
    """Raise StateConflict for an address that is not PostgreSQL's. The text quotes nothing of it."""
    try:
        conninfo_to_dict(url)
    except psycopg.Error:
        raise StateConflict("the address of the database is not like postgresql://USER@HOST/DATABASE") from None


def connect(url: str, schema: str, name: str, **settings: str) -> Session:
    """A session whose tables are those of ``schema``; the server lists it as ``name``. Raises what the driver does."""
    of_url = {key: str(value) for key, value in conninfo_to_dict(url).items()}
    options = [of_url.get("options", ""), *(f"-c {key}={value}" for key, value in (_SERVER_SIDE | settings).items())]
    of_session = {"options": " ".join([*options, f"-c search_path={schema}"]), "application_name": name}
    address = make_conninfo("", **{**_CONNECT, **of_url, **of_session})
    session = Session.connect(address, autocommit=True, cursor_factory=_Cursor)
    session.prepare_threshold = None  # the driver would deallocate all with its own, also those that it did not prepare
    _register(session.adapters)
    return session
