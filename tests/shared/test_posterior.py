"""The incremental posterior, against the textbook's O(t^3) one."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import cho_factor, cho_solve

from shared.errors import NumericalFailure
from shared.kernels import SquaredExponential
from shared.posterior import Posterior


def textbook(candidates, rows, outcomes, *, lengthscale, variance, noise_variance, prior_mean):
    """Rasmussen & Williams (2006), eqs. 2.25-2.26, from scratch."""

    def k(a, b):
        return variance * np.exp(-((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2) / (2 * lengthscale**2))

    seen = candidates[rows]
    factor = cho_factor(k(seen, seen) + noise_variance * np.eye(len(rows)))
    cross = k(candidates, seen)
    mean = prior_mean + cross @ cho_solve(factor, np.asarray(outcomes) - prior_mean)
    reduction = np.einsum("ij,ji->i", cross, cho_solve(factor, cross.T))
    return mean, variance - reduction


@pytest.mark.parametrize(("noise_variance", "prior_mean"), [(1e-3, -7.5), (0.1, 0.0)])
def test_after_each_of_200_outcomes_the_posterior_is_the_textbooks(noise_variance, prior_mean):
    """200 outcomes at 60 rows of 150: every row is asked again, some many times."""
    rng = np.random.default_rng(1)
    candidates = rng.normal(size=(150, 3))
    rows = rng.integers(0, 60, size=200)
    outcomes = prior_mean + rng.normal(size=200)
    settings_ = {"lengthscale": 0.9, "variance": 2.0, "noise_variance": noise_variance, "prior_mean": prior_mean}
    posterior = Posterior(
        candidates, SquaredExponential(0.9, 2.0), noise_variance=noise_variance, prior_mean=prior_mean, capacity=200
    )
    np.testing.assert_array_equal(posterior.mean, prior_mean)
    np.testing.assert_array_equal(posterior.variance, 2.0)
    for t, (row, outcome) in enumerate(zip(rows, outcomes, strict=True), start=1):
        posterior.observe(int(row), float(outcome))
        assert posterior.count == t
        mean, variance = textbook(candidates, rows[:t], outcomes[:t], **settings_)
        np.testing.assert_allclose(posterior.mean, mean, rtol=0, atol=1e-8)
        np.testing.assert_allclose(posterior.variance, variance, rtol=0, atol=1e-8)
    assert len(set(rows.tolist())) < len(rows)


def test_one_outcome_worked_by_hand():
    """Variance 1, noise 1, y = 2 at row 0: mean k y / 2, variance 1 - k^2 / 2."""
    posterior = Posterior(np.array([[0.0], [1.0]]), SquaredExponential(1.0), noise_variance=1.0, capacity=1)
    posterior.observe(0, 2.0)
    k = math.exp(-0.5)
    np.testing.assert_allclose(posterior.mean, [1.0, k], rtol=1e-15)
    np.testing.assert_allclose(posterior.variance, [0.5, 1 - k * k / 2], rtol=1e-15)


def test_asking_one_row_t_times_averages_its_noise():
    """Conjugate normal: precision 1/variance + t/noise, mean weighted by it."""
    posterior = Posterior(
        np.zeros((1, 1)), SquaredExponential(1.0, 4.0), noise_variance=0.5, capacity=30, prior_mean=1.0
    )
    outcomes = np.random.default_rng(2).normal(3.0, 1.0, size=30)
    for t, outcome in enumerate(outcomes, start=1):
        posterior.observe(0, float(outcome))
        precision = 1 / 4.0 + t / 0.5
        assert posterior.variance[0] == pytest.approx(1 / precision, rel=1e-12)
        assert posterior.mean[0] == pytest.approx((1.0 / 4.0 + outcomes[:t].sum() / 0.5) / precision, rel=1e-12)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(order=st.permutations(range(5)))
def test_the_order_of_the_outcomes_does_not_matter(order):
    candidates = np.linspace(0, 3, 12).reshape(6, 2)
    told = [(0, 1.0), (3, -2.0), (0, 0.5), (5, 4.0), (3, -1.0)]

    def after(sequence):
        posterior = Posterior(candidates, SquaredExponential(1.0), noise_variance=0.01, capacity=5)
        for i in sequence:
            posterior.observe(*told[i])
        return posterior

    one, other = after(range(5)), after(order)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-11)
    np.testing.assert_allclose(one.variance, other.variance, atol=1e-11)


def test_the_variance_is_never_negative_however_small_the_noise():
    candidates = np.linspace(0, 1, 50).reshape(-1, 1)  # far closer than the lengthscale: nearly singular
    posterior = Posterior(candidates, SquaredExponential(1.0), noise_variance=1e-12, capacity=60)
    for t in range(60):
        posterior.observe(t % 50, math.sin(t % 50))
        assert posterior.variance.min() >= 0.0


def small():
    posterior = Posterior(np.array([[0.0], [1.0], [2.0]]), SquaredExponential(1.0), noise_variance=1e-5, capacity=4)
    posterior.observe(0, 1.0)
    return posterior


@pytest.mark.parametrize(
    ("row", "outcome", "error"),
    [
        *((1, bad, NumericalFailure) for bad in (math.nan, math.inf, -math.inf)),
        *((1, bad, NumericalFailure) for bad in (1.7e308, -1.7e308)),  # finite, but the update overflows
        *((bad, 1.0, IndexError) for bad in (-1, 3, 10**12)),
    ],
)
def test_an_outcome_that_is_refused_changes_nothing(row, outcome, error):
    """Not even what later outcomes give."""
    posterior, untouched = small(), small()
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(error):
        posterior.observe(row, outcome)
    for _ in range(2):
        assert posterior.count == untouched.count
        np.testing.assert_array_equal(posterior.mean, untouched.mean)
        np.testing.assert_array_equal(posterior.variance, untouched.variance)
        posterior.observe(2, -1.0)
        untouched.observe(2, -1.0)


def test_a_refusal_does_not_tell_the_outcome():
    with pytest.raises(NumericalFailure) as refusal:
        small().observe(1, -math.inf)
    assert "inf" not in str(refusal.value)


def test_no_more_outcomes_than_the_capacity_are_taken():
    posterior = small()
    for outcome in (1.0, 2.0, 3.0):
        posterior.observe(1, outcome)
    mean = posterior.mean.copy()
    with pytest.raises(IndexError, match="4 outcomes"):
        posterior.observe(1, 4.0)
    assert posterior.count == 4
    np.testing.assert_array_equal(posterior.mean, mean)


@pytest.mark.parametrize("noise_variance", [0.0, -1.0, math.nan, math.inf])
def test_noise_variance_must_be_positive_and_finite(noise_variance):
    with pytest.raises(ValueError, match="noise_variance"):
        Posterior(np.zeros((2, 1)), SquaredExponential(1.0), noise_variance=noise_variance, capacity=1)


@pytest.mark.parametrize(("place", "bad"), list(itertools.product([(0, 0), (1, 1)], [math.nan, math.inf])))
def test_candidates_must_be_finite(place, bad):
    candidates = np.zeros((2, 2))
    candidates[place] = bad
    with pytest.raises(NumericalFailure, match="not finite"):
        Posterior(candidates, SquaredExponential(1.0), noise_variance=1.0, capacity=1)


def test_the_candidates_are_left_as_they_were():
    candidates = np.random.default_rng(3).normal(size=(5, 2))
    before = candidates.copy()
    posterior = Posterior(candidates, SquaredExponential(1.0), noise_variance=1.0, capacity=2)
    posterior.observe(4, 1.0)
    np.testing.assert_array_equal(candidates, before)
