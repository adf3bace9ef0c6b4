"""The modeler's copy of the logs that it shares with curators, in its database."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from blindopt.audit import merkle_log
from blindopt.audit.checkpoints import Countersignature, Receipt
from blindopt.audit.merkle_log import Entry, Exchange
from blindopt.audit.segments import SegmentFile
from blindopt.client import witness
from blindopt.client.witness import Row
from blindopt.errors import LogBroken
from blindopt.wire import AuditEntry
from modeler_service.runs.notices import notify_disputed
from modeler_service.runs.query_keys import is_run_query
from service_kit.context.audit_trail import StoredRecords
from service_kit.context.context import ServiceContext
from service_kit.store import audit_log, checkpoints, day_counts
from service_kit.store.audit_log import RowsOfGrants
from service_kit.store.base import stamp
from service_kit.store.database import Connection

R = TypeVar("R")
_ROWS: dict[type[Any], RowsOfGrants[Any]] = {
    Entry: audit_log.SHARED,
    Receipt: checkpoints.RECEIPTS,
    Countersignature: checkpoints.COUNTERSIGNATURES,
}
IsOwnQuery = Callable[[Connection, str, str | None], bool]
"""Returns whether this side sent a query under this idempotency key, with a body of this digest (None: of any)."""


class DatabaseCopy(witness.Copy):
    """The copy in a transaction of the modeler's database."""

    def __init__(
        self,
        db: Connection,
        context: ServiceContext,
        study_id: str,
        actor: str,
        is_own_query: IsOwnQuery,
        count: Callable[[Connection, int], None],
    ) -> None:
        self._db, self._context, self._study_id, self._actor = db, context, study_id, actor
        self._is_own_query, self._count = is_own_query, count

    def key(self) -> str | None:
        return checkpoints.key_of(self._db, self._study_id)

    def keys(self) -> dict[str, str]:
        return dict(checkpoints.keys(self._db))

    def pin(self, vkey: str) -> None:
        checkpoints.pin(self._db, self._study_id, vkey, self._context.clock())

    def append(self, kind: str, *, details: dict[str, Any] | None = None, exchange: Exchange | None = None) -> None:
        now, body = self._context.clock(), None if exchange is None else exchange.body
        added = audit_log.append(self._db, kind, actor=self._actor, now=now, details=details, exchange=body)
        self._count(self._db, added.size)

    def row(self, kind: type[Row], grant: str, number: int) -> Row | None:
        row: Row | None = _ROWS[kind].at(self._db, grant, number)
        return row

    def last(self, kind: type[Row], grant: str) -> Row | None:
        row: Row | None = _ROWS[kind].last(self._db, grant)
        return row

    def add(self, grant: str, row: Row) -> None:
        self._count(self._db, sum(len(getattr(row, name, b"")) for name in ("body", "peaks", "note")))
        more: dict[str, Any] = {"created_at": stamp(self._context.clock())} if type(row) is Countersignature else {}
        _ROWS[type(row)].add(self._db, grant, row, **more)

    def count_other(self, grant: str, now: datetime) -> bool:
        return day_counts.add(self._db, f"others {grant}", now, 1, witness.OTHERS_MAX) is None

    def is_own_query(self, key: str, request_sha256: str | None) -> bool:
        return self._is_own_query(self._db, key, request_sha256)

    def is_forgotten(self, grant: str, seq: int) -> bool:
        # This holds up to the first position that it was given after the restore.
        for record in audit_log.of_kind(self._db, "log.restored"):
            size = record["details"]["known"].get(grant, 0)
            if size <= seq < checkpoints.next_receipt(self._db, grant, size):
                return True
        return False

    def dispute(self, details: dict[str, Any]) -> None:
        super().dispute(details)
        notify_disputed(self._db, self._context.outbox, self._study_id)


class _Store:
    def __init__(self, context: ServiceContext, bind: Callable[[Connection], DatabaseCopy]) -> None:
        self._database, self._bind = context.database, bind

    @contextmanager
    def read(self) -> Iterator[DatabaseCopy]:
        with self._database.read() as db:
            yield self._bind(db)

    def write(self, work: Callable[[witness.Copy], R]) -> R:
        return self._database.write(lambda db: work(self._bind(db)))


class Witness(witness.Witness):
    """Keeps the shared log of one study's grant in the modeler's database. ``count`` is called with the bytes."""

    def __init__(
        self,
        context: ServiceContext,
        study_id: str,
        actor: str,
        is_own_query: IsOwnQuery,
        count: Callable[[Connection, int], None] = lambda db, size: None,
    ) -> None:
        self._parts = context, study_id, actor, is_own_query, count
        super().__init__(_Store(context, self.copy_in), study_id, context.signer, context.clock)

    def copy_in(self, db: Connection) -> DatabaseCopy:
        """Return the copy within the caller's transaction."""
        return DatabaseCopy(db, *self._parts)

    def record_within(self, db: Connection, exchange: Exchange, note: str | None) -> None:
        """Record an exchange with its receipt, in the caller's transaction. Raises ProtocolViolated."""
        self.record_in(self.copy_in(db), exchange, note)


def import_segment(context: ServiceContext, path: Path) -> int:
    """Add the exchanges in an archived segment of a curator's log to the copies that lack them; how many were added.

    Raises LogBroken for a segment that was not signed with the key that is pinned for the study of these copies, or
    that does not follow them, and ProtocolViolated for an exchange that is not what this side saw.
    """

    def work(db: Connection) -> int:
        grants, by_grant = StoredRecords(db, context.signer, None).grants(), defaultdict(list)
        for entry in SegmentFile(path).entries():
            exchange = entry.record.get("exchange")
            if not isinstance(exchange, dict) or not isinstance(exchange.get("position"), int):
                continue
            if (grant := str(exchange.get("grant_id"))) in grants:
                by_grant[grant].append((exchange["position"], merkle_log.canonical(exchange).decode()))
        return sum(_add(db, grant, exchanges) for grant, exchanges in by_grant.items())

    def _add(db: Connection, grant: str, exchanges: list[tuple[int, str]]) -> int:
        witness = Witness(context, _study_of(db, grant), "cli", is_run_query)
        copy = witness.copy_in(db)
        if (key := copy.key()) is None:
            raise LogBroken(
                f"{path}: no curator's key is pinned for {grant}: only a run that its curator answered has one"
            )
        SegmentFile(path, key)
        size = copy.size(grant)
        if exchanges[0][0] > size:
            raise LogBroken(f"{path} begins after place {size} of {grant}: import the segment before it first")
        entries = [AuditEntry.model_construct(seq=seq, body=body, leaf="", peaks="") for seq, body in exchanges]
        return witness.add_entries(copy, grant, entries) - size

    return context.database.write(work)


def _study_of(db: Connection, grant: str) -> str:
    """The study that this side's requests under a grant named when they were answered; empty if all were refused."""
    stored = chain(checkpoints.receipts(db, grant), audit_log.walk(db, grant))
    exchanges = (Entry(row.seq, row.body, b"", b"").record for row in stored)
    return next((exchange["study_id"] for exchange in exchanges if exchange["status"] < 400), "")


def record_restore(db: Connection, context: ServiceContext) -> None:
    """Record the restore of a backup, with the known size of each shared log: later entries are forgotten."""
    sizes = {}
    for grant in checkpoints.grants(db):
        last = (audit_log.SHARED.last(db, grant), checkpoints.RECEIPTS.last(db, grant))
        sizes[grant] = max(0 if row is None else row.seq + 1 for row in last)
    context.audit_trail.record_restored(db, {"known": sizes})
