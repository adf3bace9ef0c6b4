"""What the noise of a release does to a search on it: how far it moves a record, against how far two are apart."""

from collections.abc import Sequence
from decimal import Decimal
from math import hypot, sqrt

from blindopt.wire import Caution, Feature, ForecastPoint, IdentityRelease, StudyCreate, amount

CHANCE = 1.4
"""From this ratio on, to the declared box, expected improvement on two real tables was no better than random records
(docs/privacy.md, "How much noise a search bears")."""
CHANCE_OF_RECORDS = 2.2
"""The same against the records themselves, which lie closer together than their bounds allow."""
CLEAR = 0.5
"""Up to this ratio it was better by far on both."""


def of_box(features: list[Feature], noise_sd: float | None, columns: int) -> float | None:
    """The ratio for two points uniform in the declared box; None without noise.

    How far noise of ``noise_sd`` per coordinate moves a row of ``columns`` coordinates, over the distance of two
    points, both root mean squares in scaled units. That distance is sqrt(1/6) of the box's diagonal; a projection keeps
    it, on average.
    """
    return None if noise_sd is None else noise_sd * sqrt(columns) / _apart(features)


def diagonal(features: list[Feature]) -> float:
    """The diagonal of the declared box, in scaled units."""
    return hypot(*((feature.upper - feature.lower) / feature.unit for feature in features))


def _apart(features: list[Feature]) -> float:
    return diagonal(features) / sqrt(6)


def in_words(ratio: float | None, spec: StudyCreate | None = None, points: Sequence[ForecastPoint] = ()) -> str | None:
    """What a ratio to the declared box means for a search, in one sentence for the owner; None without noise.

    With ``points``, of a public forecast of the draft ``spec``, also what it finds at the draft's epsilon.
    """
    if ratio is None:
        return None
    said = _of_ratio(ratio)
    if spec is None or isinstance(spec.release, IdentityRelease):
        return said
    forecast = of_forecast(points, amount(spec.release.epsilon))
    return said if forecast is None else f"{said} {forecast}"


def of_forecast(points: Sequence[ForecastPoint], epsilon: Decimal) -> str | None:
    """What a forecast finds at ``epsilon``, or at the levels on both sides of it, in one sentence; None without one."""
    levels = {amount(point.epsilon): point for point in points if point.epsilon is not None}
    near = {
        max((e for e in levels if e <= epsilon), default=None),
        min((e for e in levels if e >= epsilon), default=None),
    }
    near_points = [levels[e] for e in sorted(e for e in near if e is not None)]
    chance = next((point for point in points if point.mechanism == "random_rows"), None)
    if not near_points or chance is None:
        return None
    outcomes = " if outcomes are rough, middling and smooth" if len(chance.gaps) == 3 else ""
    about = f"Forecast of how many standard deviations a search ends short of the best record{outcomes}"
    better = "better than random records"
    ends = [f"{_gaps(p)} at epsilon {p.epsilon} ({better}: {p.better or 'unknown'})" for p in near_points]
    return f"{about}: {', '.join(ends)}. Random records: {_gaps(chance)}."


def _gaps(point: ForecastPoint) -> str:
    *gaps, last = [f"{gap:.2g}" if gap >= 0.01 else "less than 0.01" for gap in point.gaps]
    return f"{', '.join(gaps)} and {last}" if gaps else last


def _of_ratio(ratio: float) -> str:
    if ratio >= CHANCE:
        meaning = "expect a search to be no better than random records"
    else:
        meaning = "a search can tell records apart" if ratio <= CLEAR else "expect a much worse search"
    return f"Noise moves a record {ratio:.2g} times as far as two points of the declared box are apart: {meaning}."


def of_study(spec: StudyCreate, ratio: float | None) -> list[Caution]:
    """A caution about noise in which a search finds no better than random records, from public values alone."""
    if ratio is None or ratio < CHANCE or isinstance(spec.release, IdentityRelease):
        return []
    return [_caution(spec, _of_ratio(ratio))]


def of_records(spec: StudyCreate, box: float | None, distance: float) -> list[Caution]:
    """The same from the records, where the box does not show it: for the owner alone.

    ``box``: the ratio to the declared box. ``distance``: root mean square distance of two records, in scaled units.
    """
    if box is None or box >= CHANCE or isinstance(spec.release, IdentityRelease):
        return []
    if distance == 0:
        message = "All of your records are alike in these features, so a search is no better than random records."
        return [Caution(code="noise_hides_search", field=field_of_delta(spec), message=f"{message} Choose others.")]
    ratio = box * _apart(spec.features) / distance
    if ratio < CHANCE_OF_RECORDS:
        return []
    says = f"Noise moves a record {ratio:.2g} times as far as two of your records are apart: expect a search to be "
    return [_caution(spec, f"{says}no better than random records.")]


def field_of_delta(spec: StudyCreate) -> str:
    """The field of a draft that says which changes are hidden: that of the first feature that states it, or Delta."""
    stated = (i for i, feature in enumerate(spec.features) if feature.hidden_change is not None)
    return next((f"features.{i}.hidden_change" for i in stated), "release.sensitivity")


def _caution(spec: StudyCreate, says: str) -> Caution:
    advice = "Hide smaller changes, from public knowledge, take a larger epsilon, or fewer features."
    return Caution(code="noise_hides_search", field=field_of_delta(spec), message=f"{says} {advice}")
