"""What each record of a file has used, also by the other files of its account: read through the secret row orders."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from blindopt.errors import RecordChanged, StateConflict
from curator_service import store
from curator_service.budget import ledger_lines
from curator_service.budget.ledger import Account, Balance, Charge, Cost
from curator_service.budget.people import Labels, People
from curator_service.privacy import prices
from curator_service.privacy.prices import GroupPrices, Prices, text
from curator_service.queries import table as queries
from curator_service.releases.report import release_status
from curator_service.vault import Vault
from service_kit.store import audit_log
from service_kit.store.database import Connection

_CACHED = 64
_LARGE = 2**62
_NOTHING = Cost()
_spec_of = lru_cache(maxsize=1024)(wire.StudyCreate.model_validate_json)


# --- what a study has used --------------------------------------------------------------------------------------


def most_by_row(db: Connection, study_id: str) -> dict[int, int]:
    """By row, how often its most released answer was released; only rows with an answer that was released again."""
    release_counts: Counter[tuple[str, int, int]] = Counter()
    for query_id, _, fresh in queries.corrected(db, study_id):
        release_counts.update((query_id, index, play) for index, play in json.loads(fresh))
    most: dict[int, int] = {}
    for (query_id, index, _), n in release_counts.items():
        if n > 1:
            row = queries.row_at(db, query_id, index)
            most[row] = max(most.get(row, 0), n)
    return most


def cost_of_sharing(
    db: Connection,
    studies: Iterable[tuple[str, wire.StudyCreate, Balance]],
    charged_id: str | None = None,
    charges: Sequence[Charge] = (),
    again: int = 1,
) -> int:
    """What studies that read one release have charged every record; answers that add up by row come on top.

    The release counts once (docs/privacy.md, Theorem E). Answers about a group add up over the studies. If each answer
    is another person's, the dearest one of each study does. ``charges`` are those of ``charged_id``, which are not
    stored yet; ``again``: how often the answer of these which was released most often will have been.
    """
    release = dearest = 0
    of_groups: Counter[int] = Counter()
    group_prices: GroupPrices | None = None
    for study_id, spec, balance in studies:
        prices, added = Prices.of(spec), charges if study_id == charged_id else ()
        release = max(release, balance.release)
        if prices.by_record or (balance.total == balance.release and not added):
            continue
        if isinstance(prices, GroupPrices):
            costs = ledger_lines.row_totals(db, study_id)
            costs |= {charge.row: charge.row_after.total for charge in added if charge.row is not None}
            group_prices = prices
            of_groups.update(costs)
        else:
            most = max(again if added else 1, *most_by_row(db, study_id).values(), 1)
            dearest += most * prices.answer
    return max(release, dearest) if group_prices is None else group_prices.worst(of_groups.values())


def _of_erased(db: Connection, study_id: str, spec: wire.StudyCreate) -> int:
    """What a study on an erased dataset charged everybody by answers: its costliest rows, as its row order is gone."""
    if not Prices.of(spec).by_record:
        return 0
    return sum(sorted(ledger_lines.row_totals(db, study_id).values(), reverse=True)[: spec.protected_rows])


def release_read_by(study_id: str, spec: wire.StudyCreate) -> str:
    """The study whose release was drawn for this one: its own, or that of an earlier study."""
    return spec.release_of or study_id


def sharing(db: Connection, sha256: str) -> dict[str, list[tuple[str, wire.StudyCreate, Balance]]]:
    """The studies on any registration of a file with what they used, by the study whose release they read."""
    by_release: dict[str, list[tuple[str, wire.StudyCreate, Balance]]] = {}
    for row in ledger_lines.studies_of(db, sha256):
        spec = _spec_of(row.spec)
        study = row.id, spec, ledger_lines.balance(db, row.id)
        by_release.setdefault(release_read_by(row.id, spec), []).append(study)
    return by_release


@dataclass(frozen=True, slots=True)
class StudyUse:
    """What one study has charged, in the ledger's units. ``most``: the largest sum of answers about one unit.

    A release that several studies read is in ``everyone`` and ``delta`` of the first one alone.
    """

    id: str
    dataset_id: str
    spec: wire.StudyCreate
    balance: Balance
    everyone: int
    most: int
    delta: Decimal
    unbounded: str | None

    @staticmethod
    def of(db: Connection, study: Any, release: Any, everyone: int, most: int, *, public: bool) -> "StudyUse":
        """The use by a study with this row, and this row of its release (None before it)."""
        spec, balance = _spec_of(study.spec), ledger_lines.balance(db, study.id)
        report = None if release is None else wire.ReleaseReport.model_validate_json(release.report)
        current = release_status(db, spec, report)
        unbounded = prices.release_is_unbounded(current.release, public=public)
        if current.status == "withdrawn" and not isinstance(current.release, wire.IdentityRelease):
            unbounded = f"its mechanism {current.release.mechanism} is withdrawn"
        if unbounded is None and balance.plays > 0:
            unbounded = prices.answers_are_unbounded(spec, public=public)
        delta = prices.release_delta(current.release) if spec.release_of is None else Decimal(0)
        return StudyUse(study.id, study.dataset_id, spec, balance, everyone, most, delta, unbounded)

    @property
    def release(self) -> int:
        """What its own release has charged; 0 if it reads that of another study."""
        return self.balance.release if self.spec.release_of is None else 0


# --- what the records of a file have used -----------------------------------------------------------------------


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
        """The indices of a unit's records in a registration; none in one that was erased."""
        if dataset_id not in self.numbers:
            return []
        numbers = self.numbers[dataset_id]
        return [unit] if numbers is None else [int(record) for record in np.flatnonzero(numbers == unit)]


