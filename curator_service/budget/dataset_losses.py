"""What each record of a file has lost over all studies on it: read from the ledgers, through the secret row orders."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from curator_service import store
from curator_service.budget import account_table as table
from curator_service.budget import table as lines
from curator_service.budget.account_table import Account
from curator_service.budget.ledger import Balance
from curator_service.budget.repeated_releases import cost_for_everyone
from curator_service.privacy import amounts, dataset_account
from curator_service.privacy.prices import Prices
from curator_service.releases.release_status import release_status
from curator_service.vault import Vault
from service_kit.store.database import Connection
from service_kit.store.foreign_writes import noticed

_CACHED = 64
_LARGE = 2**62
_spec_of = lru_cache(maxsize=1024)(wire.StudyCreate.model_validate_json)


@dataclass(frozen=True, slots=True)
class Units:
    """The units that an account counts by: the records of a file, or the persons of its registrations.

    ``numbers``: by registration, the unit of each record (n,); None where each record is a unit of its own.
    """

    count: int
    numbers: dict[str, NDArray[np.int64] | None]

    def of(self, dataset_id: str, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """The unit of each record, by its index in a registration."""
        numbers = self.numbers[dataset_id]
        return records if numbers is None else numbers[records]

    def records(self, dataset_id: str, unit: int) -> list[int]:
        """The indices of a unit's records in a registration."""
        numbers = self.numbers[dataset_id]
        return [unit] if numbers is None else [int(record) for record in np.flatnonzero(numbers == unit)]


@dataclass(frozen=True, slots=True)
class StudyLoss:
    """What one study has charged, in the ledger's units. ``most``: the largest sum of answers about one unit."""

    id: str
    dataset_id: str
    spec: wire.StudyCreate
    balance: Balance
    everyone: int
    most: int
    delta: Decimal
    unbounded: str | None


@dataclass(frozen=True, slots=True, repr=False)
class FileLosses:
    """What every unit of a file has lost.

    ``totals``: for each kind of unit, by person column (None: records), the sum of answers about each unit, in the
    ledger's units. Registrations with different kinds of units cannot be matched, so their largest sums are added: that
    may be too much, and never too little.
    """

    account: Account
    public: bool
    studies: list[StudyLoss]
    units: dict[str | None, Units]
    totals: dict[str | None, Any]

    @property
    def everyone(self) -> Decimal:
        """The epsilon that every unit has lost."""
        of_studies = sum(study.everyone for study in self.studies)
        return amounts.add(self.account.epsilon, amounts.decimal(of_studies))

    @property
    def of_studies(self) -> tuple[Decimal, Decimal]:
        """Epsilon and delta that the unit which lost most has lost by studies, of what has a finite bound."""
        epsilon = sum(study.everyone for study in self.studies) + sum(map(_largest, self.totals.values()))
        delta = Decimal(0)
        for study in self.studies:
            delta = amounts.add(delta, study.delta)
        return amounts.decimal(epsilon), delta

    @property
    def epsilon(self) -> Decimal:
        """The epsilon that the unit which lost most has lost, of what has a finite bound."""
        return amounts.add(self.account.epsilon, self.of_studies[0])

    @property
    def delta(self) -> Decimal:
        """The sum of the deltas."""
        return amounts.add(self.account.delta, self.of_studies[1])

    @property
    def declared_rows(self) -> int:
        """The most rows of one person that a study declares of which no column says whose they are; 1: none does."""
        return max((s.spec.rows_per_person for s in self.studies if not s.spec.person_column), default=1)

    def of_person(self, k: int) -> tuple[Decimal, Decimal] | None:
        """Epsilon and delta that a person with ``k`` records may have lost, by group privacy; None: no finite bound.

        Of a tuning with a delta nothing is proved for several records.
        """
        if self.unbounded or self.account.delta:
            return None
        delta = Decimal(0)
        for study in self.studies:
            released = amounts.decimal(study.balance.release)
            delta = amounts.add(delta, dataset_account.group_delta(released, study.delta, k))
        return amounts.times(k, self.epsilon), delta

    def of_other_units(self, column: str | None) -> int:
        """The largest sums of answers about units of other kinds, added, in the ledger's units."""
        return sum(_largest(totals) for other, totals in self.totals.items() if other != column)

    def of_kind(self, column: str | None) -> Any:
        """The sum of answers about each unit of a kind; none where every registration with such units is erased."""
        return self.totals.get(column, np.zeros(0, dtype=np.int64))

    @property
    def unbounded(self) -> list[StudyLoss]:
        """The studies without a finite bound."""
        return [study for study in self.studies if study.unbounded is not None]


