"""A connection to PostgreSQL: exact values, and the statements of ``PreparedStatement``."""

from collections.abc import Mapping
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
from service_kit.store.prepared_statement import PreparedStatement, Rows

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


class Session(psycopg.Connection[Any]):
    """A connection that begins transactions when it is told to, like that of ``sqlite3``."""

    statements = 0
    """How many were sent, over all sessions of this process: each is a round trip."""

    def execute(self, query: Any, params: Any = None, /, **options: Any) -> Any:
        """Run a statement: the text of a ``PreparedStatement``, or PostgreSQL's own without parameters."""
        return self._run(query, params)

    def _run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        prepared = _TEXTS.get(sql) or _learn(sql)
        Session.statements += 1
        if prepared is _PLAIN:
            return super().execute(sql)
        text, names = prepared
        cursor = self.cursor(binary=True)
        return cursor.execute(text, [parameters[name] for name in names], prepare=True)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is under way, also one that failed and was not rolled back."""
        return self.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)


_PLAIN: tuple[str, list[str]] = "", []
_TEXTS: dict[str, tuple[str, list[str]]] = {}


def _learn(sql: str) -> tuple[str, list[str]]:
    _TEXTS[sql] = PreparedStatement.of(sql, _DIALECT) or _PLAIN
    return _TEXTS[sql]


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
