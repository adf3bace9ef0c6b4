"""Who is in several files: persons by their keyed digests, else records by keyed digests of their values.

Digests of records are computed for a comparison, and stored nowhere. Each array has 16 bytes a record.
"""

import hmac
import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator_service import store
from curator_service.budget.ledger_lines import account_name
from curator_service.datasets import table as withheld
from curator_service.datasets.persons import DIGEST_BYTES
from curator_service.datasets.records import file_numbers, of_units
from curator_service.salted_digests import salted_digest
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.store import audit_log
from service_kit.store.base import stamp
from service_kit.store.database import Connection

_BLOCK = 16_384
Digests = NDArray[np.void]


class Comparison(NamedTuple):
    """What another dataset has in common with one."""

    withheld_there: frozenset[str]
    overlap: dict[str, Any] | None
    withheld_here: list[str]
    """The units of the dataset that the other one withholds."""


Compared = dict[str, Comparison]
"""By id of the other dataset."""


class SamePeople:
    """Compares the people of files, and withholds whoever is withheld in one of them in all."""

    def __init__(self, context: ServiceContext, vault: Vault) -> None:
        self._context, self._vault, self._seal = context, vault, context.seal

    def compare(self, db: Connection, dataset: Any, compared: Compared) -> list[Any]:
        """Compare a dataset with those of other files that are neither public nor made up, which are returned.

        ``compared`` has what was found before, so that a transaction after this takes no time for it.
        """
        others = [row for row in store.private_with_files(db) if row.sha256 != dataset.sha256]
        for other in others:
            units = withheld.units(db, account_name(db, other))
            if other.id not in compared or compared[other.id].withheld_there != units:
                overlap, units_here = self.overlap(dataset, other), self.units_in(other, dataset, units)
                compared[other.id] = Comparison(units, overlap, units_here)
        return others

    def withhold(self, db: Connection, actor: str, dataset: Any, units: Iterable[str]) -> None:
        """Withhold units of a dataset that are withheld in another file, each with a record in the log."""
        account, now = account_name(db, dataset), self._context.clock()
        for unit in sorted(set(units) - withheld.units(db, account)):
            salt = secrets.token_hex(16)
            withheld.withhold(db, account, unit, salt, stamp(now))
            details = {"dataset_id": dataset.id, "account": account, "unit_sha256": salted_digest(unit, salt)}
            audit_log.append(db, "record.withheld", actor=actor, now=now, details=details)

    def persons_withheld(self, db: Connection, dataset: Any) -> set[str]:
        """The units of a dataset's persons who are withheld in any file, also in one that was deleted since."""
        persons = withheld.numbers_and_persons(withheld.of_persons(db))[1]
        if dataset.person_column is None or not persons:
            return set()
        there = {digest.tobytes() for digest in np.unique(_void(self._vault.persons(dataset.id)))}
        return set(map(withheld.person_unit, persons & there))

    def overlap(self, dataset: Any, other: Any) -> dict[str, Any] | None:
        """How many units of a dataset are in another one too, as JSON; None if none is, or nothing can be compared."""
        if (pair := self._digests(dataset, other)) is None:
            return None
        matched = len(np.intersect1d(*pair))
        if not matched:
            return None
        unit = "person" if dataset.person_column is not None and other.person_column is not None else "record"
        return {"dataset_id": other.id, "unit": unit, "matched": matched, "of": len(np.unique(pair[0]))}

    def units_in(self, dataset: Any, other: Any, units: frozenset[str]) -> list[str]:
        """The units to withhold of another dataset because these ``units`` of a dataset are withheld."""
        if not units or (pair := self._digests(dataset, other)) is None:
            return []
        named: list[str] = []
        if dataset.person_column is not None and other.person_column is not None:
            there, persons = {digest.tobytes() for digest in np.unique(pair[1])}, withheld.numbers_and_persons(units)[1]
            named = sorted(map(withheld.person_unit, persons & there))
            units = units - set(map(withheld.person_unit, persons))
        matched = np.isin(pair[1], pair[0][of_units(self._vault, dataset, units)])
        records = file_numbers(self._vault, other)[matched]
        return named + [withheld.record_unit(int(number)) for number in records]

    def _digests(self, dataset: Any, other: Any) -> tuple[Digests, Digests] | None:
        """The digest of each unit in both: of persons, or of values in the columns that both have, by name.

        If one has further columns, equal values alone may be chance: then a record counts if its values are its own in
        each file, and the digest of any other is zero in one and empty in the other, so that they never match.
        """
        if dataset.person_column is not None and other.person_column is not None:
            return _void(self._vault.persons(dataset.id)), _void(self._vault.persons(other.id))
        names = [store.column_names(row) for row in (dataset, other)]
        common = sorted(set(names[0]) & set(names[1]))
        if not common:
            return None
        first, second = (self._of_records(row, common) for row in (dataset, other))
        if set(names[0]) != set(names[1]):
            _blank_repeated(first, b"\x00")
            _blank_repeated(second, b"\xff")
        return first, second

    def _of_records(self, dataset: Any, columns: Sequence[str]) -> Digests:
        """The digest of each record's values in ``columns`` (n,)."""
        stored = store.column_names(dataset)
        positions, values = [stored.index(name) for name in columns], self._vault.dataset(dataset.id)
        key = hmac.digest(self._seal.key_for("records"), json.dumps(columns).encode(), "sha256")
        digests = np.empty((len(values), DIGEST_BYTES), dtype=np.uint8)
        for start in range(0, len(values), _BLOCK):
            block = np.ascontiguousarray(values[start : start + _BLOCK][:, positions] + 0.0, dtype="<f8")  # no -0.0
            of_block = b"".join(hmac.digest(key, record.tobytes(), "sha256")[:DIGEST_BYTES] for record in block)
            digests[start : start + len(block)] = np.frombuffer(of_block, dtype=np.uint8).reshape(-1, DIGEST_BYTES)
        return _void(digests)


def _void(digests: NDArray[np.uint8]) -> Digests:
    return np.ascontiguousarray(digests).view(f"V{DIGEST_BYTES}").reshape(-1)


def _blank_repeated(digests: Digests, byte: bytes) -> None:
    _, inverse, counts = np.unique(digests, return_inverse=True, return_counts=True)
    digests[counts[inverse] > 1] = np.void(byte * DIGEST_BYTES)
