"""Errors of the database's driver become our own, without their text, which may quote values."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnection

from blindopt.errors import AuditUnavailable, StorageUnavailable
from service_kit.store.prepared_statement import raw


class StoreFault(Exception):
    """The database refused a statement, which is an error of the program. Its text is the kind, never a value."""


def converted(error: Exception) -> Exception:
    """Convert an error of the driver to one without its text, which may quote values; return others as they are."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.OperationalError):  # full disk, locked, read-only
        return AuditUnavailable(f"the database cannot be written ({type(cause).__name__})")
    if isinstance(cause, sqlite3.Error):  # an append-only table, a constraint
        return StoreFault(type(cause).__name__)
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
            connection.execute("RELEASE part")
        raise converted(error) from None
    connection.execute("RELEASE part")


def is_open(db: Connection) -> bool:
    """Whether the transaction lasts: SQLite ends it at some errors, such as a full disk."""
    return raw(db).in_transaction


@contextmanager
def reading() -> Iterator[None]:
    """Convert errors of the driver in a read to ours, without their text, which may quote values."""
    try:
        yield
    except (DBAPIError, NoConnection, sqlite3.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        fault: Exception = StoreFault(type(cause).__name__)
        if isinstance(cause, sqlite3.OperationalError | NoConnection):  # no descriptor, a locked file, a full pool
            fault = StorageUnavailable(f"the database cannot be read ({type(cause).__name__})")
        raise fault.with_traceback(error.__traceback__) from None
