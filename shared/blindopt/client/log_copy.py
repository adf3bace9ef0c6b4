"""The file of a loop of one's own: its queries and answers, its log, and its copy of the log shared with the curator.

One SQLite file for each grant. It holds the private key that countersigns, and no token.
"""

import json
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from blindopt import wire
from blindopt.audit import merkle_log
from blindopt.audit.checkpoints import Checkpoint, Countersignature, Receipt, Signer
from blindopt.audit.merkle_log import Entry, Exchange, Head
from blindopt.audit.reconciliation import Export
from blindopt.audit.verification import is_refused
from blindopt.client.study_client import answers_of
from blindopt.client.witness import OTHERS_MAX, Copy, Row
from blindopt.errors import StateConflict
from blindopt.formats.text_files import file_errors

R = TypeVar("R")
FORMAT = "blindopt-study-1"
_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE log (grant_id TEXT NOT NULL, seq INTEGER NOT NULL, body BLOB NOT NULL, leaf BLOB NOT NULL,
    peaks BLOB NOT NULL, PRIMARY KEY (grant_id, seq));
CREATE TABLE receipts (grant_id TEXT NOT NULL, seq INTEGER NOT NULL, body BLOB NOT NULL, note TEXT NOT NULL,
    PRIMARY KEY (grant_id, seq));
CREATE TABLE countersignatures (grant_id TEXT NOT NULL, size INTEGER NOT NULL, note TEXT NOT NULL,
    PRIMARY KEY (grant_id, size));
CREATE TABLE queries (number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, candidate INTEGER NOT NULL,
    body BLOB NOT NULL, state TEXT NOT NULL, query_id TEXT, version INTEGER, reply BLOB);
"""
_OWN = ""
"""Where a log table names a grant: this side's own log."""


class _Stored(NamedTuple):
    """Where rows of one kind are: the table, its column of numbers, and what makes a row."""

    name: str
    number: str
    columns: str


# Cast, because a row that was changed by hand may hold something other than bytes.
_BYTES = "CAST(body AS BLOB), CAST(leaf AS BLOB), CAST(peaks AS BLOB)"
_TABLES: dict[type[Any], _Stored] = {
    Entry: _Stored("log", "seq", f"seq, {_BYTES}"),
    Receipt: _Stored("receipts", "seq", "seq, body, note"),
    Countersignature: _Stored("countersignatures", "size", "size, note"),
}


@dataclass(frozen=True, slots=True)
class StoredQuery:
    """A query of one candidate: stored before it is sent, and again with its reply."""

    number: int
    key: str
    candidate: int
    body: bytes
    state: str
    """sent; pending, once the curator has accepted it and people measure; answered; or refused."""
    query_id: str | None
    version: int | None
    reply: bytes | None

    @property
    def answer(self) -> wire.Answer | None:
        """The answer; None if nobody measured the candidate, and before the reply."""
        if self.state != "answered" or self.reply is None:
            return None
        return answers_of(wire.QueryReply.model_validate_json(self.reply), [self.candidate])[0]


class StudyLog:
    """The file, or with None the same in memory. Safe to share between threads; ``Copy`` is one transaction of it.

    Raises StateConflict if the file is something else.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = threading.RLock()
        try:
            if path is not None and not path.exists():
                with file_errors(path, "written"):
                    path.touch(mode=0o600)
            self._db = sqlite3.connect(path or ":memory:", isolation_level=None, timeout=60.0, check_same_thread=False)
            self._db.execute("PRAGMA synchronous = FULL")
            with self._transaction() as db:
                if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    for statement in _SCHEMA.split(";\n")[:-1]:
                        db.execute(statement)
                    copy = LogCopy(db)
                    copy.remember("format", FORMAT.encode())
                    copy.remember("private", secrets.token_bytes(32))
                copy = LogCopy(db)
                if copy.fact("format") != FORMAT.encode():
                    raise StateConflict(f"{path} is of another version of blindopt: use that one, or another file")
                self.signer = Signer.of("modeler", copy.fact("private") or b"")
        except sqlite3.Error as error:
            raise StateConflict(f"{self.path} is no log of a study: {error}") from None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    @contextmanager
    def read(self) -> Iterator["LogCopy"]:
        """Begin a transaction that reads."""
        with self._transaction() as db:
            yield LogCopy(db)

    def write(self, work: Callable[["LogCopy"], R]) -> R:
        """Run ``work`` in one transaction; what it wrote is on the disk when this returns."""
        with self._transaction() as db:
            return work(LogCopy(db))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def export(self) -> Export:
        """Return this side's records, with a checkpoint of its own log as it is now. For ``reconciliation.write``."""
        with self.read() as copy:
            grants = copy.grants()
            size = copy.size(_OWN)
            head = Checkpoint(f"{self.signer.name}/log", Head(size, copy.root_at(_OWN, size) or ""))
            export = Export(
                service="blindopt-modeler",
                key=self.signer.verifier.vkey,
                own=copy.rows(Entry, _OWN),
                shared={grant: copy.rows(Entry, grant) for grant in grants},
                keys=copy.keys(),
                notes=[("checkpoint", None, self.signer.sign(head))],
            )
            for grant in grants:
                export.notes += [("receipt", grant, row.note) for row in copy.rows(Receipt, grant)]
                export.notes += [("countersignature", grant, row.note) for row in copy.rows(Countersignature, grant)]
            return export


