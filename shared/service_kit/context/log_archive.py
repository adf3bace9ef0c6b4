"""Archiving: whole, old, verified segments of the own log leave the database for signed files."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from blindopt.audit import segments as files
from blindopt.audit.merkle_log import Entry, Json, exchange_leaf, root
from blindopt.audit.segments import SegmentFile, SegmentHead, name_of
from blindopt.errors import LogBroken, StateConflict
from service_kit.context.context import ServiceContext
from service_kit.context.log_summaries import StatefulSummary, archived_summary
from service_kit.store import audit_log, checkpoints, segments, tokens
from service_kit.store.base import SEGMENT_RECORDS, moment
from service_kit.store.database import Connection

log = logging.getLogger("blindopt.archive")
RECORDS = SEGMENT_RECORDS
_PATIENCE = timedelta(days=30)
"""How long a segment waits for the countersignatures of modelers."""


class LogArchive:
    """Seals segments. ``summaries`` are those of records that leave the database."""

    def __init__(
        self, context: ServiceContext, keep_days: int, summaries: Callable[[Connection], list[StatefulSummary]]
    ) -> None:
        self._context, self._folder = context, context.archive
        self._keep = timedelta(days=keep_days)
        self._summaries = summaries
        self._positions: dict[int, dict[str, int]] = {}
        """Those of the next segment, by its first record: it may wait for countersignatures."""
        self.has_failed = False
        """Whether the last attempt to seal what is due failed."""

    def seal_all(self) -> int:
        """Seal every segment that is due, and return their number.

        Raises LogBroken for a log that does not verify, StateConflict for another file of the same name or a summary
        that is too long, and OSError.
        """
        count = 0
        try:
            while (segment := self._written()) is not None:
                self._context.database.write(partial(self._settle, row=segment))
                count += 1
        except Exception:
            self.has_failed = True
            raise
        self.has_failed = False
        return count

    def _written(self) -> dict[str, Any] | None:
        """Write the file of the next segment, if it is due; its row."""
        context, signer = self._context, self._context.signer
        with context.database.read() as db:
            first = segments.size(db)
            size = first + RECORDS
            if not context.audit_trail.is_sound or audit_log.head(db).size < size:
                return None
            end = audit_log.entry_at(db, None, size - 1)
            age = context.clock() - moment(end.record["time"])
            if age < self._keep or not context.audit_trail.is_saved(size):
                return None

            def entries() -> Iterator[Entry]:
                return islice(audit_log.walk(db, after=first - 1), RECORDS)

            if first not in self._positions:
                self._positions = {first: _positions(entries())}
            positions = self._positions[first]
            if age < self._keep + _PATIENCE and not self._are_countersigned(db, positions):
                return None
            summary = archived_summary(db, entries(), self._summaries(db))
            head = SegmentHead(
                service=f"blindopt-{context.service}",
                key=signer.first.vkey,
                first=first,
                peaks=audit_log.entry_at(db, None, first - 1).peaks.hex() if first else "",
                size=size,
                root=root(end.peaks).hex(),
                summary=json.loads(summary),
            )
            number = first // RECORDS
            note, digest = self._write(self._folder / name_of(number), head, (entry.body for entry in entries()))
        shown = json.dumps(positions, sort_keys=True)
        row = {"number": number, "size": size, "sha256": digest, "note": note, "positions": shown}
        return row | {"summary": summary}

    def _are_countersigned(self, db: Connection, positions: dict[str, int]) -> bool:
        """Whether the modeler of each live grant has countersigned its exchanges until these positions."""
        now = self._context.clock()
        live = {row.principal for row in tokens.list_all(db) if tokens.is_live(row, now)}
        last = {grant: checkpoints.COUNTERSIGNATURES.last(db, grant) for grant in positions.keys() & live}
        return all(signed is not None and signed.size > positions[grant] for grant, signed in last.items())

    def _write(self, path: Path, head: SegmentHead, bodies: Iterable[bytes]) -> tuple[str, str]:
        """Write a file durably and read it again; the signed checkpoint of its end, and its SHA-256."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists() and SegmentFile(path, head.key).head.root != head.root:
            raise StateConflict(f"{path} is a segment of another history: move it away, and keep it")
        partial = path.with_suffix(".part")
        with partial.open("wb") as file:
            note = files.write(file, head, bodies, self._context.signer)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        for _ in SegmentFile(path, head.key).entries():
            pass
        return note, _digest(path)

    def _settle(self, db: Connection, row: dict[str, Any]) -> None:
        """Delete the records of a segment whose file is durable, in one transaction with the record of it."""
        self._context.audit_trail.check_sound()
        details = segments.add(db, **row)
        audit_log.append(db, "log.archived", actor="retention", now=self._context.clock(), details=details)
        log.info("the log until record %d is archived", row["size"] - 1)


