"""A connection to PostgreSQL: exact values, and the statements of ``PreparedStatement``."""

from typing import Any

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper, NumericLoader
from psycopg.types.string import StrDumperUnknown, TextBinaryLoader, TextLoader

from blindopt.errors import StateConflict
from service_kit.store import driver_errors
from service_kit.store.postgres_dialect import Dialect
from service_kit.store.prepared_statement import PreparedStatement

driver_errors.add_driver(psycopg.Error, (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError))
_DIALECT = Dialect(paramstyle="format")
_CONNECT = {
    "client_encoding": "UTF8",
    "connect_timeout": "10",
    "tcp_user_timeout": "10000",  # milliseconds
    "keepalives_idle": "10",
}


def without_nul(text: str) -> str:
    r"""A text that PostgreSQL stores, which has no NUL: a different one for each text, in the same order.

    >>> without_nul("a\x00b\x01"), with_nul(without_nul("a\x00b\x01"))
    ('a\x01\x01b\x01\x02', 'a\x00b\x01')
    """
    return text.replace("\x01", "\x01\x02").replace("\x00", "\x01\x01") if "\x00" in text or "\x01" in text else text


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


class _Sum(NumericLoader):
    def load(self, data: Any) -> Any:  # the sum of integers
        value = super().load(data)
        return int(value) if value == value.to_integral_value() else value


def _register(adapters: AdaptersMap) -> None:
    adapters.register_dumper(str, _Text)
    adapters.register_dumper(int, Int8Dumper)
    adapters.register_dumper(bool, _Truth)
    for name in ("text", "varchar"):
        adapters.register_loader(name, _TextLoader)
        adapters.register_loader(name, _TextBinaryLoader)
    adapters.register_loader("numeric", _Sum)


class _Sent:
    """What an insert returns that is sent with the next statement."""

    rowcount = 1


class Session(psycopg.Connection[Any]):
    """A connection that begins a transaction at BEGIN alone, like that of ``sqlite3``.

    Inserts by a ``PreparedStatement`` and savepoints, whose results nobody reads, are sent together with the next
    statement, the latest is COMMIT: the wait for the server is for reads alone. An error of theirs comes then.
    """

    round_trips = 0
    """How often this process waited for the server, over all sessions; for tests."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._later: list[tuple[str, list[Any]]] = []

    def execute(self, query: Any, params: Any = None, /, **options: Any) -> Any:
        """Run a statement: the text of a ``PreparedStatement``, or PostgreSQL's own without parameters."""
        text, names = _TEXTS.get(query) or _learn(query)
        values = [params[name] for name in names]
        if query.startswith(_LATER) and self.in_transaction:
            self._later.append((text, values))
            return _Sent
        later, self._later = self._later, []
        if query.startswith("ROLLBACK"):
            kept = self._before(later, query)
            if kept is not None:
                self._later = kept
                return _Sent
            later = []
        Session.round_trips += 1
        if ";" in text:  # several, which only the simple protocol takes
            return self.cursor().execute(text)
        cursor = self.cursor(binary=True)
        if not later:
            return cursor.execute(text, values, prepare=True)
        with self.pipeline():
            for earlier in later:
                cursor.execute(*earlier, prepare=True)
            cursor = self.cursor(binary=True)
            cursor.execute(text, values, prepare=True)
        return cursor

    @staticmethod
    def _before(later: list[tuple[str, list[Any]]], query: str) -> list[tuple[str, list[Any]]] | None:
        """What to send of it where everything back to a savepoint, which was not sent either, is undone."""
        savepoint: tuple[str, list[Any]] = query.replace("ROLLBACK TO", "SAVEPOINT"), []
        return later[: later.index(savepoint) + 1] if savepoint in later else None

    def cursor(self, *args: Any, **options: Any) -> Any:
        """A cursor, for SQLAlchemy too: what was to be sent is sent before."""
        later, self._later = self._later, []
        if later:
            Session.round_trips += 1
            with self.pipeline():
                for text, values in later:
                    super().cursor(binary=True).execute(text, values, prepare=True)
        return super().cursor(*args, **options)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is under way, also one that failed and was not rolled back."""
        return self.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)


_LATER = ("INSERT ", "SAVEPOINT ", "RELEASE ")
_TEXTS: dict[str, tuple[str, list[str]]] = {}


def _learn(sql: str) -> tuple[str, list[str]]:
    plain: tuple[str, list[str]] = (sql, [])
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
    given = {key: str(value) for key, value in conninfo_to_dict(url).items()}
    options = {"search_path": schema, **settings}
    text = " ".join(f"-c {key}={value}" for key, value in options.items())
    own = {"options": f"{given.get('options', '')} {text}", "application_name": name}
    session = Session.connect(make_conninfo("", **{**_CONNECT, **given, **own}), autocommit=True)
    _register(session.adapters)
    return session
