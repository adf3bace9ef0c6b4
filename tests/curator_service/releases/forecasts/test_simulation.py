"""The whole simulation: yardsticks that are known, noise that costs, functions that all mechanisms share."""

from decimal import Decimal

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import Invalid
from blindopt.gp.kernels import SquaredExponential
from curator_service.privacy import noise
from curator_service.releases.forecasts.simulation import chance_regret, draw_functions, outcome_variance, simulate
from tests.curator_service.seeded_noise import seed_gaussian_releases
from tests.scale import scaled


def _run(study, rows, *, seed=1, on_progress=lambda share: None, **forecast):
    points = simulate(
        study, wire.ForecastCreate(**({"rows": "records"} | forecast)), rows, seed=seed, on_progress=on_progress
    )
    return {(point.mechanism, point.epsilon): point for point in points}


GAUSSIAN = {"mechanisms": ["gaussian"]}


@pytest.fixture(scope="module")
def wide(study_of, rows_of):
    """300 rows, 60 functions, 40 queries, at a level without use, one between, and one without cost.

    The releases are seeded: a mean regret of 60 functions is what is compared, with others that are as noisy.
    """
    shares = []
    with pytest.MonkeyPatch.context() as patched:
        seed_gaussian_releases(patched, 7)
        points = _run(
            study_of(),
            rows_of(300),
            on_progress=shares.append,
            epsilons=["0.01", "1.5", "1000"],
            functions=scaled(60),
            queries=40,
            **GAUSSIAN,
        )
    return points, shares


@pytest.mark.slow(
    sibling="test_group_forecasts.py::test_much_noise_is_as_bad_as_chance_and_almost_none_as_good_as_no_privacy"
)
def test_almost_all_noise_is_as_bad_as_chance_and_almost_none_as_good_as_the_rows(wide):
    points, _ = wide
    identity, chance = points["identity", None], points["random_rows", None]
    useless, between, free = (points["gaussian", level] for level in ("0.01", "1.5", "1000"))
    assert identity.high < 0.06 < 0.25 < chance.low
    # Over releases, the mean regret has a standard deviation of 0.033 (useless), 0.027 (some) and 0.0035 (free),
    # around 0.37, 0.18 and 0.025; chance is at 0.35.
    assert abs(useless.regret - chance.regret) < 0.19
    assert abs(free.regret - identity.regret) < 0.03
    assert between.regret > 0.05 > free.regret
    assert useless.noise_sd > between.noise_sd > free.noise_sd
    verdicts = [point.better_than_chance for point in (identity, chance, useless, free)]
    assert verdicts == [True, None, False, True]
    assert useless.distance_error > between.distance_error > free.distance_error > identity.distance_error == 0


def test_yardsticks_have_no_level_and_chance_reads_no_distance(wide):
    points, _ = wide
    assert list(points)[:2] == [("identity", None), ("random_rows", None)]
    chance = points["random_rows", None]
    assert (chance.noise_sd, chance.distance_error, chance.runs_as) == (None, None, "random_rows")
    assert points["gaussian", "1000"].runs_as == "gaussian"


def test_random_rows_are_as_good_as_chance_is_on_the_very_functions(study_of, rows_of):
    rows = rows_of(120)
    points = _run(study_of(), rows, seed=9, functions=8, queries=10, epsilons=["1"], mechanisms=["identity"])
    (_, x), *_ = rows.blocks()
    f = draw_functions(x, SquaredExponential(3.0, 4.0), 8, np.random.default_rng([9, 0, 0]))
    regrets = [chance_regret(function, 10) / 2 for function in f]  # the standard deviation of f is 2
    assert points["random_rows", None].regret == pytest.approx(np.mean(regrets), rel=1e-12)


def test_progress_grows_to_one(wide):
    _, shares = wide
    assert shares == sorted(shares)
    assert shares[0] < 0.02
    assert shares[-1] == pytest.approx(1.0)


def test_all_mechanisms_meet_the_same_functions_and_the_same_noise(study_of, rows_of):
    """With next to no noise on Z every run is that of identity, to the last choice."""
    release = wire.GaussianRelease(mechanism="gaussian", epsilon="3", delta=1e-5, sensitivity=1e-6)
    kernel = wire.Kernel(lengthscale=3.0, signal_variance=4.0, noise_variance=0.5)
    forecast = {"epsilons": ["900", "1000"], "functions": 5, "queries": 15}
    points = _run(study_of(release=release, kernel=kernel), rows_of(150), **forecast, **GAUSSIAN)
    regrets = {point.regret for (name, _), point in points.items() if name != "random_rows"}
    assert len(regrets) == 1


def test_a_seed_decides_the_functions_and_never_what_a_mechanism_draws(study_of, rows_of):
    forecast = {"epsilons": ["1"], "functions": 4, "queries": 8, **GAUSSIAN}
    first, again, other = (_run(study_of(), rows_of(100), seed=seed, **forecast) for seed in (5, 5, 6))
    for yardstick in (("identity", None), ("random_rows", None)):
        assert first[yardstick] == again[yardstick]
        assert first[yardstick].regret != other[yardstick].regret or yardstick[0] == "identity"
    assert first["gaussian", "1"].distance_error != again["gaussian", "1"].distance_error


def test_every_mechanism_can_be_tried(study_of, rows_of):
    forecast = {"epsilons": ["2"], "functions": 2, "queries": 3, "mechanisms": ["gaussian", "po_gp_ucb"]}
    points = _run(study_of(), rows_of(60), **forecast)
    published = points["po_gp_ucb", "2"]
    assert (published.noise_sd, published.runs_as) == (None, "po_gp_ucb")
    assert published.distance_error > 0


def test_private_answers_cost_too(study_of, rows_of):
    answers = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.1", value_bound=6.0)
    exact, private = (
        _run(study_of(**more), rows_of(200), functions=30, queries=30, epsilons=["1"], mechanisms=["identity"])
        for more in ({}, {"answers": answers})
    )
    assert private["identity", None].low > exact["identity", None].high
    assert private["random_rows", None] == exact["random_rows", None]  # whose best row counts, seen or not


def _variance(study):
    return outcome_variance(study, study.kernel)


def test_the_variance_of_an_outcome_is_that_of_its_measurement_and_of_its_privacy(study_of):
    assert _variance(study_of()) == 1e-4
    measured = wire.ColumnMeasurement(column="y", direction="maximize", noise_variance=0.25)
    assert _variance(study_of().model_copy(update={"measurement": measured})) == 0.25
    answers = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=3.0, noise_bound=1.0)
    drawn = noise.add_laplace(np.zeros(20_000), 4.0, Decimal("0.5"))
    # Whose variance has a standard error of 1.6 %.
    assert _variance(study_of(answers=answers)) == pytest.approx(1e-4 + drawn.var(), rel=0.15)


def test_two_rows_are_enough_and_one_is_not(study_of, rows_of):
    forecast = {"epsilons": ["1"], "functions": 2, "queries": 5, **GAUSSIAN}
    assert _run(study_of(), rows_of(2), **forecast)["random_rows", None].regret == 0
    with pytest.raises(Invalid, match="two rows"):
        _run(study_of(), rows_of(1), **forecast)


def test_rows_that_are_all_the_same_have_no_distances_to_read(study_of, rows_of):
    rows = rows_of(20)
    rows.values[:] = 0.5
    points = _run(study_of(), rows, epsilons=["1"], functions=2, queries=5, **GAUSSIAN)
    assert points["gaussian", "1"].distance_error is None
    assert points["identity", None].regret < 1e-3
