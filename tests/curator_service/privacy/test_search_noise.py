"""What noise does to a search: the ratio by simulation, and the cautions at their thresholds."""

from decimal import Decimal

import numpy as np
import pytest

from blindopt import wire
from blindopt.client.reports import Forecast
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy import search_noise
from curator_service.privacy.search_noise import CHANCE, CHANCE_OF_RECORDS, CLEAR
from curator_service.releases.mechanisms.registry import choice_of
from tests.builders import a_study


def study(features, **release):
    return a_study(wire.AutoRelease(**({"epsilon": "1"} | release)), features=features)


def ratio_of(spec):
    mechanism, d = choice_of(spec).mechanism, len(spec.features)
    return search_noise.of_box(spec.features, mechanism.noise(d).sd, mechanism.columns(d))


BOX = [
    wire.Feature(column="a", lower=0.0, upper=20.0, hidden_change=1.0),
    wire.Feature(column="b", lower=-3.0, upper=5.0),
]


def test_the_ratio_is_that_of_drawn_noise_to_drawn_points():
    """20,000 points in the box: their distances, and those of rows from their rows of Z, in scaled units."""
    spec, rng = study(BOX), np.random.default_rng(3)
    mechanism = choice_of(spec).mechanism
    x = rng.uniform([0.0, -3.0], [20.0, 5.0], size=(20_000, 2))
    rows, z = ScaledRows(x, [0, 1], BOX, np.arange(len(x))), np.empty((len(x), 2))
    mechanism.draw(rows, z)
    scaled = np.vstack([block for _, block in rows.blocks()])
    moved = np.sqrt(((z - scaled) ** 2).sum(axis=1).mean())
    apart = np.sqrt(((scaled[:10_000] - scaled[10_000:]) ** 2).sum(axis=1).mean())
    assert ratio_of(spec) == pytest.approx(moved / apart, rel=0.04)
    pairs = ((scaled[:200, None] - scaled[None, :200]) ** 2).sum(axis=2).mean()
    small = ScaledRows(x[:200], [0, 1], BOX, np.arange(200))
    assert small.rms_distance() == pytest.approx(np.sqrt(pairs), rel=1e-9)


def test_the_ratio_is_to_the_sides_of_the_box_in_scaled_units():
    """Sides of 6 and 8 scaled units, a diagonal of 10; noise of 2 in each of three columns."""
    box = [
        wire.Feature(column="a", lower=5.0, upper=8.0, scale=0.5),
        wire.Feature(column="b", lower=-1.0, upper=15.0, scale=2.0),
    ]
    assert search_noise.of_box(box, 2.0, 3) == pytest.approx(2 * 3**0.5 / (10 / 6**0.5), rel=1e-12)


def test_the_ratio_does_not_depend_on_the_unit():
    """What is hidden as one unit, or as a share of a scale, is the same promise and the same noise."""
    stated = [wire.Feature(column=c, lower=0.0, upper=10.0, hidden_change=2.0) for c in "ab"]
    scaled = [wire.Feature(column=c, lower=0.0, upper=10.0, scale=4.0) for c in "ab"]
    by_default = [wire.Feature(column=c, lower=0.0, upper=10.0) for c in "ab"]
    ratios = [
        ratio_of(study(stated)),
        ratio_of(study(scaled, sensitivity=0.5)),
        ratio_of(study(by_default, sensitivity=0.2)),
    ]
    assert ratios == pytest.approx([np.sqrt(6 * 3) / 5] * 3, rel=1e-9)
    assert ratio_of(study(by_default)) == pytest.approx(np.sqrt(6 * 3), rel=1e-9)  # the default hides the whole range
    identity = study(stated).model_copy(update={"release": wire.IdentityRelease(mechanism="identity")})
    assert ratio_of(identity) is None
    assert search_noise.in_words(None) is None


def test_the_sentence_follows_the_thresholds():
    says = {ratio: search_noise.in_words(ratio) for ratio in (CHANCE, CHANCE - 0.01, CLEAR + 0.01, CLEAR)}
    assert says[CHANCE].startswith(
        "Noise moves a record 1.4 times as far as two points of the declared box are apart: "
    )
    ends = ["no better than random records.", "a much worse search.", "a much worse search.", "tell records apart."]
    assert all(text.endswith(end) for text, end in zip(says.values(), ends, strict=True))


def test_noise_that_hides_the_search_is_a_caution_at_the_field_that_sets_it():
    for spec, field in ((study(BOX), "features.0.hidden_change"), (study([BOX[1]]), "release.sensitivity")):
        (caution,) = search_noise.of_study(spec, CHANCE)
        assert (caution.code, caution.field) == ("noise_hides_search", field)
        assert caution.message.startswith(search_noise.in_words(CHANCE))
        assert search_noise.of_study(spec, CHANCE - 0.01) == search_noise.of_study(spec, None) == []