class ArchiveFiles:
    """The files of the archived segments that a database names. Where one is missing or damaged, none is read."""

    def __init__(self, db: Connection, folder: Path, key: str) -> None:
        self._rows, self._folder, self._key = segments.every(db), folder, key
        self.missing: list[str] = []
        self.damaged: list[LogBroken] = []
        """A finding about each file that is not the one that was sealed: it stops nothing but archiving."""
        for row in self._rows:
            path = folder / name_of(row.number)
            try:
                is_sealed = _digest(path) == row.sha256 and SegmentFile(path, key).note == row.note
            except FileNotFoundError:
                self.missing.append(path.name)
                continue
            except (OSError, LogBroken):
                is_sealed = False
            if not is_sealed:
                fault = f"{path.name} in the archive is not the file that was sealed: it was changed or cannot be read"
                self.damaged.append(LogBroken(fault, about="archive"))
        self.unread = self._rows[-1].size if self.missing or self.damaged else 0
        """How many records are not verified from their files."""

    @property
    def words(self) -> str:
        """What was read of the archived records, for who verifies; empty if none are archived."""
        if not self._rows:
            return ""
        size = self._rows[-1].size
        if not self.missing:
            return f"archived: {size} records in {len(self._rows)} segments, verified from their files"
        names = ", ".join(self.missing[:3]) + ", ..." * (len(self.missing) > 3)
        return (
            f"archived: {size} records, not verified: {self._folder} lacks {names}. The tables were compared with the "
            "signed summary of the last segment"
        )

    def followed_by(self, records: Iterable[Json]) -> Iterable[Json]:
        """All records, with those that are archived, unless a file is missing or damaged."""
        return records if self.unread else chain((entry.record for entry in self.entries()), records)

    def leaves(self, db: Connection, grant_id: str | None) -> list[bytes]:
        """All leaves of the own log, or of the one shared with a grant. Raises LogBroken and OSError."""
        if grant_id is None:
            leaves = {entry.seq: entry.leaf for entry in self.entries()}
        else:
            exchanges = ((entry.record.get("exchange") or {}, entry.body) for entry in self.entries())
            shared = ((exchange, body) for exchange, body in exchanges if exchange.get("grant_id") == grant_id)
            leaves = {e["position"]: exchange_leaf(body) for e, body in shared if e["position"] is not None}
        leaves |= {entry.seq: entry.leaf for entry in audit_log.walk(db, grant_id)}
        return [leaves[seq] for seq in range(len(leaves))]

    def entries(self) -> Iterator[Entry]:
        """Verify the files and yield their records. Raises LogBroken for a file that is not the one that was sealed."""
        if self.damaged:
            raise self.damaged[0]
        last: Entry | None = None
        for row in self._rows:
            segment = SegmentFile(self._folder / name_of(row.number), self._key)
            before = (0, "") if last is None else (last.seq + 1, last.peaks.hex())
            if (segment.head.first, segment.head.peaks) != before:
                raise LogBroken(f"{name_of(row.number)} in the archive does not follow the segment before it")
            for last in segment.entries():
                yield last


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _positions(entries: Iterable[Entry]) -> dict[str, int]:
    """By grant, the position of its last exchange in these records."""
    positions: dict[str, int] = {}
    for entry in entries:
        exchange = entry.record.get("exchange") or {}
        if (position := exchange.get("position")) is not None:
            positions[exchange["grant_id"]] = position
    return positions