def _matched(names: dict[str, NDArray[Any]]) -> Units:
    """Units by what names them in each registration (n, ...): persons by digest, records by number in the file."""
    different, numbers = np.unique(np.concatenate(list(names.values())), axis=0, return_inverse=True)
    ends = np.cumsum([len(part) for part in names.values()])[:-1]
    parts = np.split(numbers.reshape(-1).astype(np.int64), ends)
    return Units(len(different), dict(zip(names, parts, strict=True)))


def _keys(registered: Iterable[Any]) -> Iterator[tuple[str, int, str | None, bool]]:
    """What the units of registrations follow from; deleted and erased ones have no files."""
    for row in registered:
        if row.deleted_at is None and row.erased_at is None:
            yield row.id, row.rows, row.person_column, store.is_renumbered(row)


def _largest(totals: Any) -> int:
    return int(totals.max()) if len(totals) else 0


def _most_of_a_person(db: Connection, study_id: str, spec: wire.StudyCreate) -> int:
    """The most that answers about one unit of an erased study can have cost: its row order is gone."""
    spent = sorted(lines.row_totals(db, study_id).values(), reverse=True)
    return sum(spent[: spec.protected_rows])


class DatasetLosses:
    """Reads losses. Safe to call from several threads."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._order: Callable[[str], NDArray[np.int64]] = lru_cache(maxsize=_CACHED)(vault.order)
        self._rows: Callable[[str], NDArray[np.int64]] = lru_cache(maxsize=_CACHED)(self._inverse)
        self._datasets: dict[tuple[int, str], Any] = {}
        """By the foreign writes before it was read, and id; so are the next."""
        self._names: dict[tuple[int, str], str] = {}
        self._units_of: Callable[..., dict[str | None, Units]] = lru_cache(maxsize=_CACHED)(self._read_units)

    def dataset(self, db: Connection, identity: str) -> Any:
        """A dataset's id, digest and person column, which never change."""
        key = noticed(db), identity
        if key not in self._datasets:
            self._datasets[key] = store.find(db, store.datasets, identity)
        return self._datasets[key]

    def account_name(self, db: Connection, dataset: Any) -> str:
        """The account of a dataset, which never changes."""
        key = noticed(db), dataset.id
        if key not in self._names:
            self._names[key] = table.account_name(db, dataset)
        return self._names[key]

    def forget(self) -> None:
        """Read every file again: one was erased."""
        for cached in (self._order, self._rows, self._units_of):
            cast(Any, cached).cache_clear()

    def _inverse(self, release_id: str) -> NDArray[np.int64]:
        """The row of Z of each record, -1 for one that was withheld; later records were withheld too."""
        order = self._order(release_id)
        rows = np.full(int(order.max(initial=-1)) + 1, -1, dtype=np.int64)
        rows[order] = np.arange(len(order))
        return rows

    def units(self, db: Connection, sha256: str) -> dict[str | None, Units]:
        """The units of a file, by person column."""
        return self._units_of(*_keys(store.registrations(db, sha256)))

    def _read_units(self, *registered: tuple[str, int, str | None, bool]) -> dict[str | None, Units]:
        units: dict[str | None, Units] = {}
        for column in dict.fromkeys(column for _, _, column, _ in registered):
            same = [(identity, rows) for identity, rows, person, _ in registered if person == column]
            whole = {identity for identity, _, _, renumbered in registered if not renumbered}
            if column is None and any(identity in whole for identity, _ in same):
                numbers = {each: None if each in whole else self._vault.numbers(each) - 1 for each, _ in same}
                units[None] = Units(max(rows for identity, rows in same if identity in whole), numbers)
                continue
            read = self._vault.numbers if column is None else self._vault.persons
            units[column] = _matched({identity: read(identity) for identity, _ in same})
        return units

    def read(self, db: Connection, dataset: Any, *, without: str | None = None) -> FileLosses:
        """The losses of every unit of a dataset's file, ``without`` those by one study."""
        registered = store.registrations(db, dataset.sha256)
        units = self._units_of(*_keys(registered))
        erased = {row.id for row in registered if row.erased_at is not None}
        column_of = {row.id: row.person_column for row in registered}
        public = all(row.public for row in registered)
        charged = [row for row in table.studies_of(db, dataset.sha256) if row.id != without]
        charged = [row for row in charged if lines.is_released(db, row.id)]
        balances = {row.id: lines.balance(db, row.id) for row in charged}
        # Sums of large amounts do not fit the integers of a machine.
        kind: Any = np.int64 if sum(balance.total for balance in balances.values()) < _LARGE else object
        totals = {column: np.zeros(kinds.count, dtype=kind) for column, kinds in units.items()}
        studies = []
        for row in charged:
            column, spec, balance = column_of[row.dataset_id], _spec_of(row.spec), balances[row.id]
            release, most = store.release_of(db, row.id), 0
            by_row, answered = Prices.of(spec).by_record, balance.plays > 0
            everyone = 0
            if row.dataset_id in erased:
                everyone = _most_of_a_person(db, row.id, spec) if by_row else 0
            elif answered and by_row and release is not None:
                kinds = units[column]
                of_study = self._answers(db, row, release.id, kinds, kind)
                totals[column] += of_study
                most = _largest(of_study)
            report = None if release is None else wire.ReleaseReport.model_validate_json(release.report)
            current = release_status(db, spec, report)
            unbounded = dataset_account.release_is_unbounded(current.release, public=public)
            if current.status == "withdrawn" and not isinstance(current.release, wire.IdentityRelease):
                unbounded = f"its mechanism {current.release.mechanism} is withdrawn"
            if unbounded is None and answered:
                unbounded = dataset_account.answers_are_unbounded(spec, public=public)
            everyone += cost_for_everyone(db, row.id, spec, balance)
            delta = dataset_account.release_delta(current.release)
            studies.append(StudyLoss(row.id, row.dataset_id, spec, balance, everyone, most, delta, unbounded))
        account = table.account_of(db, table.account_name(db, dataset))
        return FileLosses(account, public, studies, units, totals)

    def _answers(self, db: Connection, row: Any, release_id: str, units: Units, kind: Any) -> Any:
        """The sum of a study's answers about each unit (units,)."""
        totals = np.zeros(units.count, dtype=kind)
        spent = lines.row_totals(db, row.id)
        if spent:
            records = self._order(release_id)[list(spent)]
            np.add.at(totals, units.of(row.dataset_id, records), np.array(list(spent.values()), dtype=kind))
        return totals

    # --- the hot path: the units behind rows of one study --------------------------------------------------

    def everyone(self, db: Connection, dataset: Any) -> Decimal:
        """The epsilon that every unit has lost."""
        erased = {row.id for row in store.registrations(db, dataset.sha256) if row.erased_at is not None}
        total = 0
        for row in table.studies_of(db, dataset.sha256):
            spec, balance = _spec_of(row.spec), lines.balance(db, row.id)
            if row.dataset_id in erased and Prices.of(spec).by_record:
                total += _most_of_a_person(db, row.id, spec)
            total += cost_for_everyone(db, row.id, spec, balance)
        account = table.account_of(db, table.account_name(db, dataset))
        return amounts.add(account.epsilon, amounts.decimal(total))

    def units_at(self, db: Connection, dataset: Any, release_id: str, rows: Iterable[int]) -> dict[int, int]:
        """The unit behind each of these rows of Z."""
        units = self.units(db, dataset.sha256)[dataset.person_column]
        order = self._order(release_id)
        return {row: int(units.of(dataset.id, order[[row]])[0]) for row in set(rows)}

    def answers_about(self, db: Connection, dataset: Any, unit: int) -> int:
        """The sum of all answers about one unit, in all studies whose dataset has this kind of units."""
        units, total = self.units(db, dataset.sha256)[dataset.person_column], 0
        for row in table.studies_of(db, dataset.sha256):
            spec, balance = _spec_of(row.spec), lines.balance(db, row.id)
            spent = balance.total > balance.release
            if not spent or row.dataset_id not in units.numbers or not Prices.of(spec).by_record:
                continue
            release = store.release_id_of(db, row.id)
            assert release is not None  # it has answered
            at = self._rows(release)
            records = [record for record in units.records(row.dataset_id, unit) if record < len(at)]
            rows = [int(at[record]) for record in records if at[record] >= 0]
            total += sum(of_row.total for of_row in lines.row_balances(db, row.id, rows).values())
        return total

    def of_other_units(self, db: Connection, dataset: Any) -> Decimal:
        """The largest sums of answers about units of other kinds, added; 0 where there is one kind."""
        if len(self.units(db, dataset.sha256)) <= 1:
            return Decimal(0)
        return amounts.decimal(self.read(db, dataset).of_other_units(dataset.person_column))
