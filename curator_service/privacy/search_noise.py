"""What the noise of a release and of answers does to a search, and which tool serves a draft: from public values."""

from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from math import exp, hypot, prod

from blindopt.answer_worth import FEW, carried, law_of
from blindopt.arrays import Matrix, Vector
from blindopt.gp.input_noise import declared_noise
from blindopt.wire import (
    Caution,
    ColumnMeasurement,
    Feature,
    ForecastPoint,
    GridCells,
    GroupsRelease,
    IdentityRelease,
    NoAnswerNoise,
    NoiseLaw,
    Price,
    PrivateCells,
    StudyCreate,
    Tool,
    amount,
    hides_one_feature,
)
from curator_service.privacy.search_simulation import rho, rho_of_box, rho_of_variances

CHANCE = 0.1
"""Below this rho no search was ahead of random records (docs/privacy.md, "How much noise a search bears")."""
CLEAR = 0.35
"""Above this rho nearly all were."""
_BESIDE = ("random_rows", "groups_at_once")
ONE_FEATURE_MIN, ONE_FEATURE_GAIN = 4, 0.1
"""Features from which the promise of one feature at a time is offered, and by how much rho has to rise."""
FEATURES_MAX = 20
"""Uniform rows say nothing of more features than this: those are mostly embeddings, which fill no box."""


def rho_of(
    features: list[Feature], law: NoiseLaw, columns: int, sample: Matrix | None = None, axes: Matrix | None = None
) -> float | None:
    """``rho`` of rows that are uniform in the declared box, or of a public ``sample``, by ``axes`` if there are any.

    None without noise, and where the box says nothing.
    """
    if declared_noise(law) is None:
        return None
    if sample is not None:
        return rho(sample, law, columns, axes)
    if len(features) > FEATURES_MAX:
        return None
    widths = tuple((feature.upper - feature.lower) / feature.unit for feature in features)
    return rho_of_box(widths, law.family, law.sd or 0.0, columns)


def diagonal(features: list[Feature], *, is_sum: bool = False) -> float:
    """The diagonal of the declared box, or the sum of its sides, in scaled units."""
    sides = [(feature.upper - feature.lower) / feature.unit for feature in features]
    return sum(sides) if is_sum else hypot(*sides)


def best_columns(rows: Matrix | Vector, axes: Matrix | None, laws: Mapping[int, NoiseLaw]) -> int:
    """The number of columns with the largest ``rho``, where ``laws`` has the noise for each number.

    Of public ``rows`` (n, d) along their ``axes`` (d, d); without axes, of rows with these variances (d,).
    """

    def of(r: int) -> float:
        return rho_of_variances(rows, laws[r], r) if axes is None else rho(rows, laws[r], r, axes[:, :r])

    return max(laws, key=of)


def in_words(value: float | None, spec: StudyCreate | None = None, points: Sequence[ForecastPoint] = ()) -> str | None:
    """What a rho means for a search, in one sentence for the owner; None for None.

    With ``points``, of a public forecast of the draft ``spec``, also what it finds at the draft's epsilon.
    """
    if value is None:
        return None
    forecast = None if spec is None else of_forecast(points, spec)
    return _of_rho(value) if forecast is None else f"{_of_rho(value)} {forecast}"


def of_forecast(points: Sequence[ForecastPoint], spec: StudyCreate) -> str | None:
    """What a forecast finds for the draft itself, in one sentence; None without it."""
    chance = next((point for point in points if point.mechanism == "random_rows"), None)
    own = own_point(points, spec)
    if own is None or chance is None:
        return None
    outcomes = " if outcomes are rough, middling and smooth" if len(chance.gaps) == 3 else ""
    about = f"Forecast of how many standard deviations the recommended record ends short of the best{outcomes}"
    beside = f"Random records: {_gaps(chance)}."
    if (once := own_point(points, spec.model_copy(update={"refine": None}))) not in (own, None):
        beside = f"Without second draws: {_gaps(once)}. {beside}"
    if (groups := _groups(points)) is not None:
        beside += f" Groups answered at once, for epsilon {groups.epsilon} of a record in total: {_gaps(groups)}."
    return f"{about}: {_gaps(own)} (better than random records: {own.better}). {beside}"


def _groups(points: Sequence[ForecastPoint]) -> ForecastPoint | None:
    """The point of groups that stand beside a search over records."""
    return next((point for point in points if point.mechanism == "groups_at_once"), None)


