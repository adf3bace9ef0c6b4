"""Cautions that follow from the values of the records: for the owner alone, never logged and never stored.

Whether a study can work at all. Which bounds are extremes, and which categories are not hidden, ``cautions`` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from blindopt import wire
from curator_service.privacy import answers

CLIPPED_SHARE = 0.05
"""More of a column clipped is a caution."""
COPIES_SHARE = 0.05


@dataclass(frozen=True, slots=True, repr=False)
class ColumnFacts:
    """What the values of a column are like. ``is_made``: it was made from a public list, such as a yes/no column.

    ``far``: how many lie beyond an empty stretch that is wider than half the range.
    """

    rows: int
    low: float
    high: float
    far: int = 0
    is_made: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Clipped:
    """How many values of a column lie below and above its bounds."""

    below: int
    above: int

    @property
    def count(self) -> int:
        return self.below + self.above


def of_values(
    spec: wire.StudyCreate, facts: Mapping[str, ColumnFacts], clipped: Mapping[str, Clipped]
) -> list[wire.Caution]:
    """Cautions about the features and the outcome of a study, each with the name of its column."""
    cautions = []
    for i, feature in enumerate(spec.features):
        field = f"features.{i}"
        cautions += _of_column(feature.column, field, "features", facts[feature.column])
        count, rows = clipped[feature.column].count, facts[feature.column].rows
        if count > CLIPPED_SHARE * rows:
            message = (
                f"{feature.column}: {count:,} of {rows:,} values lie outside {feature.lower:.6g} to "
                f"{feature.upper:.6g}, and are taken for the nearer end. Take wider public bounds, or correct the file."
            )
            cautions.append(_caution("feature_clipped", field, message, "features", "Change the bounds", "high"))
    if not isinstance(spec.measurement, wire.ColumnMeasurement):
        return cautions
    outcome = spec.measurement.column
    cautions += _of_column(outcome, "measurement.column", "measurement", facts[outcome])
    if (ends := answer_range(spec)) is not None and clipped[outcome].count > CLIPPED_SHARE * facts[outcome].rows:
        count, rows = clipped[outcome].count, facts[outcome].rows
        which = "Every outcome lies" if count == rows else f"{count:,} of {rows:,} outcomes lie"
        message = (
            f"{outcome}: {which} outside {ends[0]:.6g} to {ends[1]:.6g}, and answers take such an outcome for the "
            "nearer end. Take a wider range of answers, from public knowledge."
        )
        cautions.append(_caution("outcomes_clipped", "answers.value_bound", message, "answers", "Change it", "high"))
    return cautions


def answer_range(spec: wire.StudyCreate) -> tuple[float, float] | None:
    """The ends that answers are clipped to; None for exact answers."""
    mechanism = None if answers.faults(spec.answers) else answers.mechanism_of(spec.answers)
    return None if mechanism is None else mechanism.clip


def of_copies(copies: int | None, rows: int, *, has_persons: bool) -> list[wire.Caution]:
    """A caution about records that are exact copies of an earlier one, labels aside."""
    if not copies or copies <= COPIES_SHARE * rows:
        return []
    message = f"{copies:,} of {rows:,} records are exact copies of another record."
    if not has_persons:
        message += " If they are one person's, that person uses epsilon more than once: state the records per person."
    return [_caution("records_copied", "rows_per_person", message, "answers", "Records per person")]


def of_labels(repeated: int) -> list[wire.Caution]:
    if not repeated:
        return []
    message = f"{repeated:,} records have a label that another record has too. Whoever measures may mistake one for it."
    return [_caution("label_repeated", "dataset_id", message, "data", "Use another file")]


def _of_column(column: str, field: str, step: wire.DraftStep, facts: ColumnFacts) -> list[wire.Caution]:
    if facts.low == facts.high:
        message = f"{column}: the same in every record, so a search finds nothing in it."
        return [_caution("column_constant", field, message, step, "Choose another column", "high")]
    if facts.far and not facts.is_made:
        message = (
            f"{column}: {facts.far:,} of {facts.rows:,} values lie far from the rest. They may be of another unit, or "
            "stand for a gap. If so, correct the file, or name the cell as missing."
        )
        return [_caution("values_far", field, message, "data", "See the columns")]
    return []


def _caution(
    code: str, field: str, message: str, step: wire.DraftStep, words: str, level: wire.CautionLevel = "note"
) -> wire.Caution:
    fix = wire.CautionFix(step=step, words=words)
    return wire.Caution(code=code, field=field, message=message, level=level, fix=fix)
