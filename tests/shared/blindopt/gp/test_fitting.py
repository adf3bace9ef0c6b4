"""Fits that do not collapse: length-scales of coordinates, own parts of records, bounds, priors, checks by others."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from blindopt import wire
from blindopt.errors import NumericalFailure
from blindopt.gp.fitting import FitProblem, fit, typical_distance, typical_distances
from blindopt.gp.kernels import KERNELS
from blindopt.gp.marginal_likelihood import Evidence, Hyper, MarginalLikelihood

NO_NOISE = wire.NoiseLaw(family="none")
KIND = "squared_exponential"


def evidence(t=14, r=3, *, seed=0, exact=False, noise=0.1, f=lambda x: np.sin(2 * x[:, 0])):
    """Outcomes that depend on the first coordinate; two are of one row."""
    rng = np.random.default_rng(seed)
    points, rows = rng.uniform(0, 3, size=(t, r)), np.arange(t)
    points[3], rows[3] = points[1], rows[1]
    outcomes = f(points) + noise * rng.normal(size=t) + 2.0
    return Evidence(points, rows, outcomes, np.full(t, 0.02), np.arange(t) != 5, exact)


def covariance(data, kind, logs):
    """Entry by entry."""
    *sizes, signal, noise = np.exp(logs)
    kernel, scaled, t = KERNELS[kind](1.0), data.points / sizes, len(data.rows)
    gram = signal * np.array([[kernel(scaled[i : i + 1], scaled[j : j + 1])[0, 0] for j in range(t)] for i in range(t)])
    for i in range(t):
        gram[i, i] += data.declared_noise[i] + noise * (data.has_fitted_noise[i] and not data.exact)
    return gram + data.exact * noise * (data.rows[:, None] == data.rows)


LOGS = [np.log([0.7, 1.2, 3.0, 1.5, 0.05]), np.log([0.2, 0.3, 0.2, 0.4, 0.5])]


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("mean", [None, 1.25])
@pytest.mark.parametrize("exact", [False, True], ids=["noise", "own part"])
@pytest.mark.parametrize("kind", KERNELS)
def test_value_gradient_and_check_with_a_length_scale_for_each_coordinate(kind, exact, mean):
    """The value is a normal density, the gradient that of differences, the check that of the others alone."""
    data = evidence(exact=exact)
    likelihood = MarginalLikelihood(data, kind, NO_NOISE, mean, scales=3)
    for logs in LOGS:
        gram, (value, gradient, at) = covariance(data, kind, logs), likelihood.at(logs)
        off = data.outcomes - at
        expected = -0.5 * (off @ np.linalg.solve(gram, off) + np.linalg.slogdet(2 * math.pi * gram)[1])
        assert value == pytest.approx(expected, abs=1e-8)
        steps = 1e-4 * np.eye(5)
        differences = [(likelihood.at(logs + h)[0] - likelihood.at(logs - h)[0]) / 2e-4 for h in steps]
        np.testing.assert_allclose(gradient, differences, rtol=1e-4, atol=1e-5)
        densities, residuals = [], []
        for i in range(len(off)):
            others = np.arange(len(off)) != i
            weights = np.linalg.solve(gram[np.ix_(others, others)], gram[others, i])
            sd = math.sqrt(gram[i, i] - weights @ gram[others, i])
            densities.append(norm(at + weights @ off[others], sd).logpdf(data.outcomes[i]))
            residuals.append(abs(data.outcomes[i] - at - weights @ off[others]) / sd)
        check = likelihood.check(logs)
        assert check.log_density == pytest.approx(np.mean(densities), abs=1e-8)
        assert (check.worst, check.largest_residual) == (np.argmax(residuals), pytest.approx(max(residuals)))
        rest = [np.delete(data.outcomes, i) for i in range(len(off))]
        baseline = [
            norm(y.mean(), math.sqrt(y.var(ddof=1) * (1 + 1 / len(y)))).logpdf(x)
            for y, x in zip(rest, data.outcomes, strict=True)
        ]
        assert check.baseline == pytest.approx(np.mean(baseline), abs=1e-9)


def test_one_length_scale_is_that_of_equal_ones():
    data = evidence()
    for kind in KERNELS:
        alone = MarginalLikelihood(data, kind, NO_NOISE, None).at(np.log([0.7, 1.5, 0.05]))
        equal = MarginalLikelihood(data, kind, NO_NOISE, None, scales=3).at(np.log([0.7, 0.7, 0.7, 1.5, 0.05]))
        assert alone[0] == pytest.approx(equal[0], abs=1e-9)
        assert alone[1][0] == pytest.approx(equal[1][:3].sum(), abs=1e-8)


def fitted(data, settings=None, *, distance=1.7, start=None, **more):
    start = start or Hyper(0.7, 1.0, 0.01)
    return fit(FitProblem(data, KIND, NO_NOISE, start, settings or wire.Fit(starts=3), distance, **more), [0])


def test_coordinates_that_do_not_matter_get_long_length_scales():
    data = evidence(60, noise=0.05)
    result = fitted(data, distance=typical_distances(data.points))
    first, *others = result.hyper.lengthscales
    assert min(others) > 4 * first
    assert result.at_bounds == ()
    assert result.hyper.lengthscale == pytest.approx(math.prod(result.hyper.lengthscales) ** (1 / 3), rel=1e-3)
    assert result.check.log_density > result.check.baseline + 0.5


def prior_density(logs, distances, variance, *, is_shared):
    """The default prior of r length-scales, a signal and a noise variance, from its description."""
    sizes, signal, noise = logs[:-2] - np.log(distances), logs[-2] - math.log(variance), logs[-1] - logs[-2]
    spread = 1.0 if noise < math.log(0.01) else 3.0
    density = norm(math.log(0.4), 1).logpdf(sizes).sum()
    if is_shared:
        density = norm(math.log(0.4), 1).logpdf(sizes.mean()) + norm(0, 0.5).logpdf(sizes - sizes.mean()).sum()
    return density + norm(0, 2).logpdf(signal) - 0.5 * ((noise - math.log(0.01)) / spread) ** 2


@pytest.mark.parametrize(("engine", "is_shared"), [(1, False), (2, True)])
def test_length_scales_of_coordinates_have_the_prior_that_is_described(engine, is_shared):
    """Nothing near a fit has a larger density; with the other version's prior something has."""
    data = evidence(12, noise=0.1)
    distances, variance = typical_distances(data.points) * np.array([0.5, 1.0, 2.0]), float(np.var(data.outcomes))
    hyper = fitted(data, distance=distances, engine=engine).hyper
    best = np.log([*hyper.lengthscales, hyper.signal_variance, hyper.noise_variance])
    likelihood = MarginalLikelihood(data, KIND, NO_NOISE, None, scales=3)
    steps = 0.02 * np.concatenate([np.eye(5), -np.eye(5)])

    def gain(is_shared):
        def density(logs):
            return likelihood.at(logs)[0] + prior_density(logs, distances, variance, is_shared=is_shared)

        return max(density(best + step) for step in steps) - density(best)

    assert gain(is_shared) < 1e-6
    assert gain(not is_shared) > 1e-3


