"""What accounts show: a file's for its owner and auditors, with a study to come, and the largest share of a cap.

A file's account states unit, relation, kind and amounts, and what it counts and rests on. Account, page and report
print their sentences from these statements alone.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from blindopt import wire
from blindopt.errors import BudgetExhausted, StateConflict
from blindopt.wire.base import GuaranteeKind
from curator_service import store
from curator_service.budget import ledger_lines, overlaps
from curator_service.budget.budgets import Budgets, allow_release, release_cost
from curator_service.budget.file_use import FileUse, FileUses, StudyUse
from curator_service.budget.ledger import Cost
from curator_service.budget.overlaps import decisions_of
from curator_service.datasets.records import count_withheld, file_numbers, file_row, reading_of
from curator_service.privacy import prices
from curator_service.privacy.calibration import Concrete
from curator_service.privacy.prices import ONE_FEATURE, Prices, exact, is_groups, text, units
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.store.base import moment
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply
from service_kit.web.metrics import Figures, gauge

_GROUPS = 50
_FEW_COLUMNS = 4
"""In so many columns records of two files may be equal by chance."""
_ALL = 10**9


class DatasetAccounts:
    """Reads accounts of files, and changes their caps. Keeps the largest share of a cap until anything is charged."""

    def __init__(self, context: ServiceContext, vault: Vault, budgets: Budgets) -> None:
        self._context = context
        self._vault = vault
        self._budgets = budgets
        self._computed: tuple[Any, float] = (None, 0.0)

    def account(self, dataset_id: str, after: int, limit: int, *, with_records: bool) -> wire.DatasetAccount:
        """The account of a dataset's file, with at most ``limit`` of the uses after a position.

        ``with_records`` names a record that has used most, which reveals which records were queried, so it is for the
        owner alone. Raises NotFound.
        """
        with self._context.database.read() as db:
            return self._account(db, dataset_id, after, limit, with_records=with_records)

    def change_caps(self, request: RequestContext, dataset_id: str, change: wire.DatasetCaps) -> StoredReply:
        """Declare, lower or raise the caps of a file's account. Raises NotFound, and as that does."""

        def effect(db: Connection) -> Effect:
            store.find(db, store.datasets, dataset_id)  # raises NotFound
            details = self._budgets.of_file(db, dataset_id).change_caps(change)
            account = self._account(db, dataset_id, 0, _ALL, with_records=True)
            return Effect(account.model_copy(update={"uses": account.uses[-1:]}), "dataset.caps", details, 200)

        return self._context.idempotency.once(request, effect)

    def _account(
        self, db: Connection, dataset_id: str, after: int, limit: int, *, with_records: bool
    ) -> wire.DatasetAccount:
        dataset = store.find(db, store.datasets, dataset_id)
        file = self._budgets.uses.read(db, dataset)
        uses = _uses(db, dataset, file)
        others = Counter(use.kind for use in uses)
        unbounded = [use for use in uses if use.unbounded is not None]
        registered = store.in_account(db, dataset.account)
        unit = _unit(dataset)
        totals = file.of_kind(dataset.person_column)
        worst = None
        if with_records and len(totals) and totals.max() > totals.min():
            worst = next(
                iter(file.units[dataset.person_column].records(dataset.id, int(totals.argmax()))), None
            )  # it may be left out here
        epsilon, delta = file.used.texts
        epsilon_text = None if unbounded else epsilon
        cap_epsilon, cap_delta = file.account.cap_texts
        person = None if (k := file.declared_rows) == 1 else of_declared_person(file, k)
        number = None if worst is None else int(file_numbers(self._vault, dataset)[worst])
        stated = statements_of(db, dataset, file, unit, epsilon_text, delta, uses)
        return wire.DatasetAccount(
            account=dataset.account,
            registrations=[
                wire.DatasetRegistration(
                    dataset_id=row.id,
                    name=row.name if with_records else None,
                    public=bool(row.public),
                    unit=_unit(row),
                    created_at=moment(row.created_at),
                )
                for row in registered
                if row.deleted_at is None
            ],
            unit=unit,
            epsilon=epsilon_text,
            delta=delta,
            on_average=of_averages(file),
            everyone_epsilon=None if unbounded else text(file.everyone),
            person=person,
            worst_record=number,
            worst_file_row=None if number is None else file_row(reading_of(dataset), number),
            losses=_shares(file, dataset, bounded=not unbounded),
            cap_epsilon=cap_epsilon,
            cap_delta=cap_delta,
            closed=file.account.closed,
            studies=len(file.of_account),
            tunings=others["tuning"],
            unbounded=unbounded,
            uses=uses[after : after + limit],
            statements=stated,
            sentence=in_words(stated, uses, person),
            next_page_token=None,
        )

    def gauges(self) -> Figures:
        """The largest share of any cap, of studies that are open and of files, rounded up to a tenth."""
        about = "Largest share of a cap that is used, of open studies and files, rounded up to a tenth."
        yield gauge("blindopt_budget_share_max", about, self._largest_share)

    def _largest_share(self) -> float:
        with self._context.database.read() as db:
            state = *ledger_lines.last_lines(db), *store.open_specs(db)
            if state != self._computed[0]:
                self._computed = state, _rounded(max(_shares_used(db, self._budgets.uses), default=Fraction(0)))
        return self._computed[1]