def _instead(points: Sequence[ForecastPoint], spec: StudyCreate) -> str:
    """What a forecast finds of groups in place of a draft of records, in one sentence; empty where that is no more."""
    own, groups = own_point(points, spec), _groups(points)
    if own is None or groups is None or any(a >= b for a, b in zip(groups.gaps, own.gaps, strict=True)):
        return ""
    total = f"for epsilon {groups.epsilon} of a record in total"
    return f" By the forecast groups answered at once, {total}, end nearer to the best record: take groups."


def own_point(points: Sequence[ForecastPoint], spec: StudyCreate) -> ForecastPoint | None:
    """The point of a forecast that is about the draft's own release and answers."""
    if isinstance(spec.release, GroupsRelease):
        return None
    own = [_amount(getattr(part, "epsilon", None)) for part in (spec.release, spec.answers, spec.refine)]
    levels = ([_amount(p.epsilon), _amount(p.answers_epsilon), _amount(p.refine_epsilon)] for p in points)
    pairs = zip(points, levels, strict=True)
    return next((p for p, level in pairs if level == own and p.mechanism not in _BESIDE), None)


def _amount(epsilon: str | None) -> Decimal | None:
    return None if epsilon is None else amount(epsilon)


def _gaps(point: ForecastPoint) -> str:
    *gaps, last = [f"{gap:.2g}" if gap >= 0.01 else "less than 0.01" for gap in point.gaps]
    return f"{', '.join(gaps)} and {last}" if gaps else last


def _of_rho(value: float) -> str:
    if value < CHANCE:
        meaning = "expect no better than random records"
    else:
        meaning = "a search can tell records apart" if value > CLEAR else "may be no better than random records"
        meaning += "" if value > CLEAR else ": look at the forecast"
    begins = f"After 50 exact answers the vendor's predictions correlate by {value:.2f} with the outcomes of others"
    return f"{begins}: {meaning}."


def of_study(spec: StudyCreate, value: float | None) -> list[Caution]:
    """A caution about noise in which a search finds no better than random records, from public values alone."""
    if value is None or value >= CHANCE or isinstance(spec.release, IdentityRelease):
        return []
    return [_caution(spec, _of_rho(value))]


def of_records(
    spec: StudyCreate, box: float | None, rows: Matrix, law: NoiseLaw, columns: int, axes: Matrix | None = None
) -> list[Caution]:
    """The same from the records, where the box does not show it: for the owner alone. ``rows``: some, scaled."""
    if declared_noise(law) is None or (box is not None and box < CHANCE) or isinstance(spec.release, IdentityRelease):
        return []
    if not rows.var(axis=0).any():
        message = "All of your records are alike in these features, so a search is no better than random records."
        return [Caution(code="noise_hides_search", field=field_of_delta(spec), message=f"{message} Choose others.")]
    if (value := rho(rows, law, columns, axes)) >= CHANCE:
        return []
    return [_caution(spec, f"Your records are harder to tell apart than the declared bounds suggest. {_of_rho(value)}")]


def of_answers(spec: StudyCreate, price: Price, points: Sequence[ForecastPoint]) -> list[Caution]:
    """A caution about answers, or a forecast, by which the vendor finds no better record than chance.

    ``price``: with the number of answers that the caps allow. ``points``: of a public forecast, if one has been made.
    """
    if isinstance(spec.release, GroupsRelease):
        return []
    law, count, messages = law_of(spec.answers), price.answers, []
    if law is not None and count is not None and law.worth(count) < FEW:
        messages.append(f"{carried(law, count)} Fewer than {FEW} find no better record than chance.")
    own = own_point(points, spec)
    # With private answers runs reach less than a forecast, whose vendor knows the kernel.
    alike = [own, *(own.by_lengthscale if law is not None else ())] if own is not None else []
    if any(point.better_than_chance is False for point in alike):
        messages.append("The forecast is no better than chance: records that are measured at random end as near.")
    if not messages:
        return []
    advice = "Use a larger epsilon, allow more measurements, or choose exact answers."
    if law is None:
        advice = "Allow more measurements, or take a release with less noise."
    return [
        Caution(
            code="answers_hide_search",
            field="budget.queries" if law is None else "answers.epsilon",
            message=f"{' '.join(messages)} {advice}",
            level="high",
        )
    ]