@dataclass(frozen=True, slots=True, repr=False)
class FileUse:
    """What every unit of a file has used.

    ``totals``: for each kind of unit, by person column (None: records), the sum of answers about each unit, in the
    ledger's units. Registrations with different kinds of units cannot be matched, so their largest sums are added: that
    may be too much, and never too little. What a unit has used by ``others``, the other files of the account, is in
    them too. ``of_others``: what every unit has used by these, and the delta of the unit that has most.
    """

    account: Account
    public: bool
    studies: list[StudyUse]
    units: dict[str | None, Units]
    totals: dict[str | None, Any]
    others: tuple["FileUse", ...] = ()
    of_others: Cost = _NOTHING

    @property
    def everyone(self) -> int:
        """The epsilon that every unit has used."""
        return self.account.used.epsilon + self.of_others.epsilon + sum(study.everyone for study in self.studies)

    @property
    def of_studies(self) -> Cost:
        """What the unit that has used most has used by studies and other files, of what has a finite bound."""
        epsilon = sum(study.everyone for study in self.studies) + sum(map(_largest, self.totals.values()))
        return sum((Cost(0, study.delta) for study in self.studies), self.of_others + Cost(epsilon))

    @property
    def of_account(self) -> list[StudyUse]:
        """The studies on all files of the account."""
        return [study for file in (self, *self.others) for study in file.studies]

    @property
    def averages(self) -> int:
        """How many tunings of the account promise something on average alone."""
        return self.account.averages + sum(file.account.averages for file in self.others)

    @property
    def on_average(self) -> Cost:
        """What they promise together."""
        return sum((file.account.on_average for file in self.others), self.account.on_average)

    @property
    def used(self) -> Cost:
        """What the unit that has used most has used, of what has a finite bound."""
        return self.account.used + self.of_studies

    @property
    def declared_rows(self) -> int:
        """The most rows of one person that a study declares of which no column says whose they are; 1: none does."""
        return max((s.spec.rows_per_person for s in self.of_account if not s.spec.person_column), default=1)

    def of_person(self, k: int) -> Cost | None:
        """What a person with ``k`` records may have used, by group privacy; None: no finite bound.

        Of a tuning with a delta nothing is proved for several records.
        """
        if not self.is_bounded or any(file.account.used.delta for file in (self, *self.others)):
            return None
        releases = [(Decimal(text(study.balance.release)), study.delta) for study in self.of_account]
        deltas = (Cost(0, prices.group_delta(*release, k)) for release in releases)
        return sum(deltas, Cost(k * self.used.epsilon))

    def of_other_units(self, column: str | None) -> int:
        """The largest sums of answers about units of other kinds, added, in the ledger's units."""
        return sum(_largest(totals) for other, totals in self.totals.items() if other != column)

    def of_kind(self, column: str | None) -> Any:
        """The sum of answers about each unit of a kind; none where every registration with such units is erased."""
        return self.totals.get(column, np.zeros(0, dtype=np.int64))

    @property
    def unbounded(self) -> list[StudyUse]:
        return [study for study in self.of_account if study.unbounded is not None]

    @property
    def is_unbounded(self) -> bool:
        """Whether a use, a study or a tuning, has no guarantee at all."""
        return bool(self.unbounded or any(file.account.unproved_charges for file in (self, *self.others)))

    @property
    def is_bounded(self) -> bool:
        """Whether every use of the account has a bound in the worst case, so that a cap on it can hold."""
        return not (self.is_unbounded or self.averages)

    def check_bounded(self) -> None:
        """Raise StateConflict if any use of the account has no bound in the worst case: no cap on it can hold."""
        for file in (self, *self.others):
            file.account.check_worst_case()
        for study in self.unbounded:
            raise StateConflict(f"no cap on this dataset can hold: study {study.id}: {study.unbounded}")


