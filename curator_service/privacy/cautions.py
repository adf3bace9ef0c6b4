"""Cautions about a draft, from public values alone: its specification and the number of rows.

Those of ``of_bounds``, and of facts about the records at the end, follow from the values of the records: for the owner
alone, never logged and never stored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import exp, hypot, lgamma, log, pi, sqrt, ulp

from blindopt import wire
from curator_service.privacy import answers, search_noise
from curator_service.privacy.calibration import Concrete, failure
from curator_service.privacy.prices import answers_add_up

EPSILON_LARGE = Decimal(10)
RECORDS_MIN = 10
PUBLISHED_LARGE = 0.01
"""The number of records, delta times n, that a mechanism with this delta may publish on average."""
_HIGH = {"epsilon_large", "delta_large", "no_cap", "row_epsilon_large", "noise_hides_search", "groups_small"}
_STEPS: dict[str, wire.DraftStep] = {
    "dataset_id": "data", "features": "features", "measurement": "measurement", "answers": "answers",
    "privacy_unit": "answers", "budget": "answers",
}  # fmt: skip
_WORDS: dict[wire.DraftStep, str] = {
    "data": "Use another dataset", "features": "Change the bounds", "measurement": "Change the outcome",
    "release": "Change the release", "answers": "Change answers and limits",
}  # fmt: skip


def with_fix(caution: wire.Caution) -> wire.Caution:
    """A caution about a draft with its level, and with the step that mends it, unless it has one."""
    level: wire.CautionLevel = "high" if caution.code in _HIGH else caution.level
    head = "release" if caution.field.endswith("hidden_change") else caution.field.partition(".")[0]
    step = _STEPS.get(head, "release")
    fix = caution.fix or wire.CautionFix(step=step, words=_WORDS[step])
    return caution.model_copy(update={"level": level, "fix": fix})


def of_study(
    spec: wire.StudyCreate,
    release: Concrete,
    price: wire.Price,
    *,
    n: int,
    is_public: bool,
    rho: float | None = None,
    points: Sequence[wire.ForecastPoint] = (),
) -> list[wire.Caution]:
    """The cautions about a draft on ``n`` rows. ``release``: the one that would run; ``price``: what it would cost.

    ``rho``: of the declared box, as in ``search_noise``; ``points``: of a public forecast, if one has been made. A
    dataset that is declared public has none: nobody in it needs protection. Those about use are of each dataset.
    """
    useful = of_use(spec, n)
    if is_public:
        return [*map(with_fix, useful)]
    of_release = [*_of_release(spec, release, n), *search_noise.of_study(spec, rho)]
    hidden = search_noise.of_answers(spec, price, points)
    return [*map(with_fix, [*of_release, *_of_answers(spec), *hidden, *_of_caps(spec, price), *useful])]


def of_use(spec: wire.StudyCreate, n: int) -> list[wire.Caution]:
    """Cautions about a study that cannot work: too few records, or answers that do not reach the outcomes."""
    cautions = []
    if n < RECORDS_MIN:
        count = "1 record" if n == 1 else f"{n} records"
        message = f"The study has {count}. A search needs at least {RECORDS_MIN}."
        fix = wire.CautionFix(step="data", words="Use another dataset")
        cautions.append(wire.Caution(code="few_records", field="dataset_id", message=message, level="high", fix=fix))
    measured = spec.measurement
    if isinstance(measured, wire.ColumnMeasurement) or measured.lower is None or measured.upper is None:
        return cautions
    ends = answer_range(spec)
    if ends is not None and (measured.lower < ends[0] or measured.upper > ends[1]):
        message = (
            f"Outcomes are declared from {measured.lower:.6g} to {measured.upper:.6g}, and answers cover "
            f"{ends[0]:.6g} to {ends[1]:.6g}. Answers take outcomes beyond for the nearer end."
        )
        declared = [measured.lower, measured.upper]
        words = f"Use {measured.lower:.6g} to {measured.upper:.6g}"
        fix = wire.CautionFix(step="answers", words=words, use=declared)
        field = "answers.value_bound"
        cautions.append(wire.Caution(code="answers_miss_outcomes", field=field, message=message, fix=fix))
    return cautions


def of_released(
    spec: wire.StudyCreate, accepted: Sequence[wire.Caution], price: wire.Price, *, is_public: bool
) -> list[wire.Caution]:
    """The cautions ``accepted`` with a release, and those about its caps of now in place of those of then."""
    now = [] if is_public else [*map(with_fix, _of_caps(spec, price))]
    then = {"no_cap", "row_epsilon_large"} if now else set()
    return [*(caution for caution in accepted if caution.code not in then), *now]


def of_epsilon(field: str, epsilon: Decimal) -> list[wire.Caution]:
    """A caution about an epsilon above 10, of a release, of answers, or of a tuning."""
    if epsilon <= EPSILON_LARGE:
        return []
    message = (
        f"epsilon is {epsilon}: the promise allows an event to be e^{epsilon} times as probable because of one record, "
        f"which rules out next to nothing. Take {EPSILON_LARGE} or less; 1 is a strong promise."
    )
    return [wire.Caution(code="epsilon_large", field=field, message=message)]


def of_delta(field: str, delta: float, n: int) -> list[wire.Caution]:
    """A caution about a delta of 0.01 / n or more: publishing each record with that probability would keep it."""
    if delta * n < PUBLISHED_LARGE:
        return []
    message = (
        f"delta is {delta:g}, and the dataset has {n:,} records. A program that publishes each record whole with "
        f"probability delta keeps this promise, and publishes {delta * n:.2g} records on average. Take less than "
        f"{PUBLISHED_LARGE / n:.1g}."
    )
    return [wire.Caution(code="delta_large", field=field, message=message)]


def _of_release(spec: wire.StudyCreate, release: Concrete, n: int) -> list[wire.Caution]:
    if isinstance(release, wire.IdentityRelease | wire.PoGpUcbRelease):
        return []  # which promise nothing; the study says so
    cautions = of_epsilon("release.epsilon", wire.amount(release.epsilon))
    if delta := failure(release):
        cautions += of_delta("release.delta", delta, n)
    if isinstance(release, wire.GroupsRelease):
        return [*cautions, *_of_groups(spec, release)]
    is_sum = wire.hides_one_feature(release)
    if n > 1 and release.sensitivity < (spacing := mean_spacing(spec.features, n, is_sum=is_sum)):
        field = search_noise.field_of_delta(spec)
        if field == "release.sensitivity":
            far, what = (
                f"{spacing:.3g} scaled units",
                f"The hidden change is {release.sensitivity:g}. Take a larger one",
            )
        else:
            far, what = f"{spacing:.3g} times the hidden change", "Hide larger changes"
        message = (
            f"If {n:,} records were spread evenly over the declared bounds, the nearest other record would be {far} "
            f"away, on average: the release need not make two records so close look alike. {what}, from public "
            "knowledge."
        )
        cautions.append(wire.Caution(code="sensitivity_small", field=field, message=message))
    return cautions


def _of_groups(spec: wire.StudyCreate, release: wire.GroupsRelease) -> list[wire.Caution]:
    """A caution about groups that may be so small that their answers are noise."""
    if isinstance(spec.answers, wire.NoAnswerNoise):
        return []
    k = spec.protected_rows
    noise = sqrt(2) * 2 * k / float(wire.amount(spec.answers.epsilon)) / release.min_count
    if noise < 1:
        return []
    message = (
        f"In a group of {release.min_count} records the noise of an answer has a standard deviation of {noise:.2g} C, "
        "and outcomes lie within C of their centre, so an answer says next to nothing. Leave out more groups, take "
        "fewer groups, or a larger epsilon."
    )
    return [wire.Caution(code="groups_small", field="release.min_count", message=message)]


def of_categories(spec: wire.StudyCreate, one_hot: Mapping[str, Sequence[str]]) -> list[wire.Caution]:
    """Cautions about changes of a category that Delta does not hide. ``one_hot``: by column, those made from it.

    Another category moves two of them by 1 each, so a record by sqrt(1 / u^2 + 1 / v^2) scaled units, for the two
    smallest of their units; by 1 / u where one of them is a feature. With the promise of one feature at a time by
    1 / u + 1 / v.
    """
    is_sum = wire.hides_one_feature(spec.release)
    least = "2" if is_sum else "1.42, the square root of 2,"
    delta, cautions = getattr(spec.release, "sensitivity", None), []
    for column, made in one_hot.items():
        used = [i for i, feature in enumerate(spec.features) if feature.column in made]
        if delta is None or not used:
            continue
        units = sorted(spec.features[i].unit for i in used)[:2]
        moves = [1 / unit for unit in units]
        if (moved := sum(moves) if is_sum else hypot(*moves)) > delta:
            message = (
                f"Another category of {column} moves a record by {moved:.3g} in scaled units, and changes up to "
                f"{delta:g} are hidden, so the category of a record is not. To hide it, state a hidden change of "
                f"{least} or more for each of its columns."
            )
            field, fix = f"features.{used[0]}", wire.CautionFix(step="release", words=_WORDS["release"])
            cautions.append(wire.Caution(code="category_not_hidden", field=field, message=message, fix=fix))
    return cautions


def mean_spacing(features: list[wire.Feature], n: int, *, is_sum: bool = False) -> float:
    """Mean distance of a uniform row from the nearest of n - 1 others, n > 1, in the declared box, in scaled units.

    Euclidean, or with ``is_sum`` added up over the features.
    Gamma(1 + 1/d) (V / ((n - 1) v_d))^(1/d), with V the volume of the box and v_d that of the unit ball: the mean of
    a Poisson process of the same density (Clark & Evans 1954, for d = 2). Near the faces of the box it is more.
    """
    d = len(features)
    log_volume = sum(log((feature.upper - feature.lower) / feature.unit) for feature in features)
    log_ball = d * log(2) - lgamma(d + 1) if is_sum else d / 2 * log(pi) - lgamma(d / 2 + 1)
    return exp(lgamma(1 + 1 / d) + (log_volume - log(n - 1) - log_ball) / d)


def _of_answers(spec: wire.StudyCreate) -> list[wire.Caution]:
    if isinstance(spec.answers, wire.NoAnswerNoise):
        message = (
            "The vendor receives the exact outcome of every record that it queries, and no epsilon bounds this. Choose "
            "answers with noise."
        )
        return [wire.Caution(code="exact_answers", field="answers.mechanism", message=message)]
    return of_epsilon("answers.epsilon", wire.amount(spec.answers.epsilon))


def _of_caps(spec: wire.StudyCreate, price: wire.Price) -> list[wire.Caution]:
    """A caution about answers that no cap ends, or about caps that let one record lose more than epsilon 10."""
    if price.answers_per_row is None and price.answers is None:
        exact = isinstance(spec.answers, wire.NoAnswerNoise)
        field = "budget.queries" if exact or not answers_add_up(spec) else "budget.epsilon_per_row"
        message = (
            "No cap limits the answers, so a vendor may query without end"
            + ("." if exact or not answers_add_up(spec) else ", and so learn each outcome as precisely as it likes.")
            + " Set a cap."
        )
        return [wire.Caution(code="no_cap", field=field, message=message)]
    if price.row_epsilon is None or wire.amount(price.row_epsilon) <= EPSILON_LARGE:
        return []
    message = (
        f"Under these caps one record may use epsilon {price.row_epsilon} in total, by the release and its answers. "
        f"Set a cap of {EPSILON_LARGE} or less on epsilon per record."
    )
    return [wire.Caution(code="row_epsilon_large", field="budget.epsilon_per_row", message=message)]


Extremes = Mapping[str, tuple[float, float]]
"""The smallest and the largest value of each column."""
_ULPS = 4
"""How far rounding may bring a centre and a bound, which somebody computed from two extremes, away from these."""


def of_bounds(spec: wire.StudyCreate, extremes: Extremes) -> list[wire.Caution]:
    """Cautions about bounds that are the extremes of their columns, to the last digit.

    They were most likely computed from the records, and then tell about the two records at the ends.
    """
    cautions = []
    for index, feature in enumerate(spec.features):
        if feature.column not in extremes:  # its bounds follow from a public list
            continue
        smallest, largest = extremes[feature.column]
        ends = [("smallest", smallest)] * (feature.lower == smallest) + [("largest", largest)] * (
            feature.upper == largest
        )
        field = f"features.{index}.{'lower' if feature.lower == smallest else 'upper'}"
        cautions += _of_extremes(field, feature.column, ends)
    measurement, answers = spec.measurement, spec.answers
    if isinstance(answers, wire.NoAnswerNoise) or not isinstance(measurement, wire.ColumnMeasurement):
        return cautions
    if measurement.column not in extremes:
        return cautions
    smallest, largest = extremes[measurement.column]
    bounds = {answers.value_bound, answers.bound}
    rounding = _ULPS * ulp(max(abs(answers.centre), answers.bound))
    at_low = any(abs(answers.centre - bound - smallest) <= rounding for bound in bounds)
    at_high = any(abs(answers.centre + bound - largest) <= rounding for bound in bounds)
    ends = [("smallest", smallest)] * at_low + [("largest", largest)] * at_high
    return cautions + _of_extremes("answers.value_bound", measurement.column, ends)


def _of_extremes(field: str, column: str, ends: Sequence[tuple[str, float]]) -> list[wire.Caution]:
    """A caution about the ends of one column that are bounds; none without any."""
    if not ends:
        return []
    exactly = " and ".join(f"{value!r} is exactly the {extreme}" for extreme, value in ends)
    message = (
        f"{column}: {exactly} value of the column. A bound that is computed from the records reveals the record at "
        "that end, and no promise covers it. If the bound is public knowledge, such as 0 for a count, nothing is wrong."
    )
    return [wire.Caution(code="bound_is_extreme", field=field, message=message)]


# --- from the records -----------------------------------------------------------------------------------

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
