"""SQLite's write-ahead log: to switch to it, and to empty it."""

import logging
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from blindopt.errors import AuditUnavailable
from service_kit.store.prepared_statement import Driver

log = logging.getLogger("blindopt.database")
BUSY_SECONDS = 5.0


def use_wal(cursor: sqlite3.Cursor) -> None:
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


def truncate_wal(database: Path) -> None:
    """Empty the write-ahead log, which holds old pages. Raises AuditUnavailable while a reader is in it."""
    with closing(sqlite3.connect(database, isolation_level=None, timeout=BUSY_SECONDS)) as db:
        if db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            raise AuditUnavailable("the write-ahead log cannot be emptied: a long read is under way")


def rewrite(connection: Driver) -> None:
    """Write the whole database anew: what older versions deleted is then nowhere in the file.

    A disk without room for a second copy is ignored: the database is as it was.
    """
    try:
        connection.execute("VACUUM")
    except sqlite3.OperationalError as error:
        log.warning("the database could not be written anew: %s", type(error).__name__)