def _unit(dataset: Any) -> Any:
    return "record" if dataset.person_column is None else "person"


def of_averages(file: FileUse) -> wire.OnAverage | None:
    """What tunings of an account promise on average alone; None without one."""
    epsilon, delta = file.on_average.texts
    return wire.OnAverage(epsilon=epsilon, delta=delta, tunings=file.averages) if file.averages else None


def _counted(file: FileUse, others: Mapping[Any, int]) -> str:
    """The uses that the amounts of a file are over: all without those on average."""
    counted = Counter(others)
    counted["tuning"] -= file.averages
    return uses_in_words(len(file.of_account), counted)


def _shares(file: FileUse, dataset: Any, *, bounded: bool) -> list[wire.LossShare]:
    """How many units have lost how much, largest first, in at most ``_GROUPS`` groups."""
    totals = file.of_kind(dataset.person_column)
    if not bounded:
        return [wire.LossShare(epsilon=None, units=len(totals))] if len(totals) else []
    base = file.everyone + file.of_other_units(dataset.person_column)
    values, counts = np.unique(totals, return_counts=True)
    ordered = list(zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True))
    per_group = max(1, -(-len(ordered) // _GROUPS))
    groups = [ordered[start : start + per_group] for start in range(0, len(ordered), per_group)]
    return [
        wire.LossShare(epsilon=text(base + group[0][0]), units=sum(count for _, count in group)) for group in groups
    ]


def _lines(db: Connection, dataset: Any) -> list[Any]:
    names = ledger_lines.files_of(db, dataset.id).values()
    account_lines = (line for name in names for line in ledger_lines.lines_of_account(db, name))
    return sorted(account_lines, key=lambda line: line.seq)


def _uses(db: Connection, dataset: Any, file: FileUse) -> list[wire.DatasetUse]:
    """Every use of an account's files and every change of the account, in the order of time."""
    timed: list[tuple[str, int, dict[str, Any]]] = []
    for study in file.of_account:
        charged_at = ledger_lines.charged_at(db, study.id)
        assert charged_at is not None
        timed.append((charged_at, 0, _study_use(study)))
    old: tuple[str | None, str | None] = (None, None)
    for row in _lines(db, dataset):
        timed.append((row.created_at, 1, _line_use(row, ledger_lines.guarantee_kind(db, row), *old)))
        old = row.cap_epsilon, row.cap_delta
    timed.sort(key=lambda use: use[:2])
    return [
        wire.DatasetUse(seq=seq, created_at=moment(at), **values) for seq, (at, _, values) in enumerate(timed, start=1)
    ]


def _study_use(study: StudyUse) -> dict[str, Any]:
    bounded = study.unbounded is None
    return {
        "kind": "study",
        "study_id": study.id,
        "name": study.spec.name,
        "epsilon": text(study.everyone + study.most) if bounded else None,
        "delta": exact(study.delta),
        "release_epsilon": text(study.release) if bounded else None,
        "release_of": study.spec.release_of,
        "answers_epsilon": text(study.everyone + study.most - study.release) if bounded else None,
        "guarantee_kind": "worst_case" if bounded else "none",
        "unbounded": study.unbounded,
    }


def _line_use(row: Any, kind: GuaranteeKind | None, old_epsilon: str | None, old_delta: str | None) -> dict[str, Any]:
    is_cap = row.kind == "cap"
    why = "its guarantee is none, as its report says" if kind == "none" else None
    return {
        "kind": row.kind,
        "tuning_id": row.subject if row.kind == "tuning" else None,
        "bounds_id": row.subject if row.kind == "bounds" else None,
        "epsilon": None if why else row.epsilon,
        "delta": row.delta,
        "guarantee_kind": kind,
        "unbounded": why,
        "cap": None if is_cap else row.cap,
        "act": row.cap if is_cap else None,
        "old_cap_epsilon": old_epsilon,
        "old_cap_delta": old_delta,
        "cap_epsilon": row.cap_epsilon,
        "cap_delta": row.cap_delta,
        "reason": row.subject if is_cap else None,
        "total_epsilon": row.total_epsilon,
        "total_delta": row.total_delta,
    }


def outlook(
    db: Connection, uses: FileUses, spec: wire.StudyCreate, ran: Concrete, study_id: str | None = None
) -> wire.DatasetOutlook:
    """The account of a study's dataset. ``ran``: its release. ``study_id``: None for a draft that is not stored."""
    dataset = store.find(db, store.datasets, spec.dataset_id)
    before = uses.read(db, dataset, without=study_id)
    after = uses.read(db, dataset) if study_id is not None else before
    charged, problem = any(study.id == study_id for study in after.studies), None
    if not charged:
        try:
            overlaps.check_decided(db, dataset.id)
            allow_release(before, spec, ran)
        except (BudgetExhausted, StateConflict) as refusal:
            problem = str(refusal)
    cost = Cost() if charged else release_cost(spec, ran)
    why = prices.release_is_unbounded(ran, public=before.public)
    why = why or prices.answers_are_unbounded(spec, public=before.public)
    others = Counter(line.kind for line in _lines(db, dataset))
    (used, used_delta), (then, then_delta) = before.used.texts, (after.used + cost).texts
    shown = None if before.is_unbounded else used, None if after.is_unbounded or why else then
    k = max(after.declared_rows, 1 if spec.person_column else spec.rows_per_person)
    person = None if k == 1 else of_declared_person(after, k, cost, bounded=shown[1] is not None)
    cap_epsilon, cap_delta = before.account.cap_texts
    is_single = any(wire.hides_one_feature(each.release) for each in (spec, *(use.spec for use in before.of_account)))
    more = "" if shown[1] is None or not Prices.of(spec).answer else ", and more with its answers"
    return wire.DatasetOutlook(
        studies=len(before.of_account),
        tunings=others["tuning"],
        spent_epsilon=shown[0],
        spent_delta=used_delta,
        with_epsilon=shown[1],
        with_delta=then_delta,
        cap_epsilon=cap_epsilon,
        cap_delta=cap_delta,
        problem=problem,
        person=person,
        sentence=f"A record of this dataset has used {amount_in_words(shown[0], used_delta)} over "
        f"{_counted(before, others)}; with this one {amount_in_words(shown[1], then_delta)}"
        f"{more}.{averages_in_words(of_averages(before))}{person_in_words(person)}"
        + (f" {ONE_FEATURE}" if is_single else "")
        + "".join([_limits(before, problem), *(f" {overlap.sentence}" for overlap in overlaps_of(db, uses, dataset))]),
    )


def of_declared_person(use: FileUse, k: int, more: Cost = Cost(), *, bounded: bool = True) -> wire.DeclaredPerson:
    """What a person with ``k`` records, as declared, has used.

    ``more``: the cost for a record of what is to come; ``bounded``: whether that has a finite bound.
    """
    if not bounded or (used := use.of_person(k)) is None:
        return wire.DeclaredPerson(rows=k, epsilon=None, delta=None)
    delta = prices.group_delta(Decimal(text(more.epsilon)), more.delta, k)
    epsilon_text, delta_text = (used + Cost(k * more.epsilon, delta)).texts
    return wire.DeclaredPerson(rows=k, epsilon=epsilon_text, delta=delta_text)


def overlaps_of(db: Connection, uses: FileUses | None, dataset: Any) -> list[wire.Overlap]:
    """The earlier files with people of a dataset, and what its owner decided, for the owner alone.

    Without ``uses`` no sentence says what an earlier one has used, which takes time to add up.
    """
    stored = json.loads(dataset.overlaps or "[]")
    waiting = [overlap["dataset_id"] for overlap in overlaps.undecided(db, dataset)] if stored else []
    reasons = {name: decision["separate"] for decision in overlaps.decisions_of(dataset) for name in decision["apart"]}
    overlapping = []
    for overlap in stored:
        unit, matched = overlap["unit"], overlap["matched"]
        if (earlier := store.registered(db, overlap["dataset_id"])) is None:  # forgotten, and was charged nothing
            continue
        are_in = f"{matched} of {overlap['of']} {unit}s {'is' if matched == 1 else 'are'} in {earlier.name}"
        if earlier.id in waiting:
            used = "" if uses is None else f", {_used(db, uses, earlier, unit)}"
            chance = _chance(dataset, earlier) if unit == "record" else ""
            decision, sentence = "undecided", f"{are_in}{used}.{chance} Continue its account?"
        elif earlier.account == dataset.account:
            decision, sentence = "continues", f"{are_in} too: both files have one account."
        else:
            why = f": {reasons[earlier.id]}" if earlier.id in reasons else ""
            decision, sentence = "separate", f"{are_in} too, and the account is apart{why}. Add the figures of both."
        overlapping.append(wire.Overlap.model_validate({**overlap, "decision": decision, "sentence": sentence}))
    return overlapping


def _chance(dataset: Any, earlier: Any) -> str:
    """That records may match by chance; nothing if many columns are compared, or whole records."""
    names = [store.column_names(row) for row in (dataset, earlier)]
    common = [name for name in names[0] if name in names[1]]
    if not common or len(common) > _FEW_COLUMNS or set(names[0]) == set(names[1]):
        return ""
    alone = f"The only columns of both files are {', '.join(common)}"
    return f" {alone}: if equal values there are chance, keep the accounts separate."


def _used(db: Connection, uses: FileUses, earlier: Any, unit: str) -> str:
    """What an earlier dataset has used and withholds."""
    file = uses.read(db, earlier)
    used = "has no bound on its epsilon" if file.is_unbounded else f"has used epsilon {text(file.used.epsilon)}"
    cap, delta_cap = file.account.cap_texts
    used += f" of its cap {cap}" if cap is not None else ""
    used += f" and delta {exact(file.used.delta)}" if file.used.delta else ""
    used += f" of its cap {delta_cap}" if delta_cap is not None else ""
    if count := count_withheld(db, earlier):
        used += f" and withholds {count} {unit}{'' if count == 1 else 's'}"
    return f"which {used}"


def _limits(use: FileUse, problem: str | None) -> str:
    if problem is not None:
        return f" It would be refused: {problem}."
    caps = zip(("epsilon", "delta"), use.account.cap_texts, strict=True)
    declared = [f"{name} {cap}" for name, cap in caps if cap is not None]
    if len(declared) > 1:
        return f" Its caps are {' and '.join(declared)}."
    return "".join(f" Its cap is {cap}." for cap in declared)


def _shares_used(db: Connection, uses: FileUses) -> Iterator[Fraction]:
    opened = {study for study, _ in store.open_specs(db)}
    for account in ledger_lines.open_accounts(db):
        file = uses.read(db, store.registered(db, account))
        for study in file.studies:
            if study.id in opened:
                yield from _of_study(study)
        if file.account.cap_epsilon:
            yield Fraction(file.used.epsilon, file.account.cap_epsilon)
        if file.account.cap_delta:
            yield Fraction(file.used.delta) / Fraction(file.account.cap_delta)


def _of_study(study: StudyUse) -> Iterator[Fraction]:
    budget: wire.Budget = study.spec.budget
    of_record = max(study.balance.release + study.most, study.everyone)
    for cap, amount in ((budget.epsilon_per_row, of_record), (budget.epsilon_total, study.balance.total)):
        if cap is not None and units(cap):
            yield Fraction(amount, units(cap))
    if budget.queries:
        yield Fraction(study.balance.plays, budget.queries)


def _rounded(share: Fraction) -> float:
    """Up to a tenth, so that the page does not say which query came when.

    >>> _rounded(Fraction(0)), _rounded(Fraction(1, 1000)), _rounded(Fraction(4, 5)), _rounded(Fraction(801, 1000))
    (0.0, 0.1, 0.8, 0.9)
    """
    return math.ceil(10 * share) / 10


CHARGES = ("study", "tuning", "bounds")
_HIDDEN = (
    "The epsilon of a release of records is for changes of features up to the hidden change of its study. Larger "
    "changes are protected less."
)
_MIXED = "Some registrations of the file count persons and others records. This adds the largest amount of each."


def statements_of(
    db: Connection,
    dataset: Any,
    file: FileUse,
    unit: Any,
    epsilon: str | None,
    delta: str,
    uses: Sequence[wire.DatasetUse],
) -> list[wire.AccountStatement]:
    """What holds of the unit that has used most: first of all that can be added, then what holds on average alone."""
    charges = [use for use in uses if use.kind in CHARGES]
    averages = [use.seq for use in charges if use.guarantee_kind == "prior_average"]
    counted = [use.seq for use in charges if use.seq not in averages]
    has_records = any(study.balance.release and not is_groups(study.spec) for study in file.of_account)
    whose = "one record" if unit == "record" else "the records of one person"
    relation = f"{whose} replaced by any other"
    if has_records:
        relation = f"the features of {whose} moved by at most the hidden change of each study, all else replaced"
    single = sum(wire.hides_one_feature(study.spec.release) for study in file.of_account)
    rests_on = [
        *([_MIXED] if len(file.units) > 1 else []),
        *([_HIDDEN] if has_records else []),
        *([f"Studies that hide one feature at a time: here {single}. {ONE_FEATURE}"] if single else []),
        *_scorers(db, charges),
        _of_files(file, unit),
        *_apart(db, dataset, unit),
    ]
    statements = [
        wire.AccountStatement(
            unit=unit,
            relation=f"Two files with the same number of records: {relation}.",
            guarantee_kind="worst_case" if epsilon is not None else "none",
            epsilon=epsilon,
            delta=None if epsilon is None else delta,
            uses=counted,
            not_counted=averages,
            rests_on=rests_on,
        )
    ]
    if averages:
        average_epsilon, average_delta = file.on_average.texts
        statements.append(
            wire.AccountStatement(
                unit=unit,
                relation="On average over the priors of the tunings; for two given files nothing.",
                guarantee_kind="prior_average",
                epsilon=average_epsilon,
                delta=average_delta,
                uses=averages,
                not_counted=counted,
                rests_on=["Each prior describes the scores, as its owner declares."],
            )
        )
    return statements


def _of_files(file: FileUse, unit: str) -> str:
    if not file.others:
        return f"The account is of this file. If another file has the same {unit}s, add its account."
    count = 1 + len(file.others)
    return f"The account is of {count} files: each {unit} has used what the files that have it were charged."


def _apart(db: Connection, dataset: Any, unit: str) -> list[str]:
    """That the owner keeps this account and that of an earlier or a later file with the same people apart, and why."""
    rows = store.of_all_accounts(db)
    accounts = {row.id: row.account for row in rows}
    reasons = dict.fromkeys(
        decision["separate"]
        for row in rows
        for decision in decisions_of(row)
        for name in decision["apart"]
        # An earlier dataset that is forgotten was charged nothing.
        if row.account != (other := accounts.get(name, row.account)) and dataset.account in (row.account, other)
    )
    return [f"Files with the same {unit}s have accounts of their own, as the owner says: {why}." for why in reasons]


def _scorers(db: Connection, charges: Sequence[wire.DatasetUse]) -> list[str]:
    """That tunings rest on what the owner's program keeps to; nothing where none called one."""
    ids = [use.tuning_id for use in charges if use.tuning_id is not None]
    if not (called := ledger_lines.scored_by_program(db, ids)):
        return []
    of = "1 tuning comes" if called == 1 else f"{called} tunings come"
    return [f"The score of {of} from the owner's program, which promises how far one record moves it."]


def in_words(
    statements: Sequence[wire.AccountStatement], uses: Sequence[wire.DatasetUse], person: wire.DeclaredPerson | None
) -> str:
    first, *others = statements
    used = f"has used at most epsilon {first.epsilon}" if first.epsilon is not None else "has no bound on its epsilon"
    delta = "" if first.delta in (None, "0") else f" with delta {first.delta}"
    kinds = {use.seq: use.kind for use in uses}
    counted = Counter(kinds[seq] for seq in first.uses)
    return (
        f"Each {first.unit} of this file {used}{delta}, over {uses_in_words(counted['study'], counted)}."
        f"{averages_in_words(_average(others))}{person_in_words(person)} {' '.join(first.rests_on)}"
    )


def in_short(statements: Sequence[wire.AccountStatement]) -> str:
    first, *others = statements
    if not first.uses and not first.not_counted:
        return "Not used: nothing of this dataset was released."
    bounded = f"Bounded: each {first.unit} has used at most epsilon {first.epsilon}, over {len(first.uses)} uses."
    return bounded + averages_in_words(_average(others))


def _average(statements: Sequence[wire.AccountStatement]) -> wire.OnAverage | None:
    for stated in statements:
        if stated.guarantee_kind == "prior_average" and stated.epsilon is not None and stated.delta is not None:
            return wire.OnAverage(epsilon=stated.epsilon, delta=stated.delta, tunings=len(stated.uses))
    return None


def averages_in_words(on_average: wire.OnAverage | None) -> str:
    """What an amount before this sentence does not count; nothing if it counts every tuning."""
    if on_average is None:
        return ""
    amounts = f"({on_average.epsilon}, {on_average.delta})"
    which, prior = f"{on_average.tunings} tunings, which together promise", "their priors"
    if on_average.tunings == 1:
        which, prior = "1 tuning, which promises", "its prior"
    return f" Not in this figure: {which} {amounts} on average over {prior}, and nothing in the worst case."


def person_in_words(person: wire.DeclaredPerson | None) -> str:
    """What a person with several records has used, for the end of a sentence about one record."""
    if person is None:
        return ""
    used = amount_in_words(person.epsilon, person.delta or "0")
    return f" These amounts are per record: for a person with {person.rows} records, as declared, {used}."


def amount_in_words(epsilon: str | None, delta: str) -> str:
    if epsilon is None:
        return "more than any finite epsilon"
    return f"epsilon {epsilon}" if delta == "0" else f"epsilon {epsilon} (delta {delta})"


def uses_in_words(studies: int, others: Mapping[Any, int]) -> str:
    """The number of uses. ``others``: how many tunings and private bounds there are, by kind.

    >>> uses_in_words(1, {}), uses_in_words(2, {"tuning": 1}), uses_in_words(0, {"bounds": 1})
    ('1 study', '2 studies and 1 tuning', '1 request for private bounds')
    """
    counted = [
        (studies, "study", "studies"),
        (others.get("tuning", 0), "tuning", "tunings"),
        (others.get("bounds", 0), "request for private bounds", "requests for private bounds"),
    ]
    said = [f"{count} {noun if count == 1 else plural}" for count, noun, plural in counted if count]
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said or ["0 studies"])
