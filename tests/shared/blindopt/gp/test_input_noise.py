"""The average of a kernel over noise: against draws, and what it is for."""

import math

import numpy as np
import pytest

from blindopt.gp.input_noise import Tabulated, _mixture, averaged, noise_aware
from blindopt.gp.kernels import KERNELS, Matern12, Matern52, SquaredExponential
from blindopt.gp.posterior import Posterior
from blindopt.wire import NoiseLaw

DRAWS = 40_000


def noise(law, sd, r, n, rng):
    """Rows of noise with this law, drawn another way: a direction and a length."""
    if law == "gaussian":
        return rng.normal(0.0, sd, size=(n, r))
    direction = rng.normal(size=(n, r))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    return direction * rng.gamma(r, sd / math.sqrt(r + 1), size=(n, 1))


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("law", ["gaussian", "planar_laplace"])
@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize(("r", "sd"), [(1, 0.3), (2, 1.0), (6, 0.5)])
def test_the_average_is_that_of_draws(law, kind, r, sd):
    """Six standard errors of 40,000 pairs at eight distances; noise of twice the variance is told apart."""
    rng = np.random.default_rng([r, len(kind), len(law)])
    kernel = KERNELS[kind](1.5, 2.0)
    model, nugget = averaged(kernel, law, sd, r)
    differences = noise(law, sd, r, DRAWS, rng) - noise(law, sd, r, DRAWS, rng)
    missed = 0.0
    for distance in (0.0, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0):
        at = np.zeros((1, r))
        at[0, 0] = distance
        drawn = kernel(differences, at)[:, 0]
        error = 6 * drawn.std() / math.sqrt(DRAWS)
        assert abs(model(np.zeros((1, r)), at)[0, 0] - drawn.mean()) <= error
        doubled = averaged(kernel, law, sd * math.sqrt(2), r)[0]
        missed = max(missed, abs(doubled(np.zeros((1, r)), at)[0, 0] - drawn.mean()) / error)
    assert missed > 1.5
    assert nugget == pytest.approx(2.0 - model.variance, rel=1e-12)


@pytest.mark.parametrize(("r", "sd"), [(1, 0.1), (3, 0.7), (12, 2.0)])
def test_a_squared_exponential_under_gaussian_noise_has_the_papers_closed_form(r, sd):
    model, nugget = averaged(SquaredExponential(1.3, 4.0), "gaussian", sd, r)
    wide = 1.3**2 + 2 * sd**2
    expected = 4.0 * (1.3**2 / wide) ** (r / 2)
    got = model(np.zeros((1, r)), np.full((1, r), 0.5))[0, 0]
    assert got == pytest.approx(expected * math.exp(-r * 0.25 / (2 * wide)), rel=1e-13)
    assert nugget == pytest.approx(4.0 - expected, rel=1e-13)


@pytest.mark.parametrize("kind", KERNELS)
def test_almost_no_noise_leaves_the_kernel(kind):
    kernel = KERNELS[kind](1.3, 4.0)
    model, nugget = averaged(kernel, "planar_laplace", 1e-9, 2)
    at = np.linspace(0.3, 6, 50)[:, None] * [1.0, 0.0]
    np.testing.assert_allclose(model(at, np.zeros((1, 2))), kernel(at, np.zeros((1, 2))), atol=4e-8)
    assert 0 <= nugget < 1e-7


def test_the_table_is_the_mixture_it_was_made_from():
    for kernel in (SquaredExponential(0.7, 3.0), Matern12(0.7, 3.0), Matern52(0.7, 3.0)):
        model, _ = averaged(kernel, "planar_laplace", 0.4, 3)
        assert isinstance(model, Tabulated)
        shares, squares = _mixture(kernel, "planar_laplace", 0.4, 3)
        distance = np.random.default_rng(0).uniform(0, 8, size=500)
        exact = 3.0 * np.exp(-0.5 * distance[:, None] ** 2 / squares) @ shares
        np.testing.assert_allclose(model(distance[:, None], np.zeros((1, 1)))[:, 0], exact, atol=3e-8)


def coverage(aware, law, rng):
    """Share of rows whose f lies in the 95 % interval after 60 answers, over eight functions on 300 noisy rows."""
    kernel, sd, hits = SquaredExponential(1.0), 0.25, []
    for _ in range(8):
        x = rng.uniform(0, 4, size=(300, 2))
        f = np.linalg.cholesky(kernel(x, x) + 1e-9 * np.eye(300)) @ rng.standard_normal(300)
        z = x + noise(law, sd, 2, 300, rng)
        model, nugget = averaged(kernel, law, sd, 2) if aware else (kernel, 0.0)
        posterior = Posterior(z, model, noise_variance=1e-3, nugget=nugget, capacity=60)
        for row in range(60):
            posterior.observe(row, float(f[row]) + 0.0316 * rng.standard_normal())
        hits.append(np.abs(f - posterior.mean)[60:] <= 1.96 * np.sqrt(posterior.variance[60:]))
    return float(np.mean(hits))


@pytest.mark.parametrize("law", ["gaussian", "planar_laplace"])
def test_intervals_that_know_the_noise_cover_and_those_that_do_not_are_too_narrow(law):
    assert 0.92 < coverage(True, law, np.random.default_rng(1)) < 0.98
    assert coverage(False, law, np.random.default_rng(1)) < 0.85


def test_laplace_noise_in_each_column_is_averaged_as_planar_noise_of_the_same_size():
    """The variance of differences, which leads the average, is equal; six standard errors and 1 % of draws, r = 6."""
    r, sd = 6, 0.5
    rng, kernel, law = np.random.default_rng(0), Matern52(1.5, 2.0), NoiseLaw(family="laplace_each", sd=sd)
    model, nugget = noise_aware(kernel, law, r)
    assert (model, nugget) == noise_aware(kernel, NoiseLaw(family="planar_laplace", sd=sd), r)
    differences = rng.laplace(scale=sd / math.sqrt(2), size=(2, DRAWS, r))
    for distance in (0.5, 1.0, 2.0):
        at = np.full((1, r), distance / math.sqrt(r))
        drawn = kernel(differences[0] - differences[1], at)[:, 0]
        error = 6 * drawn.std() / math.sqrt(DRAWS) + 0.01 * kernel.variance
        assert abs(model(np.zeros((1, r)), at)[0, 0] - drawn.mean()) <= error
