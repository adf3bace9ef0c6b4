"""What a dataset's account says with and without a study, for its owner: at its check, preview and release."""

from decimal import Decimal

from blindopt import wire
from blindopt.errors import BudgetExhausted, StateConflict
from curator_service import store
from curator_service.budget import ledger_lines
from curator_service.budget.file_budget import allow_release
from curator_service.budget.file_use import FileUse, FileUses
from curator_service.budget.ledger import Cost
from curator_service.privacy import prices
from curator_service.privacy.calibration import Concrete
from curator_service.privacy.prices import Prices, text
from service_kit.store.database import Connection


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
            allow_release(before, spec, ran)
        except (BudgetExhausted, StateConflict) as refusal:
            problem = str(refusal)
    cost = Cost() if charged else Cost(Prices.of(spec).release, prices.release_delta(ran))
    why = prices.release_is_unbounded(ran, public=before.public)
    why = why or prices.answers_are_unbounded(spec, public=before.public)
    tunings = sum(line.kind == "tuning" for line in ledger_lines.lines_of_account(db, uses.account(db, dataset.id)[1]))
    (used, used_delta), (then, then_delta) = before.used.texts, (after.used + cost).texts
    shown = None if before.unbounded else used, None if after.unbounded or why else then
    k = max(after.declared_rows, 1 if spec.person_column else spec.rows_per_person)
    person = None if k == 1 else of_declared_person(after, k, cost, bounded=shown[1] is not None)
    cap_epsilon, cap_delta = before.account.cap_texts
    return wire.DatasetOutlook(
        studies=len(before.studies),
        tunings=tunings,
        spent_epsilon=shown[0],
        spent_delta=used_delta,
        with_epsilon=shown[1],
        with_delta=then_delta,
        cap_epsilon=cap_epsilon,
        cap_delta=cap_delta,
        problem=problem,
        person=person,
        sentence=f"This dataset has spent {_amount(shown[0], used_delta)} over "
        f"{uses_in_words(len(before.studies), tunings)}; with this one {_amount(shown[1], then_delta)}"
        f"{_answers_in_words(spec, shown[1])}.{person_in_words(person)}{_limits(before, problem)}",
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


def _limits(use: FileUse, problem: str | None) -> str:
    if problem is not None:
        return f" It would be refused: {problem}."
    caps = zip(("epsilon", "delta"), use.account.cap_texts, strict=True)
    declared = [f"{name} {cap}" for name, cap in caps if cap is not None]
    if len(declared) > 1:
        return f" Its caps are {' and '.join(declared)}."
    return "".join(f" Its cap is {cap}." for cap in declared)
