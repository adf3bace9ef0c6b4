"""Draws of hyper-parameters follow their posterior: against sums over a grid, and in how often intervals hold."""

import numpy as np
import pytest
from scipy.stats import t

from blindopt import wire
from blindopt.gp.fitting import FitProblem
from blindopt.gp.hyper_draws import SWEEPS, SWEEPS_MIN, Mixture, hyper_draws
from blindopt.gp.marginal_likelihood import Evidence, Hyper

NO_NOISE = wire.NoiseLaw(family="none")
START = Hyper(0.5, 1.0, 0.01)


def posterior_of(t=9, r=1, *, declared=0.04, seed=3):
    """Of length-scales and signal variance; and of the noise variance, if none is declared."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(0, 3, (t, r))
    outcomes = np.sin(2 * points[:, 0]) + 0.2 * rng.standard_normal(t)
    evidence = Evidence(points, np.arange(t), outcomes, np.full(t, declared), np.full(t, declared == 0))
    distances = np.full(r, 1.2)
    return FitProblem(evidence, "squared_exponential", NO_NOISE, START, wire.Fit(), distances, engine=3).log_posterior()


BEGIN = np.log([0.5, 1.0, 0.01])


def by_grid(posterior):
    """Means and standard deviations of two logarithms by sums over 120 x 120 points, the box included."""
    low, high = posterior.box
    axes = [np.linspace(low[j], high[j], 120) for j in range(2)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    values = np.array([posterior.value(np.append(point, low[2])) for point in points])
    shares = np.exp(values - values.max())
    shares /= shares.sum()
    mean = shares @ points
    return mean, np.sqrt(shares @ (points - mean) ** 2)


def test_draws_have_the_moments_of_sums_over_a_grid():
    """1,800 draws of 40 chains: each mean within a tenth of a standard deviation, each spread within a tenth."""
    posterior = posterior_of()
    mean, sd = by_grid(posterior)
    draws = np.concatenate([hyper_draws(posterior, BEGIN, [seed]) for seed in range(40)])[:, :2]
    np.testing.assert_allclose((draws.mean(axis=0) - mean) / sd, 0.0, atol=0.1)
    np.testing.assert_allclose(draws.std(axis=0) / sd, 1.0, atol=0.1)
    other, _ = by_grid(posterior_of(seed=4))
    assert (np.abs(draws.mean(axis=0) - other) / sd).max() > 0.1, "other outcomes have other moments"


def test_draws_depend_on_seed_and_outcomes_alone_and_stay_in_the_box():
    posterior = posterior_of(12, 3, declared=0.0)
    begin, (low, high) = np.log([0.5, 0.5, 0.5, 1.0, 0.01]), posterior.box
    first = np.array(hyper_draws(posterior, begin, [1]))
    np.testing.assert_array_equal(np.array(hyper_draws(posterior_of(12, 3, declared=0.0), begin, [1])), first)
    assert (np.array(hyper_draws(posterior, begin, [2])) != first).any()
    assert len(first) == SWEEPS * 3 // 4 == 45
    assert ((first >= low) & (first <= high)).all()
    assert SWEEPS_MIN < len(hyper_draws(posterior_of(200, declared=0.0), BEGIN, [1])) < 45


def test_moments_at_the_outcomes_are_those_of_the_dense_posterior():
    rng = np.random.default_rng(0)
    points, rows = rng.uniform(0, 3, (8, 2)), np.array([0, 1, 2, 3, 4, 5, 1, 6])
    points[6] = points[1]
    y, declared, fitted = rng.standard_normal(8), np.full(8, 0.05), np.arange(8) % 2 == 0
    for exact in (False, True):
        evidence = Evidence(points, rows, y, declared, fitted, exact)
        settings = wire.Fit(mean="kernel")
        posterior = FitProblem(evidence, "matern_52", NO_NOISE, START, settings, 2.0, engine=3).log_posterior()
        logs = np.log([0.8, 1.5, 0.3])
        distance = np.sqrt(5 * ((points[:, None] - points) ** 2).sum(axis=2)) / 0.8
        prior = 1.5 * (1 + distance + distance**2 / 3) * np.exp(-distance)
        prior += 0.3 * exact * (rows[:, None] == rows)
        noise = declared + 0.3 * (fitted & (not exact))
        weights = np.linalg.solve(prior + np.diag(noise), prior).T
        mean, variance, of_noise = posterior.likelihood.moments(logs)
        np.testing.assert_allclose(mean, weights @ y, atol=1e-10)
        np.testing.assert_allclose(variance, np.diag(prior - weights @ prior), atol=1e-10)
        np.testing.assert_allclose(of_noise, noise)


def test_limits_of_a_mixture_leave_a_fortieth_on_each_side():
    mixture = Mixture(np.array([0.0, 1.0, 5.0]), np.array([1.0, 0.0, 4.0]), 7)
    low, high = mixture.interval()
    below = [t.cdf(at, 7, mixture.means, np.sqrt(np.maximum(mixture.variances, 1e-300))).mean() for at in (low, high)]
    assert below == pytest.approx([0.025, 0.975], abs=1e-9)
