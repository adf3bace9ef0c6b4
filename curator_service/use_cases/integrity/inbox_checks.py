"""What must hold between the tables of measurements and the log: part of `audit verify`."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import Json, sha256
from blindopt.errors import LogBroken
from curator_service import store
from curator_service.store import inbox as table
from curator_service.use_cases.queries.measurement_entries import digest
from service_kit.store.database import Connection

_BATCHES = ("measurement.answered", "measurement.declined", "measurement.corrected", "measurement.overdue")


@dataclass
class Told:
    """What the log tells of queries that somebody measures."""

    asked: list[str] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    batches: list[tuple[int, str, str]] = field(default_factory=list)
    """The last entry of each, its query, and the digest of its entries."""
    versions: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    """Of each query, digest and number of answers released anew, version by version."""
    corrections: Counter[str] = field(default_factory=Counter)
    """How many answers of each query were charged again."""

    def follow(self, record: Json) -> None:
        """Take one record. Raises LogBroken."""
        kind, details, exchange = record["kind"], record.get("details", {}), record.get("exchange")
        if exchange and exchange["method"] == "POST" and exchange["status"] == 202 and not exchange["replayed"]:
            self.asked.append(details["query_id"])
        elif kind in _BATCHES:
            self._batch(details)
        elif kind == "query.answered":
            if details["version"] != len(self.versions[details["query_id"]]) + 1:
                raise LogBroken(f"query {details['query_id']} was told version {details['version']} out of its order")
            self.versions[details["query_id"]].append((details["reply_sha256"], details["released"]))
        elif kind == "charge" and "version" in details:
            self.corrections[details["query_id"]] += sum(n for _, n in details["rows"])
        elif kind == "log.restored":
            self.lost |= set(self.asked)

    def _batch(self, details: Json) -> None:
        place = self.batches[-1][0] if self.batches else 0
        if not details["first"] == place + 1 <= details["last"]:
            raise LogBroken(f"the log tells of entries {details['first']} to {details['last']} after {place}")
        self.batches.append((details["last"], details["query_id"], details["sha256"]))

    def check(self, db: Connection) -> None:
        """The tables are what was told, row by row. Raises LogBroken."""
        last = self._check_entries(db)
        waiting = self._check_measurements(db, last)
        released = _released(db)
        self._check_inquiries(db, waiting, released)
        self._check_revisions(db, released)

    def _check_entries(self, db: Connection) -> dict[str, Any]:
        """Every entry is in the digest that the log tells; the last one about each measurement."""
        last: dict[str, Any] = {}
        answers: Counter[str] = Counter()
        batch: list[dict[str, Any]] = []
        batches = iter(self.batches)
        now = next(batches, None)
        for place, row in enumerate(table.every_entry(db), start=1):
            if now is None or row.seq != place:
                raise LogBroken(f"entry {row.seq} of the inbox is not in the log, or the one before it is missing")
            answers[row.measurement_id] += row.kind == "answered"
            if row.query_id != now[1] or row.version != answers[row.measurement_id]:
                raise LogBroken(f"entry {row.seq} of the inbox is not what the log says: it was changed")
            batch.append(row._asdict())
            last[row.measurement_id] = row
            if place == now[0]:
                if digest(batch) != now[2]:
                    raise LogBroken(f"entry {row.seq} of the inbox, or one before it, was changed")
                batch, now = [], next(batches, None)
        if now is not None:
            raise LogBroken(f"the inbox lacks entry {now[0]} that the log tells")
        return last

    @staticmethod
    def _check_measurements(db: Connection, last: dict[str, Any]) -> Counter[str]:
        """Each measurement stands where its last entry says, and was asked; how many of each query are open."""
        waiting: Counter[str] = Counter()
        found: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
        for row in table.every_measurement(db):
            entry = last.pop(row.id, None)
            told = ("open", 0, None) if entry is None else (entry.kind, entry.version, entry.seq)
            if (row.state, row.version, row.entry) != told or (entry is not None and entry.query_id != row.query_id):
                raise LogBroken(f"measurement {row.id} is not what was told of it: it was changed")
            waiting[row.query_id] += row.state == "open"
            found[row.query_id].append((row.place, row.row, row.play, row.plays))
        for name in last:
            raise LogBroken(f"measurement {name} is missing")
        for query_id, items in found.items():
            asked = wire.QueryRequest.model_validate_json(store.find(db, store.queries, query_id).request).rows
            wanted = [
                (place, item.row, play, item.plays)
                for place, item in enumerate(asked)
                for play in range(1, item.plays + 1)
            ]
            if items != wanted:
                raise LogBroken(
                    f"the measurements of query {query_id} are not what it asked: one is missing or changed"
                )
        return waiting

    def _check_inquiries(
        self, db: Connection, waiting: Counter[str], released: dict[str, list[list[tuple[int, int]]]]
    ) -> None:
        asked = set(self.asked)
        for row in table.every_inquiry(db):
            if row.query_id not in asked:
                raise LogBroken(f"query {row.query_id} waits for measurements, and the log does not tell so")
            asked.discard(row.query_id)
            begun = released.get(row.query_id, [])
            told = (waiting.get(row.query_id, 0), len(begun), len(self.versions[row.query_id]))
            if (row.open, row.begun, row.version) != told or bool(row.lost) != (row.query_id in self.lost):
                raise LogBroken(f"query {row.query_id} does not stand where the log says")
            if row.query_id not in waiting:
                raise LogBroken(f"the measurements of query {row.query_id} are missing")
            self._check_charges(db, row, begun)
        for name in asked:
            raise LogBroken(f"query {name} waits for measurements, and its table lacks it")

    def _check_charges(self, db: Connection, row: Any, begun: list[list[tuple[int, int]]]) -> None:
        """No answer was released again without a charge, and each version releases what the log says."""
        for version, (fresh, (_, told)) in enumerate(zip(begun, self.versions[row.query_id], strict=False), start=1):
            if len(fresh) != told:
                raise LogBroken(f"version {version} of query {row.query_id} was begun as another than was told")
        spec = wire.StudyCreate.model_validate_json(store.find(db, store.studies, row.study_id).spec)
        counted = Counter(unit for fresh in begun for unit in fresh)
        again = 0 if spec.answers.mechanism == "none" else sum(n - 1 for n in counted.values())
        if again != self.corrections[row.query_id]:
            raise LogBroken(f"query {row.query_id} released {again} answers anew and was not charged so many")

    def _check_revisions(self, db: Connection, released: dict[str, list[list[tuple[int, int]]]]) -> None:
        """Every version that was told is there, byte for byte, and no other."""
        places: Counter[str] = Counter()
        found: Counter[str] = Counter()
        for row in table.every_revision(db):
            places[row.grant_id] += 1
            told = self.versions.get(row.query_id, [])
            if row.seq != places[row.grant_id] or not 1 <= row.version <= len(told):
                raise LogBroken(f"version {row.version} of query {row.query_id} is not in the log, or out of its place")
            if sha256(row.body) != told[row.version - 1][0]:
                raise LogBroken(f"version {row.version} of query {row.query_id} was changed")
            found[row.query_id] += 1
        for query_id, told in self.versions.items():
            if found[query_id] != len(told) or len(released.get(query_id, [])) < len(told):
                raise LogBroken(f"a version of query {query_id} is missing")


def _released(db: Connection) -> dict[str, list[list[tuple[int, int]]]]:
    """Of each query, what each of its versions released anew. Raises LogBroken where one is missing."""
    found: dict[str, list[list[tuple[int, int]]]] = defaultdict(list)
    for row in table.every_round(db):
        if row.version != len(found[row.query_id]) + 1:
            raise LogBroken(f"version {row.version} of query {row.query_id} was begun out of its order")
        found[row.query_id].append([(place, play) for place, play in json.loads(row.fresh)])
    return found