class LogCopy(Copy):
    """The copy in a transaction of the file, and the queries of the loop."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    # --- facts ------------------------------------------------------------------------------------

    def fact(self, name: str) -> bytes | None:
        """Return a stored fact: the private key, the study, its key, the seed, a message."""
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def remember(self, name: str, value: bytes) -> None:
        """Store a fact."""
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def key(self) -> str | None:
        value = self.fact("curator_key")
        return None if value is None else value.decode()

    def pin(self, vkey: str) -> None:
        self.remember("curator_key", vkey.encode())

    def keys(self) -> dict[str, str]:
        if (key := self.key()) is None:
            return {}
        if (study := self.fact("study")) is not None:
            return {json.loads(study)["id"]: key}
        # This side ended after it had pinned the key, and before it had stored the study.
        shared = (entry.record for grant in self.grants() for entry in self.rows(Entry, grant))
        return {exchange["study_id"]: key for exchange in shared if not is_refused(exchange)}

    # --- queries ----------------------------------------------------------------------------------

    def queries(self, *states: str) -> list[StoredQuery]:
        """Return the queries in these states, in order."""
        marks = ", ".join("?" * len(states))
        rows = self._db.execute(f"SELECT * FROM queries WHERE state IN ({marks}) ORDER BY number", states)
        return [StoredQuery(*row) for row in rows]

    def open_query(self, candidate: int, body: bytes) -> StoredQuery:
        """Return the query of a candidate that has no answer yet, or a new one under a new key."""
        for query in self.queries("sent", "pending"):
            if query.candidate == candidate:
                return query
        row = self._db.execute(
            "INSERT INTO queries (key, candidate, body, state) VALUES (?, ?, ?, 'sent') RETURNING *",
            (f"study:{secrets.token_hex(16)}", candidate, body),
        ).fetchone()
        return StoredQuery(*row)

    def change_query(
        self,
        number: int,
        state: str,
        *,
        query_id: str | None = None,
        version: int | None = None,
        reply: bytes | None = None,
    ) -> StoredQuery:
        """Store what became of a query."""
        row = self._db.execute(
            "UPDATE queries SET state = ?, query_id = ?, version = ?, reply = ? WHERE number = ? RETURNING *",
            (state, query_id, version, reply, number),
        ).fetchone()
        return StoredQuery(*row)

    # --- logs -------------------------------------------------------------------------------------

    def append(self, kind: str, *, details: dict[str, Any] | None = None, exchange: Exchange | None = None) -> None:
        time = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        record: dict[str, Any] = {"v": 1, "seq": self.size(_OWN), "time": time, "kind": kind, "actor": "study"}
        if details:
            record["details"] = details
        if exchange is not None:
            record["exchange"] = exchange.as_json()
        self.share(_OWN, merkle_log.canonical(record))

    def grants(self) -> list[str]:
        """The grants of which there is a shared log, or a receipt that awaits it."""
        query = "SELECT grant_id FROM log WHERE grant_id <> ? UNION SELECT grant_id FROM receipts ORDER BY grant_id"
        return [row[0] for row in self._db.execute(query, (_OWN,))]

    def row(self, kind: type[Row], grant: str, number: int) -> Row | None:
        return next(self._rows(kind, grant, f"AND {_TABLES[kind].number} = ?", number), None)

    def last(self, kind: type[Row], grant: str) -> Row | None:
        return next(self._rows(kind, grant, f"ORDER BY {_TABLES[kind].number} DESC LIMIT 1"), None)

    def rows(self, kind: type[Row], grant: str) -> list[Row]:
        """All rows of a kind, in order."""
        return list(self._rows(kind, grant, f"ORDER BY {_TABLES[kind].number}"))

    def _rows(self, kind: type[Row], grant: str, condition: str, *values: int) -> Iterator[Row]:
        stored = _TABLES[kind]
        query = f"SELECT {stored.columns} FROM {stored.name} WHERE grant_id = ? {condition}"
        return (kind(*fields) for fields in self._db.execute(query, (grant, *values)))

    def add(self, grant: str, row: Row) -> None:
        fields: list[Any] = [getattr(row, name) for name in row.__annotations__]
        marks = ", ".join("?" * len(fields))
        self._db.execute(f"INSERT INTO {_TABLES[type(row)].name} VALUES (?, {marks})", (grant, *fields))

    def count_other(self, grant: str, now: datetime) -> bool:
        day, count = json.loads(self.fact(f"others {grant}") or "[null, 0]")
        count = 1 + (count if day == f"{now:%Y-%m-%d}" else 0)
        if count <= OTHERS_MAX:
            self.remember(f"others {grant}", json.dumps([f"{now:%Y-%m-%d}", count]).encode())
        return count <= OTHERS_MAX

    def is_own_query(self, key: str, request_sha256: str | None) -> bool:
        row = self._db.execute("SELECT body FROM queries WHERE key = ?", (key,)).fetchone()
        body = self.fact(f"message {key}") if row is None else row[0]
        return body is not None and request_sha256 in (None, merkle_log.sha256(body))
