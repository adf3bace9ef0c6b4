"""Cautions that follow from the values of the records: for the owner alone, never logged and never stored."""

from collections.abc import Mapping
from math import ulp

from blindopt.wire import Caution, ColumnMeasurement, NoAnswerNoise, StudyCreate

Extremes = Mapping[str, tuple[float, float]]
"""The smallest and the largest value of each column."""
_ULPS = 4
"""How far rounding may bring a centre and a bound, which somebody computed from two extremes, away from these."""


def of_bounds(spec: StudyCreate, extremes: Extremes) -> list[Caution]:
    """Cautions about bounds that are the extremes of their columns, to the last digit.

    They were most likely computed from the records, and then tell about the two records at the ends.
    """
    cautions = []
    for index, feature in enumerate(spec.features):
        smallest, largest = extremes[feature.column]
        field = f"features.{index}"
        if feature.lower == smallest:
            cautions.append(_caution(f"{field}.lower", feature.lower, "smallest"))
        if feature.upper == largest:
            cautions.append(_caution(f"{field}.upper", feature.upper, "largest"))
    measurement, answers = spec.measurement, spec.answers
    if isinstance(answers, NoAnswerNoise) or not isinstance(measurement, ColumnMeasurement):
        return cautions
    smallest, largest = extremes[measurement.column]
    bounds = {answers.value_bound, answers.bound}
    rounding = _ULPS * ulp(max(abs(answers.centre), answers.bound))
    if any(abs(answers.centre - bound - smallest) <= rounding for bound in bounds):
        cautions.append(_caution("answers.value_bound", smallest, "smallest"))
    if any(abs(answers.centre + bound - largest) <= rounding for bound in bounds):
        cautions.append(_caution("answers.value_bound", largest, "largest"))
    return cautions


def _caution(field: str, value: float, extreme: str) -> Caution:
    message = (
        f"{value!r} is exactly the {extreme} value of the column. A bound that is computed from the records reveals "
        "the record at that end, and no promise covers it. Take a bound from public knowledge; if this one is, "
        "such as 0 for a count, nothing is wrong."
    )
    return Caution(code="bound_is_extreme", field=field, message=message)
