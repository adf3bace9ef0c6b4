"""Check the tables of measurements against the audit log: part of `audit verify`."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import starmap
from typing import ClassVar

from blindopt import wire
from blindopt.audit.merkle_log import Json, sha256
from blindopt.errors import LogBroken
from curator_service import store
from curator_service.erasure import table as erasures
from curator_service.integrity.erasure_checks import ErasureLogSummary
from curator_service.queries import table as inbox_store
from curator_service.queries.table import BATCHES, AnswerVersion, Entry, MeasuredQuery, Measurement, digest
from service_kit.store.database import Connection
from service_kit.store.stored_replies import is_erased


@dataclass
class InboxLogSummary:
    """Queries that people or a system measure, as the log describes them."""

    kinds: ClassVar[None] = None

    erased: ErasureLogSummary
    queries: dict[str, str] = field(default_factory=dict)
    """The study of each."""
    lost: set[str] = field(default_factory=set)
    batches: list[tuple[int, str, str]] = field(default_factory=list)
    """The last entry of each batch, its query, and the digest of its entries."""
    versions: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    """By query, the digest of each version and its number of answers released anew."""
    corrections: Counter[str] = field(default_factory=Counter)
    """By query, how many answers were charged again."""

    def follow(self, record: Json) -> None:
        """Take the next record of the log. Raises LogBroken if it contradicts an earlier one."""
        kind, details, exchange = record["kind"], record.get("details", {}), record.get("exchange")
        if exchange and exchange["method"] == "POST" and exchange["status"] == 202 and not exchange["replayed"]:
            self.queries[details["query_id"]] = exchange["study_id"]
        elif kind in BATCHES:
            self._batch(details)
        elif kind == "query.answered":
            if details["version"] != len(self.versions[details["query_id"]]) + 1:
                raise LogBroken(f"version {details['version']} of query {details['query_id']} is out of order")
            self.versions[details["query_id"]].append((details["reply_sha256"], details["released"]))
        elif kind == "charge" and "version" in details:
            self.corrections[details["query_id"]] += sum(n for _, n in details["rows"])
        elif kind == "retention.swept":
            self._sweep(dict(details.get("batches", [])))
        elif kind == "log.restored":
            self.lost |= self.queries.keys()

    def _batch(self, details: Json) -> None:
        last = self.batches[-1][0] if self.batches else 0
        if not details["first"] == last + 1 <= details["last"]:
            raise LogBroken(f"the log has entries {details['first']} to {details['last']} after {last}")
        self.batches.append((details["last"], details["query_id"], details["sha256"]))

    def _sweep(self, digests: dict[int, str]) -> None:
        """Take the new digests of batches whose notes were deleted."""
        for index, (last, query_id, sha) in enumerate(self.batches if digests else ()):
            self.batches[index] = last, query_id, digests.get(last, sha)

    def _is_erased(self, query_id: str) -> bool:
        return self.queries.get(query_id) in self.erased.studies

    def check(self, db: Connection) -> Iterator[LogBroken]:
        """Raise LogBroken if a row of a table differs from the log."""
        yield from ()
        last = self._check_entries(db)
        waiting = self._check_measurements(db, last)
        released = _released(db)
        self._check_queries(db, waiting, released)
        self._check_published(db, released)

    def _check_entries(self, db: Connection) -> dict[str, Entry]:
        """Check each entry against the digest of its batch; return the last entry about each measurement."""
        last: dict[str, Entry] = {}
        answers: Counter[str] = Counter()
        batch: list[Entry] = []
        batches = iter(self.batches)
        current = next(batches, None)
        for seq, row in enumerate(starmap(Entry, store.every(db, inbox_store.entries)), start=1):
            if current is None or row.seq != seq:
                raise LogBroken(f"entry {row.seq} of the inbox is not in the log, or the one before it is missing")
            answers[row.measurement_id] += row.kind == "answered"
            if row.query_id != current[1] or row.version != answers[row.measurement_id]:
                raise LogBroken(f"entry {row.seq} of the inbox is not what the log says: it was changed")
            batch.append(row)
            last[row.measurement_id] = row
            if seq == current[0]:
                if digest(batch) != current[2] and not self._is_erased(current[1]):
                    raise LogBroken(f"entry {row.seq} of the inbox, or one before it, was changed")
                batch, current = [], next(batches, None)
        if current is not None:
            raise LogBroken(f"the inbox lacks entry {current[0]}, which is in the log")
        return last

    def _check_measurements(self, db: Connection, last: dict[str, Entry]) -> Counter[str]:
        """Check each measurement against its last entry and its query; return how many of each query are open."""
        waiting: Counter[str] = Counter()
        stored: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
        for row in starmap(Measurement, store.every(db, inbox_store.measurements)):
            entry = last.pop(row.id, None)
            state = ("open", 0, None) if entry is None else (entry.kind, entry.version, entry.seq)
            state = (erasures.ERASED, *state[1:]) if self._is_erased(row.query_id) else state
            if (row.state, row.version, row.entry) != state or (entry is not None and entry.query_id != row.query_id):
                raise LogBroken(f"measurement {row.id} is not what its last entry says: it was changed")
            waiting[row.query_id] += row.state == "open"
            stored[row.query_id].append((row.position, row.row, row.play, row.plays))
        for name in last:
            raise LogBroken(f"measurement {name} is missing")
        for query_id, measurements in stored.items():
            request = wire.QueryRequest.model_validate_json(store.find(db, store.queries, query_id).request)
            requested = [
                (index, item.row, play, item.plays)
                for index, item in enumerate(request.rows)
                for play in range(1, item.plays + 1)
            ]
            if measurements != requested:
                raise LogBroken(
                    f"the measurements of query {query_id} are not those that it requested: one is missing or changed"
                )
        return waiting

    def _check_queries(
        self, db: Connection, waiting: Counter[str], released: dict[str, list[list[tuple[int, int]]]]
    ) -> None:
        missing = set(self.queries.keys())
        for row in starmap(MeasuredQuery, store.every(db, inbox_store.inquiries)):
            if row.query_id not in missing:
                raise LogBroken(f"query {row.query_id} waits for measurements, and the log does not say so")
            missing.discard(row.query_id)
            begun = released.get(row.query_id, [])
            lost = inbox_store.LOST if row.query_id in self.lost else 0
            lost = inbox_store.GONE if self._is_erased(row.query_id) else lost
            state = (waiting.get(row.query_id, 0), len(begun), len(self.versions[row.query_id]), lost)
            if (row.open, row.begun, row.version, row.lost) != state:
                raise LogBroken(f"the state of query {row.query_id} is not what the log says")
            if row.query_id not in waiting:
                raise LogBroken(f"the measurements of query {row.query_id} are missing")
            self._check_charges(db, row, begun)
        for name in missing:
            raise LogBroken(f"query {name} waits for measurements, and its table lacks it")

    def _check_charges(self, db: Connection, row: MeasuredQuery, begun: list[list[tuple[int, int]]]) -> None:
        """Check that each answer that was released again was charged, and that versions release what the log says."""
        for version, (fresh, (_, count)) in enumerate(zip(begun, self.versions[row.query_id], strict=False), start=1):
            if len(fresh) != count:
                raise LogBroken(f"version {version} of query {row.query_id} releases other answers than the log says")
        spec = store.spec_of(db, row.study_id)
        releases = Counter(unit for fresh in begun for unit in fresh)
        again = 0 if spec.answers.mechanism == "none" else sum(n - 1 for n in releases.values())
        if again != self.corrections[row.query_id]:
            raise LogBroken(f"query {row.query_id} released {again} answers anew and was not charged so many")

    def _check_published(self, db: Connection, released: dict[str, list[list[tuple[int, int]]]]) -> None:
        """Check that the published versions are those in the log, byte for byte."""
        grant_counts: Counter[str] = Counter()
        query_counts: Counter[str] = Counter()
        for row in inbox_store.every_published(db):
            grant_counts[row.grant_id] += 1
            versions = self.versions.get(row.query_id, [])
            if row.seq != grant_counts[row.grant_id] or not 1 <= row.version <= len(versions):
                raise LogBroken(f"version {row.version} of query {row.query_id} is not in the log, or out of order")
            if self._is_erased(row.query_id) != is_erased(row.body):
                raise LogBroken(f"version {row.version} of query {row.query_id} is erased, or should be")
            if not is_erased(row.body) and sha256(row.body) != versions[row.version - 1][0]:
                raise LogBroken(f"version {row.version} of query {row.query_id} was changed")
            query_counts[row.query_id] += 1
        for query_id, versions in self.versions.items():
            if query_counts[query_id] != len(versions) or len(released.get(query_id, [])) < len(versions):
                raise LogBroken(f"a version of query {query_id} is missing")


def _released(db: Connection) -> dict[str, list[list[tuple[int, int]]]]:
    """By query, the units that each begun version releases anew. Raises LogBroken if a version is missing."""
    released: dict[str, list[list[tuple[int, int]]]] = defaultdict(list)
    for row in starmap(AnswerVersion, store.every(db, inbox_store.rounds)):
        if row.version != len(released[row.query_id]) + 1:
            raise LogBroken(f"version {row.version} of query {row.query_id} was begun out of order")
        released[row.query_id].append(row.units)
    return released