def tool(
    spec: StudyCreate,
    value: float | None,
    cautions: Sequence[Caution],
    n: int,
    *,
    is_public: bool,
    whole: Decimal | None = None,
    points: Sequence[ForecastPoint] = (),
    rho_of_one_feature: float | None = None,
) -> Tool:
    """What to use for a draft on ``n`` records, by the first rule that holds. ``value``: its rho.

    ``cautions``: of the draft, which may say that its answers hide the search. ``whole``: epsilon of a whole record by
    release and answers together, if these have a bound. ``points``: of a public forecast, if one has been made.
    ``rho_of_one_feature``: the rho with that promise, if the draft can have it.
    """
    d, of_column = len(spec.features), isinstance(spec.measurement, ColumnMeasurement)
    delta, cap = getattr(spec.release, "sensitivity", 0.0), spec.budget.queries
    is_exact = isinstance(spec.answers, NoAnswerNoise)
    figures = {} if value is None else {"rho": round(value, 3)}
    if of_column and is_exact and not is_public:
        return Tool(
            name="sort",
            why="You hold the outcome of every record, and send it exactly. Sort the column: that finds the best record"
            ", and needs no vendor.",
        )
    if isinstance(spec.release, GroupsRelease):
        cells = spec.release.cells
        if isinstance(cells, GridCells):
            count = prod(cells.parts)
        else:
            count = cells.number if isinstance(cells, PrivateCells) else len(cells.centres)
        why = (
            "A record is in one group, so answers about all groups use the epsilon of one answer. After the release, "
            "have every group answered at once (:answer_all): no search is needed."
        )
        if cap is not None and cap < count:
            why += f" The cap of {cap:,} measurements may be too low for up to {count:,} groups: take no cap."
        return Tool(name="groups_at_once", why=why, figures={"groups": count})
    if cap is not None and cap >= n and not of_column:
        why = f"The cap of {cap:,} measurements is enough to measure each of the {n:,} records."
        return Tool(name="measure_all", why=why, figures={"records": n, "queries": cap})
    besides = ""
    if of_column and not is_exact and not is_public:
        besides = " You hold the outcome of every record, so you could also sort the column yourself."
    besides += _instead(points, spec)
    if (
        delta
        and delta >= diagonal(spec.features, is_sum=hides_one_feature(spec.release)) * (1 - 1e-9)
        and whole is not None
    ):
        share = exp(min(float(whole), 100.0)) / n + (getattr(spec.release, "delta", None) or 0.0)
        if (shown := Context(prec=2, rounding=ROUND_CEILING).create_decimal_from_float(share)) < 1:
            why = (
                f"Release and answers hide a whole record at epsilon {float(whole):.3g}. By Theorem T no mechanism "
                f"then names a single good one of {n:,} records with a probability above {shown:f}. Look for the best "
                f"group, or hide a smaller change.{besides}"
            )
            return Tool(name="not_useful", why=why, figures={"probability": share})
    hints = []
    named = any(getattr(spec.release, name, None) for name in ("sample_dataset_id", "radius"))
    if d > FEATURES_MAX and not named and not hides_one_feature(spec.release):
        hints.append(
            "Name a public sample of the same kind: the few axes that hold most of its variance need far less noise. "
            "Or bound the length of a record (radius): the axes are found in the records, privately."
        )
    elif d >= ONE_FEATURE_MIN and value is not None:
        hints.append(f"Choose fewer features{'' if hides_one_feature(spec.release) else ': each adds noise to all'}.")
        if rho_of_one_feature is not None and rho_of_one_feature - value >= ONE_FEATURE_GAIN:
            hints.insert(
                0,
                "If one feature at a time is what you want to hide, take that promise (promise: one_feature): the "
                f"correlation would be {rho_of_one_feature:.2f} in place of {value:.2f}.",
            )
    if value is not None and value < CHANCE:
        why = f"{_of_rho(value)} Use more epsilon, hide smaller changes, or choose fewer features.{besides}"
        return Tool(name="not_useful", why=why, figures=figures, hints=hints[:-1])
    if any(caution.code == "answers_hide_search" for caution in cautions):
        why = "The vendor would find no better record than chance. The caution about the answers says why."
        return Tool(name="not_useful", why=f"{why}{besides}", figures=figures)
    why = "What the noise does to a search in so many features is unknown: make a forecast on a public sample."
    if value is not None:
        why = _of_rho(value)
    elif isinstance(spec.release, IdentityRelease):
        why = "The candidates have no noise, so a search can tell records apart."
    why += besides
    return Tool(name="search", why=why, figures=figures, hints=hints)


def field_of_delta(spec: StudyCreate) -> str:
    """The field of a draft that says which changes are hidden: that of the first feature that states it, or Delta."""
    stated = (i for i, feature in enumerate(spec.features) if feature.hidden_change is not None)
    return next((f"features.{i}.hidden_change" for i in stated), "release.sensitivity")


def _caution(spec: StudyCreate, says: str) -> Caution:
    advice = "Hide smaller changes, from public knowledge, take a larger epsilon, or fewer features."
    return Caution(code="noise_hides_search", field=field_of_delta(spec), message=f"{says} {advice}")
