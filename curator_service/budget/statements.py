"""What the account of a file states, typed: unit, relation, kind, amounts, and what it counts and rests on.

Account, page and report print their sentences from these statements alone.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from blindopt import wire
from curator_service import store
from curator_service.budget import ledger_lines
from curator_service.budget.file_use import FileUse
from curator_service.budget.overlaps import decisions_of
from curator_service.privacy.prices import is_groups
from service_kit.store.database import Connection

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
    rests_on = [
        *([_MIXED] if len(file.units) > 1 else []),
        *([_HIDDEN] if has_records else []),
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
    """The statements of an account, in words."""
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
    """The first line of a report about a file."""
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