def test_records_that_lie_closer_than_their_box_are_a_caution_for_the_owner():
    spec = study([wire.Feature(column="a", lower=0.0, upper=6**0.5)])  # the diagonal is 1 unit, the distance 6^-1/2
    apart = 1 / 6**0.5
    near = CHANCE_OF_RECORDS / 1.0
    assert search_noise.of_records(spec, 1.0, apart / (near * 0.99)) == []
    (caution,) = search_noise.of_records(spec, 1.0, apart / (near * 1.01))
    assert "of your records" in caution.message
    assert "larger epsilon" in caution.message
    assert len(search_noise.of_records(spec, 1.0, 0.0)) == 1
    exactly = study([wire.Feature(column="a", lower=0.0, upper=6**0.5, scale=1.0)])  # the distance in the box is 1
    assert len(search_noise.of_records(exactly, 1.1, 0.5)) == 1
    assert search_noise.of_records(exactly, 1.1, 0.5 + 1e-9) == []
    assert search_noise.of_records(spec, CHANCE, 0.0) == []  # the box shows it already
    assert search_noise.of_records(spec, None, 0.0) == []


def test_records_that_are_all_alike_are_said_to_be_so():
    """Found by hand: of a constant column the page said that noise moves a record inf times as far."""
    spec = study(BOX)
    (caution,) = search_noise.of_records(spec, 0.5, 0.0)
    assert (caution.code, caution.field) == ("noise_hides_search", search_noise.field_of_delta(spec))
    assert caution.message.startswith("All of your records are alike in these features")


def points_of(*levels):
    """Points of a forecast: level, gap, and whether it beats chance; random records end 0.4 short."""
    rest = {"runs_as": "auto", "noise_sd": None, "distance_error": None, "low": 0, "high": 1}
    made = [
        wire.ForecastPoint(mechanism="auto", epsilon=e, regret=r, better_than_chance=b, **rest) for e, r, b in levels
    ]
    return [wire.ForecastPoint(mechanism="random_rows", epsilon=None, regret=0.4, **rest), *made]


@pytest.mark.parametrize(
    ("epsilon", "levels"),
    [
        ("2", "0.3 at epsilon 2 (no)"),
        ("1.5", "0.39 at epsilon 1 (no), 0.3 at epsilon 2 (no)"),
        ("9", "less than 0.01 at epsilon 8 (yes)"),
        ("0.1", "0.39 at epsilon 1 (no)"),
        ("3", "0.3 at epsilon 2 (no), less than 0.01 at epsilon 8 (yes)"),
    ],
)
def test_a_forecast_is_read_at_the_levels_beside_epsilon(epsilon, levels):
    points = points_of(("1", 0.39, False), ("2", 0.3, False), ("8", 0.001, True))
    said = search_noise.of_forecast(points, Decimal(epsilon))
    levels = levels.replace("(", "(better than random records: ")
    about = "Forecast of how many standard deviations a search ends short of the best record"
    assert said == f"{about}: {levels}. Random records: 0.4."
    assert search_noise.of_forecast([], Decimal(epsilon)) is None


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ((True, True, True), "yes"),
        ((False, True, True), "only if outcomes are smooth"),
        ((False, False, True), "only if outcomes are smooth"),
        ((True, False, False), "only if outcomes are rough"),
        ((False, True, False), "only if outcomes are neither rough nor smooth"),
        ((False, False, False), "no"),
    ],
)
def test_rough_middle_and_smooth_stand_together(flags, word):
    """Control: the middle one alone is not told from all three."""

    def point(**more):
        about = {"runs_as": "auto", "noise_sd": None, "distance_error": None, "low": 0, "high": 1, "regret": 0.3}
        at = {"lengthscale": 1.0, "low": 0, "high": 1}
        ends = zip((0.5, 0.3, 0.1), more.pop("flags"), strict=True)
        parts = [wire.LengthscaleRegret(**at, regret=gap, better_than_chance=flag) for gap, flag in ends]
        return wire.ForecastPoint(**about, **more, by_lengthscale=parts)

    points = [
        point(mechanism="random_rows", epsilon=None, flags=(None,) * 3),
        point(mechanism="auto", epsilon="1", flags=flags, better_than_chance=flags[1]),
    ]
    assert search_noise.of_forecast(points, Decimal(1)) == (
        "Forecast of how many standard deviations a search ends short of the best record if outcomes are rough, "
        f"middling and smooth: 0.5, 0.3 and 0.1 at epsilon 1 (better than random records: {word}). "
        "Random records: 0.5, 0.3 and 0.1."
    )
    shown = Forecast.model_construct(points=points)._repr_html_()
    for part in ("Rough", "Smooth", "0.5", "0.1", word):
        assert part in shown
    assert points[0].better is None


def test_without_random_records_or_without_a_level_nothing_is_said_of_a_forecast():
    points = points_of(("1", 0.01, True))
    assert ": 0.01 at epsilon 1 (" in search_noise.of_forecast(points, Decimal(1))
    assert search_noise.of_forecast(points[1:], Decimal(1)) is None
    assert search_noise.of_forecast(points[:1], Decimal(1)) is None


def test_a_forecast_follows_the_sentence_of_a_draft_at_its_own_epsilon():
    points, ratio = points_of(("1", 0.39, False), ("2", 0.3, False)), search_noise.in_words(0.7)
    spec = study(BOX, epsilon="2")
    said = search_noise.in_words(0.7, spec, points)
    assert said == f"{ratio} {search_noise.of_forecast(points, Decimal(2))}"
    assert ": 0.3 at epsilon 2 (" in said
    identity = spec.model_copy(update={"release": wire.IdentityRelease(mechanism="identity")})
    assert search_noise.in_words(0.7, spec) == search_noise.in_words(0.7, identity, points) == ratio
