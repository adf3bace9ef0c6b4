"""Regret of a search, against enumeration, simulation, and the modeler's own algorithm."""

from itertools import combinations

import numpy as np
import pytest

from blindopt import wire
from blindopt.gp.kernels import SquaredExponential
from blindopt.optimizer.algorithms.gp.rules import GpUcb
from blindopt.optimizer.algorithms.settings import AlgorithmSettings
from curator_service.releases.forecasts.simulation import chance_regret, gp_ucb_regret, mean_regret


@pytest.mark.parametrize("q", [1, 2, 3, 6])
def test_chance_regret_is_the_mean_over_every_choice_of_rows(q):
    f = np.array([0.3, -1.0, 2.5, 2.5, 0.0, 1.7])
    exact = np.mean([f.max() - f[list(chosen)].max() for chosen in combinations(range(6), q)])
    assert chance_regret(f, q) == pytest.approx(exact, abs=1e-12)


def test_chance_regret_is_what_random_rows_find():
    """Within 5 standard errors of 20,000 searches; one query more or less would be seen."""
    rng = np.random.default_rng(1)
    f, q = rng.normal(size=400), 20
    best = np.array([f[rng.permutation(400)[:q]].max() for _ in range(20_000)])
    error = 5 * best.std() / np.sqrt(len(best))
    assert abs(chance_regret(f, q) - (f.max() - best.mean())) < error
    for other in (q - 1, q + 1):
        assert abs(chance_regret(f, other) - (f.max() - best.mean())) > error / 2.5


def test_whoever_asks_every_row_has_no_regret_left():
    f = np.random.default_rng(2).normal(size=50)
    assert chance_regret(f, 50) == chance_regret(f, 99) == 0
    assert chance_regret(f, 1) == pytest.approx(f.max() - f.mean())


@pytest.fixture
def smooth():
    """60 points on a line, and functions of their Gaussian process."""
    x = np.linspace(0, 10, 60)[:, None]
    kernel = SquaredExponential(1.0, 4.0)
    rng = np.random.default_rng(4)
    f = np.linalg.cholesky(kernel(x, x) + 1e-8 * np.eye(60)) @ rng.standard_normal((60, 10))
    return x, kernel, f.T


def test_the_search_does_what_the_modelers_algorithm_does(smooth):
    """Their kernel is so wide that no candidates tie but at first: the two draw from different seeds later."""
    x, _, functions = smooth
    declared = wire.Kernel(lengthscale=2.5, signal_variance=4.0, noise_variance=0.01)
    noise = 0.1 * np.random.default_rng(5).standard_normal((10, 12))
    for f, errors in zip(functions, noise, strict=True):
        theirs = GpUcb(x, AlgorithmSettings(declared, 1, seed=8, capacity=12), wire.GpUcb(name="gp_ucb").delta_ucb)
        queried = []
        for step, error in enumerate(errors, start=1):
            queried.append(theirs.choose(step).row)
            theirs.observe(queried[-1], f[queried[-1]] + error)
        wide = SquaredExponential(2.5, 4.0)
        ours = gp_ucb_regret(x, f, errors, wide, 0.01, np.random.default_rng([8, 1]))
        assert ours == f.max() - f[queried].max()


def test_with_the_rows_themselves_and_almost_no_noise_the_best_row_is_found(smooth):
    x, kernel, functions = smooth
    z = np.random.default_rng(6).permutation(x)  # the control: candidates that tell nothing of the rows
    through_x, blind = [], []
    for number, f in enumerate(functions):
        for candidates, regrets in ((x, through_x), (z, blind)):
            rng = np.random.default_rng(number)
            regrets.append(gp_ucb_regret(candidates, f, np.zeros(40), kernel, 1e-6, rng))
    assert max(through_x) < 1e-3
    assert np.mean(blind) > 0.05


def _coverage(draw, mean, widen=1.0, trials=3_000):
    hits = 0
    for _ in range(trials):
        sample = draw()
        mean_interval = mean_regret(sample)
        centre, half = mean_interval.value, (mean_interval.high - mean_interval.value) * widen
        hits += centre - half <= mean <= centre + half
    return hits / trials


def test_the_interval_covers_the_mean_as_often_as_it_says():
    """3,000 trials: 5 standard errors are 0.02. Two thirds of its width would be caught."""
    rng = np.random.default_rng(7)
    assert abs(_coverage(lambda: rng.normal(9.0, 1.0, 20), 9.0) - 0.95) < 0.02
    assert abs(_coverage(lambda: rng.normal(9.0, 1.0, 2), 9.0) - 0.95) < 0.02
    assert abs(_coverage(lambda: rng.normal(9.0, 1.0, 20), 9.0, widen=2 / 3) - 0.95) > 0.05
    # Regrets are skewed: the interval of 20 is then a little too short.
    assert 0.88 < _coverage(lambda: rng.exponential(1.0, 20), 1.0) < 0.96


def test_the_interval_is_not_below_zero():
    interval = mean_regret(np.array([0.0, 0.0, 0.0, 1.0]))
    assert (interval.low, interval.value) == (0.0, 0.25)
    assert mean_regret(np.zeros(5)).high == 0