def _matched(names: dict[str, NDArray[Any]]) -> Units:
    """Units by what names them in each registration (n, ...): persons by digest, records by number in the file."""
    different, numbers = np.unique(np.concatenate(list(names.values())), axis=0, return_inverse=True)
    ends = np.cumsum([len(registration) for registration in names.values()])[:-1]
    numbers_of_each = np.split(numbers.reshape(-1).astype(np.int64), ends)
    return Units(len(different), dict(zip(names, numbers_of_each, strict=True)))


def _keys(registered: Iterable[Any]) -> Iterator[tuple[str, int, str | None, bool]]:
    """What the units of registrations follow from; deleted and erased ones have no files."""
    for row in registered:
        if row.deleted_at is None and row.erased_at is None:
            yield row.id, row.rows, row.person_column, store.is_renumbered(row)


def _named_alike(rows: Sequence[Any], sha256: str) -> set[str]:
    """The files of an account whose persons have the same names as those of this one, as their owners say.

    A file that a decision continues, and that has nobody of this one, has other names. If two of the files are both
    said to have the same names, over a third one, and other names, nobody can be matched: none but this one is.
    """
    files = {row.id: row.sha256 for row in rows}
    alike = {digest: {digest} for digest in files.values()}
    differ: list[set[str]] = []
    for row in rows:
        matched = {files.get(overlap["dataset_id"]) for overlap in json.loads(row.overlaps or "[]")}
        unmatched = []
        for decision in json.loads(row.overlap_decisions or "[]"):
            for digest in (files[name] for name in decision["continues"] if name in files):
                if decision["pseudonyms_differ"]:
                    differ.append({row.sha256, digest})
                elif row.person_column is not None and digest not in matched:
                    unmatched.append({row.sha256, digest})
                else:
                    joined = alike[row.sha256] | alike[digest]
                    alike |= dict.fromkeys(joined, joined)
        # Persons may come and go between files that have the same names over one in between.
        differ += [pair for pair in unmatched if not pair <= alike[row.sha256]]
    return {sha256} if any(pair <= alike[sha256] for pair in differ) else alike[sha256]


def _largest(totals: Any) -> int:
    return int(totals.max()) if len(totals) else 0


