"""What a dataset's account says with and without a study, for its owner: at its check, preview and release."""

from decimal import Decimal

from blindopt import wire
from blindopt.errors import BudgetExhausted, StateConflict
from curator_service import store
from curator_service.budget import account_table as table
from curator_service.budget.dataset_caps import allow_release
from curator_service.budget.dataset_losses import DatasetLosses, FileLosses
from curator_service.privacy import amounts, dataset_account
from curator_service.privacy.choice import Concrete
from curator_service.privacy.prices import Prices, exact
from service_kit.store.database import Connection


def outlook(
    db: Connection, losses: DatasetLosses, spec: wire.StudyCreate, ran: Concrete, study_id: str | None = None
) -> wire.DatasetOutlook:
    """The account of a study's dataset. ``ran``: its release. ``study_id``: None for a draft that is not stored."""
    dataset = store.find(db, store.datasets, spec.dataset_id)
    before = losses.read(db, dataset, without=study_id)
    after = losses.read(db, dataset) if study_id is not None else before
    charged, problem = any(study.id == study_id for study in after.studies), None
    if not charged:
        try:
            allow_release(before, spec, ran)
        except (BudgetExhausted, StateConflict) as refusal:
            problem = str(refusal)
    price, delta = (0, Decimal(0)) if charged else (Prices.of(spec).release, dataset_account.release_delta(ran))
    why = dataset_account.release_is_unbounded(ran, public=before.public)
    why = why or dataset_account.answers_are_unbounded(spec, public=before.public)
    with_epsilon = amounts.add(after.epsilon, amounts.decimal(price))
    account = before.account
    tunings = sum(line.kind == "tuning" for line in table.lines(db, table.account_name(db, dataset)))
    spent = None if before.unbounded else exact(before.epsilon)
    then = None if after.unbounded or why else exact(with_epsilon)
    uses = uses_in_words(len(before.studies), tunings)
    k = max(after.declared_rows, 1 if spec.person_column else spec.rows_per_person)
    cost = amounts.decimal(price)
    more = amounts.times(k, cost), dataset_account.group_delta(cost, delta, k)
    person = None if k == 1 else of_declared_person(after, k, bounded=then is not None, more=more)
    deltas = exact(before.delta), exact(amounts.add(after.delta, delta))
    return wire.DatasetOutlook(
        studies=len(before.studies),
        tunings=tunings,
        spent_epsilon=spent,
        spent_delta=deltas[0],
        with_epsilon=then,
        with_delta=deltas[1],
        cap_epsilon=None if account.cap_epsilon is None else exact(account.cap_epsilon),
        cap_delta=None if account.cap_delta is None else exact(account.cap_delta),
        problem=problem,
        person=person,
        sentence=f"This dataset has spent {_amount(spent, deltas[0])} over {uses}; "
        f"with this one {_amount(then, deltas[1])}{_answers_in_words(spec, then)}."
        f"{person_in_words(person)}{_limits(before, problem)}",
    )


def of_declared_person(
    file: FileLosses, k: int, *, bounded: bool = True, more: tuple[Decimal, Decimal] = (Decimal(0), Decimal(0))
) -> wire.DeclaredPerson:
    """What a person with ``k`` records, as declared, has lost.

    ``more``: epsilon and delta that are to come; ``bounded``: whether they have a finite bound.
    """
    if not bounded or (lost := file.of_person(k)) is None:
        return wire.DeclaredPerson(rows=k, epsilon=None, delta=None)
    epsilon, delta = (exact(amounts.add(a, b)) for a, b in zip(lost, more, strict=True))
    return wire.DeclaredPerson(rows=k, epsilon=epsilon, delta=delta)


def person_in_words(person: wire.DeclaredPerson | None) -> str:
    """What a person with several records has lost, for the end of a sentence about one record."""
    if person is None:
        return ""
    lost = _amount(person.epsilon, person.delta or "0")
    return f" These amounts are per record: for a person with {person.rows} records, as declared, {lost}."


def _amount(epsilon: str | None, delta: str) -> str:
    if epsilon is None:
        return "more than any finite epsilon"
    return f"epsilon {epsilon}" if delta == "0" else f"epsilon {epsilon} (delta {delta})"


def uses_in_words(studies: int, tunings: int) -> str:
    """The number of uses.

    >>> uses_in_words(1, 0), uses_in_words(2, 1)
    ('1 study', '2 studies and 1 tuning')
    """
    said = "1 study" if studies == 1 else f"{studies} studies"
    return f"{said} and {tunings} tuning{'' if tunings == 1 else 's'}" if tunings else said


def _answers_in_words(spec: wire.StudyCreate, then: str | None) -> str:
    return "" if then is None or not Prices.of(spec).answer else ", and more with its answers"


def _limits(file: FileLosses, problem: str | None) -> str:
    if problem is not None:
        return f" It would be refused: {problem}."
    account = file.account
    caps = [(name, getattr(account, f"cap_{name}")) for name in ("epsilon", "delta")]
    declared = [f"{name} {exact(cap)}" for name, cap in caps if cap is not None]
    return (
        f" Its caps are {' and '.join(declared)}."
        if len(declared) > 1
        else "".join(f" Its cap is {cap}." for cap in declared)
    )
