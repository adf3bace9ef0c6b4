"""Released studies, read once and cached: what they hold never changes, but for caps that are raised."""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Self
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.errors import Erased, RecordChanged, StudyNotOpen, Verifying
from curator_service import store
from curator_service.budget import ledger_lines
from curator_service.budget.file_use import check_order
from curator_service.datasets.persons import RowsOfPersons, numbers_of
from curator_service.datasets.records import file_row, reading_of, withheld_records
from curator_service.datasets.table import ANY_WITHHELD
from curator_service.privacy.measurement.groups import sums_of_groups
from curator_service.privacy.prices import alone, is_groups
from curator_service.vault import Vault
from service_kit.store.database import Connection, noticed

KEPT = 64


@dataclass(frozen=True, slots=True, repr=False)
class Released:
    """A released study with its records, memory-mapped."""

    study_id: str
    spec: wire.StudyCreate
    report: wire.ReleaseReport
    id: str
    sha256: str
    foreign_writes: int
    """How many had been noticed when it was read."""
    n: int
    r: int
    order: NDArray[np.int64]
    records: Matrix
    names: list[str]
    persons: RowsOfPersons | None
    """Which rows of Z are the same person's; None where each is another's."""
    numbers: NDArray[np.int64] | None
    """The number in the file of each record, where not all were kept."""
    reading: wire.FileReading | None
    """How the file was read; None where that was not recorded."""
    account: str
    """The account of the dataset's file."""
    groups: NDArray[np.int64] | None
    """The candidate of each stored record, below 0 for none, where candidates are groups; ``order`` is empty then."""
    sums: NDArray[np.int64] | None
    """The sum of each group's outcomes in steps, of all records that it was released with, where candidates are groups.

    A query reads no record, so the time of its reply does not tell how many a group has.
    """

    def check_current(self, db: Connection) -> None:
        """Raise Verifying in a transaction after a foreign write that may have changed what was read."""
        if noticed(db) != self.foreign_writes:
            raise Verifying(1)

    def rows_of_person(self, row: int) -> Sequence[int]:
        """The rows of Z of the person behind a row, itself included."""
        return alone(row) if self.persons is None else self.persons.of_row(row)

    def rows_of_persons(self, rows: Iterable[int]) -> set[int]:
        return {other for row in rows for other in self.rows_of_person(row)}

    def outcomes(self, rows: list[int]) -> list[float]:
        """The measurement column at these rows of Z, for a study whose y is a column."""
        column = self._column
        return [self.records.item(self.order.item(row), column) for row in rows]

    def members(self, row: int, withheld: Collection[int] = ()) -> NDArray[np.int64]:
        assert self.groups is not None
        records = np.flatnonzero(self.groups == row)
        return records[~np.isin(records, list(withheld))] if withheld else records

    def sums_without(self, withheld: Sequence[int]) -> NDArray[np.int64]:
        """The sum of each group's outcomes, in steps, without the stored records that are withheld."""
        assert self.sums is not None
        return self.sums - self._sums_of(np.array(withheld)) if withheld else self.sums

    def with_sums(self) -> Self:
        return self if self.groups is None else replace(self, sums=self._sums_of(np.arange(len(self.groups))))

    def _sums_of(self, records: NDArray[np.int64]) -> NDArray[np.int64]:
        assert self.groups is not None
        assert isinstance(self.spec.answers, wire.LaplaceAnswers)
        return sums_of_groups(self.values_of(records), self.groups[records], self.n, self.spec.answers)

    def values_of(self, records: NDArray[np.int64]) -> Vector:
        values: Vector = self.records[records, self._column]
        return values

    @property
    def _column(self) -> int:
        assert isinstance(self.spec.measurement, wire.ColumnMeasurement)
        return self.names.index(self.spec.measurement.column)

    def record(self, row: int) -> int:
        """The number of the record in the file that a row of Z is, from 1."""
        return self.number(int(self.order[row]))

    def number(self, stored: int) -> int:
        """The number in the file, from 1, of a stored record."""
        return stored + 1 if self.numbers is None else int(self.numbers[stored])

    def file_row(self, stored: int) -> int | None:
        """The row of a stored record as a spreadsheet counts it; None if nobody knows."""
        return file_row(self.reading, self.number(stored))

    def values(self, row: int, columns: Iterable[str]) -> dict[str, float]:
        """Those of these columns that hold numbers, of the record that a row of Z is."""
        record = self.records[self.order[row]]
        return {name: float(record[self.names.index(name)]) for name in columns if name in self.names}