class _Order:
    """A row order: the record of each row of Z, and the row of each record."""

    def __init__(self, records: NDArray[np.int64]) -> None:
        self.records = records

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The row of Z of each record, -1 for one that was withheld; later records were withheld too."""
        rows = np.full(int(self.records.max(initial=-1)) + 1, -1, dtype=np.int64)
        rows[self.records] = np.arange(len(self.records))
        return rows


def check_order(db: Connection, vault: Vault, study_id: str) -> None:
    """Raise RecordChanged unless the file of a release's row order is the one that the log has since version 0.3."""
    release = store.release_of(db, study_id)
    assert release is not None
    for record in audit_log.of_kind(db, "study.released", about=study_id):
        details = record["details"]
        if details["study_id"] != study_id or "order_sha256" not in details:  # it was released before version 0.3
            continue
        if details["order_sha256"] != vault.order_digest(release.id, release.order_salt or ""):
            raise RecordChanged("the stored row order of the release is not the one in the audit log")


class FileUses:
    """Reads what files have used, with what it needs of their row orders cached. Safe to call from several threads."""

    def __init__(self, vault: Vault, people: People) -> None:
        self._vault, self._people = vault, people
        self._lock = Lock()
        self._orders: dict[str, _Order] = {}
        """By release, those that were read last."""
        self._units_of: Callable[..., dict[str | None, Units]] = lru_cache(maxsize=_CACHED)(self._read_units)
        self._labels_of: Callable[..., Labels] = lru_cache(maxsize=_CACHED)(self._read_labels)

    def forget(self) -> None:
        """Read every file again: one was erased."""
        for cached in (self._units_of, self._labels_of):
            cast(Any, cached).cache_clear()
        with self._lock:
            self._orders.clear()

    def _order(self, db: Connection, study_id: str, release_id: str) -> "_Order":
        """The row order of a release. Raises RecordChanged unless it is the one in the log."""
        with self._lock:
            if (order := self._orders.get(release_id)) is not None:
                return order
        check_order(db, self._vault, study_id)
        with self._lock:
            while len(self._orders) >= _CACHED:
                self._orders.pop(next(iter(self._orders)))
            return self._orders.setdefault(release_id, _Order(self._vault.order(release_id)))

    def units(self, db: Connection, sha256: str) -> dict[str | None, Units]:
        """The units of a file, by person column."""
        return self._units_of(*_keys(store.registrations(db, sha256)))

    def _read_units(self, *registered: tuple[str, int, str | None, bool]) -> dict[str | None, Units]:
        units: dict[str | None, Units] = {}
        for column in dict.fromkeys(column for _, _, column, _ in registered):
            sizes = {dataset_id: rows for dataset_id, rows, person, _ in registered if person == column}
            whole = [
                dataset_id for dataset_id, _, _, renumbered in registered if dataset_id in sizes and not renumbered
            ]
            if column is None and whole:
                numbers = {name: None if name in whole else self._vault.numbers(name) - 1 for name in sizes}
                units[None] = Units(max(sizes[name] for name in whole), numbers)
                continue
            read = self._vault.numbers if column is None else self._vault.persons
            units[column] = _matched({dataset_id: read(dataset_id) for dataset_id in sizes})
        return units

    def read(self, db: Connection, dataset: Any, *, without: str | None = None) -> FileUse:
        """What every unit of a dataset's file has used over its account, ``without`` the use by one study."""
        return self.read_all(db, dataset, without=without)[0]

    def read_all(self, db: Connection, dataset: Any, *, without: str | None = None) -> list[FileUse]:
        """The same of each file of the account, the dataset's own first."""
        names = ledger_lines.files_of(db, dataset.id)
        uses = {digest: self._of_file(db, digest, without) for digest in (dataset.sha256, *names)}
        if len(uses) == 1:
            return list(uses.values())
        registered = store.in_account(db, store.account_of(db, dataset.id))
        rows = [dataset, *({row.sha256: row for row in registered if row.sha256 != dataset.sha256}.values())]
        return [self._joined(row, registered, uses) for row in rows]

    def _joined(self, dataset: Any, registered: list[Any], uses: dict[str, FileUse]) -> FileUse:
        """The use of a dataset's file, with what each of its units has used by the other files of its account.

        A person who is in another file has used there what the digest has. A record has used as much as the equal one
        that used most; one that is in no other file as much as any, since it may have been corrected. So has everybody
        if the other file was erased, or has other names for its persons.
        """
        use, compared = uses[dataset.sha256], self._compared(dataset, registered)
        everyone, matched = Cost(), []
        kind: Any = np.int64 if sum(other.used.epsilon for other in uses.values()) < _LARGE else object
        for digest, other in uses.items():
            if other is use:
                continue
            if digest not in compared or dataset.sha256 not in compared:
                everyone += other.used
                continue
            column, labels = compared[digest]
            own_labels = compared[dataset.sha256][1]
            of_label, is_in = (
                np.zeros(1 + max(_largest(labels), _largest(own_labels)), dtype=kind),
                np.isin(own_labels, labels),
            )
            base = other.used.epsilon - _largest(other.totals[column])
            # Ids that are written in two ways may be one person's there; equal records are different persons'.
            combine = np.maximum if column is None else np.add
            combine.at(of_label, labels, other.totals[column].astype(kind) + base)
            amounts = of_label[own_labels]
            if column is None:
                amounts[~is_in] = other.used.epsilon
                is_in[:] = True
            matched.append((amounts, is_in, other.used.delta))
        others = tuple(other for other in uses.values() if other is not use)
        if not matched:
            return replace(use, others=others, of_others=everyone)
        column = compared[dataset.sha256][0]
        totals = use.totals[column].astype(kind) + sum(amounts for amounts, _, _ in matched)
        deltas = [
            sum((Cost(0, delta) for (_, _, delta), is_in in zip(matched, of_unit, strict=True) if is_in), Cost()).delta
            for of_unit in np.unique(np.array([is_in for _, is_in, _ in matched]), axis=1).T
        ]
        of_others = everyone + Cost(0, max(deltas))
        return replace(use, others=others, of_others=of_others, totals=use.totals | {column: totals})

    def _compared(self, dataset: Any, registered: list[Any]) -> dict[str, tuple[str | None, NDArray[np.int64]]]:
        """The files whose people can be compared with those of a dataset's, by digest.

        The person column of each, and the label of each unit: units with one label may be the same person.
        """
        files: dict[str, list[Any]] = {}
        # Somebody may have been in an erased registration of a file alone.
        alike = _named_alike(registered, dataset.sha256) - {row.sha256 for row in registered if row.erased_at}
        for row in sorted(registered, key=lambda row: row.person_column != dataset.person_column):
            is_person = row.person_column is not None
            if not row.deleted_at and is_person == (dataset.person_column is not None) and row.sha256 in alike:
                rows = files.setdefault(row.sha256, [row])
                rows += [row] * (row is not rows[0] and row.person_column == rows[0].person_column)
        labels = self._labels_of(*map(tuple, files.values())) if files else []
        return {digest: (rows[0].person_column, of) for (digest, rows), of in zip(files.items(), labels, strict=True)}

    def _read_labels(self, *files: tuple[Any, ...]) -> Labels:
        units = [self._units_of(*_keys(rows))[rows[0].person_column] for rows in files]
        numbered = [
            [(row, of_file.of(row.id, np.arange(row.rows))) for row in rows]
            for rows, of_file in zip(files, units, strict=True)
        ]
        return self._people.labels(numbered, [of_file.count for of_file in units])

    def _of_file(self, db: Connection, sha256: str, without: str | None) -> FileUse:
        """What every unit of a file has used by it alone."""
        registered = {row.id: row for row in store.registrations(db, sha256)}
        units = self._units_of(*_keys(registered.values()))
        public = all(row.public for row in registered.values())
        charged = [row for row in ledger_lines.studies_of(db, sha256) if row.id != without]
        balances = {row.id: ledger_lines.balance(db, row.id) for row in charged}
        # Sums of large amounts do not fit the integers of a machine.
        kind: Any = np.int64 if sum(balance.total for balance in balances.values()) < _LARGE else object
        totals = {column: np.zeros(kinds.count, dtype=kind) for column, kinds in units.items()}
        studies = []
        by_release: dict[str, list[tuple[str, wire.StudyCreate, Balance]]] = {}
        for row in charged:
            if ledger_lines.charged_at(db, row.id) is None:
                continue
            registration, spec, balance = registered[row.dataset_id], _spec_of(row.spec), balances[row.id]
            is_erased, release, most = registration.erased_at is not None, store.release_of(db, row.id), 0
            if balance.plays > 0 and Prices.of(spec).by_record and release is not None and not is_erased:
                of_study = self._answers(db, row, release.id, units[registration.person_column], kind)
                totals[registration.person_column] += of_study
                most = _largest(of_study)
            shared = by_release.setdefault(release_read_by(row.id, spec), [])
            before = cost_of_sharing(db, shared)
            shared.append((row.id, spec, balance))
            everyone = cost_of_sharing(db, shared) - before + (_of_erased(db, row.id, spec) if is_erased else 0)
            studies.append(StudyUse.of(db, row, release, everyone, most, public=public))
        account = ledger_lines.account_of(db, next(iter(registered)))
        return FileUse(account, public, studies, units, totals)

    def _answers(self, db: Connection, row: Any, release_id: str, units: Units, kind: Any) -> Any:
        totals = np.zeros(units.count, dtype=kind)
        costs = ledger_lines.row_totals(db, row.id)
        if costs:
            records = self._order(db, row.id, release_id).records[list(costs)]
            np.add.at(totals, units.of(row.dataset_id, records), np.array(list(costs.values()), dtype=kind))
        return totals

    # --- the hot path: the units behind rows of one study --------------------------------------------------

    def by_everyone(self, db: Connection, dataset: Any) -> int:
        """The epsilon that every unit has used by studies."""
        erased, total = {row.id for row in store.registrations(db, dataset.sha256) if row.erased_at is not None}, 0
        for studies in sharing(db, dataset.sha256).values():
            total += cost_of_sharing(db, studies)
            total += sum(_of_erased(db, study_id, spec) for study_id, spec, _ in studies if spec.dataset_id in erased)
        return total

    def units_at(
        self, db: Connection, dataset: Any, study_id: str, release_id: str, rows: Iterable[int]
    ) -> dict[int, int]:
        units = self.units(db, dataset.sha256)[dataset.person_column]
        order = self._order(db, study_id, release_id).records
        return {row: int(units.of(dataset.id, order[[row]])[0]) for row in set(rows)}

    def answers_about(self, db: Connection, dataset: Any, unit: int) -> int:
        """The sum of all answers about one unit, in all studies whose dataset has this kind of units."""
        units, total = self.units(db, dataset.sha256)[dataset.person_column], 0
        for row in ledger_lines.studies_of(db, dataset.sha256):
            spec, balance = _spec_of(row.spec), ledger_lines.balance(db, row.id)
            if balance.total == balance.release or row.dataset_id not in units.numbers or not Prices.of(spec).by_record:
                continue
            rows = self.rows_of(db, row.id, units.records(row.dataset_id, unit))
            total += sum(of_row.total for of_row in ledger_lines.row_balances(db, row.id, rows).values())
        return total

    def rows_of(self, db: Connection, study_id: str, records: Sequence[int]) -> list[int]:
        """The rows of Z of those of these stored records that were released; none before the release."""
        if not records or (release := store.release_id_of(db, study_id)) is None:
            return []
        at = self._order(db, study_id, release).rows
        return [int(at[record]) for record in records if record < len(at) and at[record] >= 0]

    def of_other_units(self, db: Connection, dataset: Any) -> int:
        """The largest sums of answers about units of other kinds, added; 0 where there is one kind."""
        if len(self.units(db, dataset.sha256)) <= 1:
            return 0
        return self.read(db, dataset).of_other_units(dataset.person_column)
