"""The account of a file, computed once more: from the audit log and the secret orders alone, in fractions.

It shares nothing with the program's account: it reads records of the log, the specs that the API shows, and the orders.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any


def recomputed(
    records: Iterable[dict[str, Any]],
    spec_of: Callable[[str], dict[str, Any]],
    order_of: Callable[[str], list[int]],
    persons: dict[str, list[Any]] | None = None,
    units_of_file: Iterable[Any] = (),
) -> tuple[Fraction, Counter[Any]]:
    """What every unit has lost, and what each has lost beyond that, from records of one file's log.

    ``spec_of`` and ``order_of``: by study. ``persons``: by dataset, the person behind each record; None: each record is
    a unit. ``units_of_file``: every unit, also if it lost nothing. To add an act: give its charge to everyone, or to
    units.
    """
    everyone, units = Fraction(0), Counter({unit: Fraction(0) for unit in units_of_file})
    records = list(records)
    drawn, released = draws_of(records, spec_of), dict[str, Fraction]()
    """By release id: its epsilon, however many studies read it."""
    dearest: dict[str, Fraction] = defaultdict(Fraction)
    """By study whose answers are each another person's: the dearest answer with its corrections."""
    corrected: dict[str, Counter[Any]] = defaultdict(Counter)
    refined: dict[str, set[int]] = defaultdict(set)
    for record in records:
        kind, details = record["kind"], record.get("details", {})
        if kind in ("tuning.started", "bounds.started") and details["guarantee_kind"] == "worst_case":
            everyone += Fraction(details["epsilon"])
        elif kind == "charge":
            study = details["study_id"]
            spec = spec_of(study)
            by_row = spec["privacy_unit"] == "row" or spec["measurement"]["source"] == "column"
            price = Fraction(spec["answers"].get("epsilon", "0"))
            if details["rows"] == "all":
                released[drawn[study]] = Fraction(details["epsilon"])
                continue
            for row, count in details["rows"]:
                is_correction = "version" in details
                mean = spec["answers"].get("plays", "each") == "mean" and not is_correction
                cost = price * (1 if mean else count) + second_draw(details, spec, row, refined[study])
                if by_row:
                    record_at = order_of(study)[row]
                    unit = record_at if persons is None else persons[spec["dataset_id"]][record_at]
                    units[unit] += cost
                elif is_correction:
                    # Which of the row's answers it was does not matter to a bound: say the same one each time.
                    corrected[study][details["query_id"], row] += 1
                    again = 1 + max(corrected[study].values())
                    dearest[study] = max(dearest[study], again * price)
                else:
                    dearest[study] = max(dearest[study], price)
    of_others: Counter[str] = Counter()
    for study, epsilon in dearest.items():
        of_others[drawn[study]] += epsilon
    return everyone + sum(max(epsilon, of_others[draw]) for draw, epsilon in released.items()), units


def second_draw(details: dict[str, Any], spec: dict[str, Any], row: int, refined: set[int]) -> Fraction:
    """What a row of a charge pays for its second draw, which is not among those ``refined`` and then is.

    Whatever the record says of second draws: a row pays once, with its first query.
    """
    if "version" in details or spec.get("refine") is None or row in refined:
        return Fraction(0)
    refined.add(row)
    return Fraction(spec["refine"]["epsilon"])


def recomputed_rows(
    records: Iterable[dict[str, Any]], spec_of: Callable[[str], dict[str, Any]], study: str
) -> tuple[dict[int, Fraction], set[int]]:
    """What each queried row of a study has used beside the release, and the rows that have paid a second draw."""
    spec, refined = spec_of(study), set[int]()
    costs: dict[int, Fraction] = defaultdict(Fraction)
    of_mean = spec["answers"]["plays"] == "mean"
    for record in records:
        details = record.get("details", {})
        if record["kind"] == "charge" and details["study_id"] == study and details["rows"] != "all":
            for row, count in details["rows"]:
                answers = 1 if of_mean and "version" not in details else count
                costs[row] += answers * Fraction(spec["answers"]["epsilon"])
                costs[row] += second_draw(details, spec, row, refined)
    return costs, refined


def draws_of(records: Iterable[dict[str, Any]], spec_of: Callable[[str], dict[str, Any]]) -> dict[str, str]:
    """The id of the release that was drawn for each charged study; of a draw that failed, the study's."""
    ids: dict[str, str] = {}
    for record in records:
        if record["kind"] == "study.released":
            details = record["details"]
            ids[details["study_id"]] = details.get("source_id", details["release_id"])
        elif record["kind"] == "charge" and (study := record["details"]["study_id"]) not in ids:
            ids[study] = ids.get(spec_of(study)["release_of"] or "", study)
    return ids


def recomputed_delta(records: Iterable[dict[str, Any]], spec_of: Callable[[str], dict[str, Any]]) -> Fraction:
    """The sum of the deltas of releases, tunings and bounds, from records of one file's log; answers have none."""
    records = list(records)
    drawn, deltas, delta = draws_of(records, spec_of), dict[str, Fraction](), Fraction(0)
    for record in records:
        kind, details = record["kind"], record.get("details", {})
        if kind in ("tuning.started", "bounds.started") and details["guarantee_kind"] == "worst_case":
            delta += Fraction(details["delta"])
        elif kind == "charge" and details["rows"] == "all":
            study = details["study_id"]
            deltas[drawn[study]] = Fraction(repr(spec_of(study)["release"].get("delta") or 0))
    return delta + sum(deltas.values())


def recomputed_kind(records: Iterable[dict[str, Any]], kind: str) -> tuple[Fraction, Fraction, int]:
    """The sums of epsilon and delta of the tunings with a kind of guarantee, and how many there are."""
    charged = [record["details"] for record in records if record["kind"] == "tuning.started"]
    of_kind = [details for details in charged if details["guarantee_kind"] == kind]
    sums = [sum((Fraction(each[name]) for each in of_kind), Fraction(0)) for name in ("epsilon", "delta")]
    return sums[0], sums[1], len(of_kind)
