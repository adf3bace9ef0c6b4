"""Who is in several files: the overlaps of a dataset with earlier ones, and withholding somebody in all of them."""

import json
import secrets
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from curator_service import store
from curator_service.budget.ledger_lines import account_name
from curator_service.budget.people import NEVER, People
from curator_service.datasets import table as withheld
from curator_service.datasets.records import file_numbers, of_units
from curator_service.salted_digests import salted_digest
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.store import audit_log
from service_kit.store.base import stamp
from service_kit.store.database import Connection

Overlap = dict[str, Any]
"""As JSON, without the owner's decision."""
Spread = dict[str, tuple[Any, set[str]]]
"""Datasets of other files by id, and the units to withhold of each."""
Comparisons = dict[tuple[object, ...], Any]
"""What was compared before, so that a transaction takes no time for it."""


class SamePeople:
    """Compares the people of files, and withholds whoever is withheld in one of them in all."""

    def __init__(self, context: ServiceContext, vault: Vault, people: People) -> None:
        self._context, self._vault, self._people = context, vault, people

    def recover(self) -> bool:
        """Compare what an earlier version registered with what was registered before it; whether all is compared."""
        with self._context.database.read() as db:
            waiting = store.not_compared(db)
        for dataset in waiting:
            compared: Comparisons = {}
            with self._context.database.read() as db:
                self.compare(db, dataset, compared)
            self._context.database.write(partial(self._add, dataset, compared))
        return True

    def _add(self, dataset: Any, compared: Comparisons, db: Connection) -> None:
        """Store the overlaps of a dataset that an earlier version registered, with their record in the log."""
        if (dataset := store.registered(db, dataset.id)) is None or dataset.erased_at or dataset.deleted_at:
            return
        self._context.audit_trail.check_unchanged(dataset.id)
        overlaps, spread = self.compare(db, dataset, compared)
        now, salt = self._context.clock(), dataset.salt or secrets.token_hex(16)
        store.change(db, store.datasets, dataset.id, overlaps=json.dumps(overlaps), salt=salt)
        digest = store.digests_of(store.find(db, store.datasets, dataset.id))["overlaps_sha256"]
        details = {"dataset_id": dataset.id, "account": account_name(db, dataset), "overlaps_sha256": digest}
        audit_log.append(db, "dataset.compared", actor="curator", now=now, details=details)
        self.withhold(db, "curator", spread)

    def compare(self, db: Connection, dataset: Any, compared: Comparisons) -> tuple[list[Overlap], Spread]:
        """Compare a dataset, which need not be stored, with earlier private ones of other files.

        The overlaps, and whom to withhold: of it whoever is withheld in another file, and of others whoever is then.
        """
        if dataset.public:
            return [], {}
        earlier = [row for row in _others(db, dataset) if row.seq < getattr(dataset, "seq", row.seq + 1)]
        units = self._persons_withheld(db, dataset)
        for other in earlier:
            if (key := (dataset.id, other.id)) not in compared:
                compared[key] = self._overlap(dataset, other)
            units |= set(self._units_in(other, dataset, withheld.units(db, account_name(db, other)), compared))
        spread = self.spread(db, dataset, units, compared)
        spread[dataset.id] = dataset, units
        overlaps = (compared[dataset.id, other.id] for other in earlier)
        return [overlap for overlap in overlaps if overlap is not None], spread

    def spread(self, db: Connection, dataset: Any, units: Iterable[str], compared: Comparisons) -> Spread:
        """Whom to withhold of other files because these units of a dataset are: also whoever is found over a third."""
        spread: Spread = {row.id: (row, set()) for row in _others(db, dataset)}
        waiting = [(dataset, frozenset(units))]
        while waiting:
            source, of_source = waiting.pop()
            for other, units_there in spread.values():
                if other.sha256 != source.sha256:
                    new = set(self._units_in(source, other, of_source, compared)) - units_there
                    units_there |= new
                    waiting += [(other, frozenset(new))] * bool(new)
        return {name: (row, units_there) for name, (row, units_there) in spread.items() if units_there}

    def withhold(self, db: Connection, actor: str, spread: Spread) -> None:
        """Withhold what is not withheld yet, each with a record in the log."""
        for dataset, units in spread.values():
            account, now = account_name(db, dataset), self._context.clock()
            for unit in sorted(units - withheld.units(db, account)):
                salt = secrets.token_hex(16)
                withheld.withhold(db, account, unit, salt, stamp(now))
                details = {"dataset_id": dataset.id, "account": account, "unit_sha256": salted_digest(unit, salt)}
                audit_log.append(db, "record.withheld", actor=actor, now=now, details=details)

    def _persons_withheld(self, db: Connection, dataset: Any) -> set[str]:
        """The units of a dataset's persons who are withheld in any file, also in one that was erased since."""
        persons = withheld.numbers_and_persons(withheld.of_persons(db))[1]
        if dataset.person_column is None or not persons:
            return set()
        return set(map(withheld.person_unit, self._people.named(dataset, persons)))

    def _overlap(self, dataset: Any, other: Any) -> Overlap | None:
        """How many units of a dataset are in another one too; None if none is, or nothing can be compared."""
        if (pair := self._people.digests(dataset, other)) is None:
            return None
        matched = len(np.intersect1d(*pair))
        if not matched:
            return None
        unit = "person" if dataset.person_column is not None and other.person_column is not None else "record"
        never_matches = pair[0] == np.void(NEVER)
        of = len(np.unique(pair[0][~never_matches])) + int(never_matches.sum())
        return {"dataset_id": other.id, "unit": unit, "matched": matched, "of": of}

    def _units_in(self, dataset: Any, other: Any, units: frozenset[str], compared: Comparisons) -> list[str]:
        """The units to withhold of another dataset because these ``units`` of a dataset are withheld."""
        if (key := (dataset.id, other.id, units)) not in compared:
            compared[key] = self._units_of(dataset, other, units)
        units_there: list[str] = compared[key]
        return units_there

    def _units_of(self, dataset: Any, other: Any, units: frozenset[str]) -> list[str]:
        if not units or (pair := self._people.digests(dataset, other)) is None:
            return []
        named: list[str] = []
        if dataset.person_column is not None and other.person_column is not None:
            persons = withheld.numbers_and_persons(units)[1]
            units = units - set(map(withheld.person_unit, persons))
            if (spellings := self._vault.spellings(dataset.id)) is not None:
                of_persons = [digest.tobytes() in persons for digest in self._vault.persons(dataset.id)]
                persons |= {digest.tobytes() for digest in spellings[of_persons]}
            named = sorted(map(withheld.person_unit, self._people.named(other, persons)))
        matched = np.isin(pair[1], pair[0][of_units(self._vault, dataset, units)])
        records = file_numbers(self._vault, other)[matched]
        return named + [withheld.record_unit(int(number)) for number in records]


def _others(db: Connection, dataset: Any) -> list[Any]:
    """The private datasets of other files; none if nobody in the dataset itself needs protection."""
    if dataset.public or getattr(dataset, "sandbox", 0):
        return []
    return [row for row in store.private_with_files(db) if row.sha256 != dataset.sha256]