class ReleasedStudies:
    """Caches the ``kept`` studies that were used last: each holds a file open, and so does each dataset.

    Safe to call from several threads.
    """

    def __init__(self, vault: Vault, kept: int = KEPT) -> None:
        self.vault, self._kept = vault, kept
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, Released] = OrderedDict()
        self._forgotten: set[str] = set()
        self._raised: dict[str, wire.Budget] = {}
        self._records: WeakValueDictionary[str, Matrix] = WeakValueDictionary()  # studies of one dataset share a map

    def cached(self, study_id: str, foreign_writes: int) -> Released | None:
        """A study that is in the cache, and was read after these foreign writes; or None."""
        with self._lock:
            if (released := self._cache.get(study_id)) is None or released.foreign_writes != foreign_writes:
                return None
            self._cache.move_to_end(study_id)
            return released

    def of(self, db: Connection, study_id: str) -> Released:
        """A study by its id. Raises StudyNotOpen before its release, RecordChanged for other parts than published."""
        if (released := self.cached(study_id, noticed(db))) is None:
            study, release = store.find(db, store.studies, study_id), store.release_of(db, study_id)
            if release is None:
                raise StudyNotOpen("the study has not released its candidates yet")
            report = wire.ReleaseReport.model_validate_json(release.report)
            if report.parts and wire.digest_of_parts(report.parts) != release.sha256:
                raise RecordChanged("the stored list of the parts of the candidates is not the one that was published")
            check_order(db, self.vault, study_id)
            spec = wire.StudyCreate.model_validate_json(study.spec)
            dataset, order = store.find(db, store.datasets, spec.dataset_id), self.vault.order(release.id)
            columns, persons, numbers, groups = json.loads(dataset.columns), None, None, None
            if is_groups(spec):
                groups, order = np.asarray(order), np.zeros(0, dtype=np.int64)
            elif dataset.person_column is not None:
                persons = RowsOfPersons.of(numbers_of(self.vault.persons(dataset.id))[order])
            if store.is_renumbered(dataset):
                numbers = self.vault.numbers(dataset.id)
            released = Released(
                study_id=study_id,
                spec=spec,
                report=report,
                id=release.id,
                sha256=release.sha256,
                foreign_writes=noticed(db),
                n=release.n,
                r=release.r,
                order=np.asarray(order),  # a view: a memmap's own indexing takes longer
                records=self._dataset(spec.dataset_id),
                names=[column["name"] for column in columns],
                persons=persons,
                numbers=numbers,
                reading=reading_of(dataset),
                account=ledger_lines.account_name(db, dataset),
                groups=groups,
                sums=None,
            ).with_sums()
            with self._lock:
                if study_id in self._forgotten:
                    raise Erased("the study was erased by its owner")
                # It may have been read before a raise, and be stored after it.
                released = self._cache[study_id] = _with_caps(released, self._raised.get(study_id))
                while len(self._cache) > self._kept:
                    self._cache.popitem(last=False)
        return released

    def persons(self, db: Connection, study_id: str) -> Callable[[int], Sequence[int]]:
        """A function that returns the rows of Z of the person behind a row.

        Of an erased study nobody knows any more who is behind a row: the costliest rows count as one person's.
        """
        if not store.is_erased(db, study_id):
            return self.of(db, study_id).rows_of_person
        spec = store.spec_of(db, study_id)
        if is_groups(spec):
            return alone
        used = ledger_lines.row_totals(db, study_id)
        of_one = sorted(used, key=lambda row: -used[row])[: spec.protected_rows]
        return lambda row: of_one if row in of_one else (row,)

    def forget(self, identities: Iterable[str]) -> None:
        """Keep these studies no longer: their dataset was erased."""
        with self._lock:
            self._forgotten |= set(identities)
            for study_id in self._forgotten & self._cache.keys():
                del self._cache[study_id]

    def raise_caps(self, study_id: str, budget: wire.Budget) -> None:
        """Charge against these caps from now on; they are stored already. In any order: caps only rise."""
        with self._lock:
            budget = self._raised[study_id] = _highest(budget, self._raised.get(study_id, budget))
            if (released := self._cache.get(study_id)) is not None:
                self._cache[study_id] = _with_caps(released, budget)

    def _dataset(self, dataset_id: str) -> Matrix:
        with self._lock:
            if (records := self._records.get(dataset_id)) is None:
                records = self._records[dataset_id] = np.asarray(self.vault.dataset(dataset_id))
            return records


def withheld_rows(db: Connection, vault: Vault, released: Released, rows: Iterable[int]) -> set[int]:
    """The rows of Z among these whose record is withheld; a group only loses it from its sums."""
    if released.groups is not None or ANY_WITHHELD.row(db, account=released.account) is None:  # each query looks
        return set()
    records = set(withheld_records(db, vault, released.spec.dataset_id))
    return {row for row in rows if int(released.order[row]) in records}


def withheld_from(db: Connection, vault: Vault, released: Released) -> list[int]:
    """The records that the sums of groups are without; none where candidates are records, which are declined."""
    return [] if released.groups is None else withheld_records(db, vault, released.spec.dataset_id)


def _with_caps(released: Released, budget: wire.Budget | None) -> Released:
    if budget is None:
        return released
    highest = _highest(budget, released.spec.budget)
    return replace(released, spec=released.spec.model_copy(update={"budget": highest}))


def _highest(first: wire.Budget, second: wire.Budget) -> wire.Budget:
    """The higher of each cap; None is no cap, and so the highest."""
    pairs = [(getattr(first, cap), getattr(second, cap)) for cap in wire.Budget.model_fields]
    values = [None if None in pair else max(pair, key=Decimal) for pair in pairs]
    return wire.Budget.model_validate(dict(zip(wire.Budget.model_fields, values, strict=True)))