@pytest.mark.parametrize("exact", [False, True])
def test_neither_noise_nor_length_scale_collapses_where_answers_are_smooth(exact):
    """Without priors, the noise of answers that have none falls to its bound; with them it stays above."""
    data = replace(evidence(40, noise=0.0, r=2), declared_noise=np.zeros(40), exact=exact)
    data = replace(data, rows=np.arange(40), points=data.points + 1e-3 * np.arange(40)[:, None])
    data = replace(data, outcomes=np.sin(2 * data.points[:, 0]))
    free = fitted(data, wire.Fit(starts=3, priors=wire.FitPriors()))
    assert "noise_variance" in free.at_bounds
    result = fitted(data)
    assert result.at_bounds == ()
    assert result.check.log_density > result.check.baseline + 1


def test_a_length_scale_is_not_shorter_than_the_answers_can_tell():
    """Outcomes that jump from point to point: the bound is a quarter of the median distance to the nearest."""
    rng = np.random.default_rng(3)
    points = np.stack(np.meshgrid(np.arange(5.0), np.arange(5.0)), axis=-1).reshape(-1, 2)
    data = Evidence(points, np.arange(25), rng.normal(size=25), np.full(25, 1e-4), np.zeros(25, dtype=bool))
    free, bound = wire.Fit(starts=3, priors=wire.FitPriors()), typical_distance(points, NO_NOISE)
    assert fitted(data, free, distance=bound).hyper.lengthscale < 0.25
    low = fitted(data, distance=bound).hyper.lengthscale
    assert low >= 0.25
    twice = replace(data, points=2 * points)
    assert fitted(twice, distance=2 * bound).hyper.lengthscale == pytest.approx(2 * low, rel=1e-2)


def test_by_earlier_versions_noise_keeps_its_ratio_until_there_are_two_answers_for_each_coordinate():
    start = Hyper(0.7, 2.0, 0.04)
    for t, engine, is_tied in ((5, 2, True), (6, 2, False), (5, 3, False)):
        hyper = fitted(evidence(t, noise=1.0), start=start, engine=engine).hyper
        assert (hyper.noise_variance == pytest.approx(0.02 * hyper.signal_variance, rel=1e-3)) is is_tied
    chosen = wire.Fit(starts=3, bounds=wire.FitBounds(noise_variance=wire.Interval(lower=0.3, upper=0.4)))
    assert 0.3 <= fitted(evidence(5), chosen, start=start).hyper.noise_variance <= 0.4


def test_distances_of_coordinates_are_those_of_candidates_that_vary_alike():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40_000, 3)) * [1.0, 2.0, 0.0] + 1e6
    distances = typical_distances(x)
    np.testing.assert_allclose(distances[:2], math.sqrt(6) * np.array([1.0, 2.0]), rtol=0.02)
    assert distances[2] == typical_distance(x, NO_NOISE)
    same = rng.normal(size=(40_000, 2))
    np.testing.assert_allclose(typical_distances(same), typical_distance(same, NO_NOISE), rtol=0.02)
    with pytest.raises(NumericalFailure, match="finite"):
        typical_distances(np.array([[1.0, 0.0], [math.inf, 1.0]]))
