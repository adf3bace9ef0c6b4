"""Errors of the database's driver become our own, without their text, which may quote values."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnection

from blindopt.errors import AuditUnavailable, StorageUnavailable
from service_kit.store import StoreFault
from service_kit.store.prepared_statement import forget_rows, raw

_ANY: tuple[type[Exception], ...] = (sqlite3.Error,)
_PASSING: tuple[type[Exception], ...] = (sqlite3.OperationalError,)
"""Errors of drivers: all, and those of a database that cannot be used for now."""
_KINDS = ("IntegrityError", "ProgrammingError", "DataError", "OperationalError", "InternalError", "InterfaceError")


def add_driver(any_error: type[Exception], passing: tuple[type[Exception], ...]) -> None:
    """Convert the errors of a further driver too."""
    global _ANY, _PASSING
    _ANY, _PASSING = (*_ANY, any_error), (*_PASSING, *passing)


def kind_of(error: BaseException) -> str:
    """The standard name of an error of a driver: that of its class, or of the one above it."""
    return next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS), type(error).__name__)


_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_DAMAGED_READS = {sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS}


class Damaged(StorageUnavailable):
    """What the database has on its disk cannot be read. ``Database`` counts each."""

    what_to_do = "Restore a backup of the database: what it has on its disk is damaged."

    @classmethod
    def of_driver(cls, error: BaseException) -> "Damaged | None":
        """The damage that an error of a driver reports; None for any other error. Class XX of PostgreSQL is damage."""
        code, state = getattr(error, "sqlite_errorcode", None) or 0, getattr(error, "sqlstate", None) or ""
        if code & 0xFF in _DAMAGED or code in _DAMAGED_READS or state.startswith("XX"):
            return cls(f"a part of the database on its disk is damaged ({kind_of(error)}): keep its files")
        return None


def converted(error: Exception, *, is_read: bool = False) -> Exception:
    """Convert an error of the driver to one without its text, which may quote values; return others as they are."""
    cause = (error.orig if isinstance(error, DBAPIError) else None) or error
    if isinstance(cause, _ANY) and (damaged := Damaged.of_driver(cause)) is not None:
        return damaged
    if isinstance(cause, (*_PASSING, NoConnection)):  # full disk, locked, read-only, no connection or descriptor
        kind = kind_of(cause)
        if is_read:
            return StorageUnavailable(f"the database cannot be read ({kind})")
        return AuditUnavailable(f"the database cannot be written ({kind})")
    if isinstance(cause, (*_ANY, DBAPIError)):  # an append-only table, a constraint
        return StoreFault(kind_of(cause))
    return error


@contextmanager
def savepoint(db: Connection) -> Iterator[None]:
    """A part of a transaction that is undone alone if it raises, as long as the transaction lasts (``is_open``)."""
    connection = raw(db)
    connection.execute("SAVEPOINT part")
    try:
        yield
    except Exception as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK TO part")
            forget_rows(db)
            connection.execute("RELEASE part")
        raise converted(error) from None
    connection.execute("RELEASE part")


def is_open(db: Connection) -> bool:
    """Whether the transaction lasts: SQLite ends it at some errors, such as a full disk; a lost connection does."""
    return raw(db).in_transaction


@contextmanager
def reading() -> Iterator[None]:
    """Convert errors of the driver in a read, as ``converted`` does."""
    try:
        yield
    except Exception as error:
        if (ours := converted(error, is_read=True)) is error:
            raise
        raise ours.with_traceback(error.__traceback__) from None
