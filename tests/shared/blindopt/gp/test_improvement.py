"""Expected improvement with optimism about what can be learned: values, bounds, and the maximum of many candidates."""

import itertools
import math

import mpmath
import numpy as np
import pytest

from blindopt.gp.acquisition import ExpectedImprovement, Reach, Tolerance, UpperConfidenceBound, log_improvement
from blindopt.gp.kernels import SquaredExponential
from blindopt.gp.parts import mean_tolerance
from blindopt.gp.posterior import Posterior
from tests.shared.blindopt.gp.slow_posterior import candidates, in_long_double, outcome_of, squared_exponential
from tests.shared.blindopt.gp.test_posterior import PRECISIONS, first

EXACT = Tolerance(0.0, 0.0)


def by_quadrature(t):
    """Log of the integral of (t + u)+ under a standard normal density, in 50 digits: no formula of h is used."""
    with mpmath.workdps(50):
        t = mpmath.mpf(t)
        # With u = w - t the integrand is w exp(-w^2 / 2 + w t) exp(-t^2 / 2) / sqrt(2 pi), for w > 0.
        scale = 1 / (abs(t) + 1)
        points = [0, scale, 5 * scale, 30 * scale, mpmath.inf] if t < 0 else [0, t, t + 2, t + 12, mpmath.inf]
        integral = mpmath.quad(lambda w: w * mpmath.exp(-w * w / 2 + w * t - (t * t / 2 if t > 0 else 0)), points)
        return float(mpmath.log(integral / mpmath.sqrt(2 * mpmath.pi)) - (t * t / 2 if t <= 0 else 0))


@pytest.mark.parametrize(
    "t", [30.0, 2.5, 0.0, -0.5, -0.999999, -1.0, -1.000001, -7.0, -38.0, -49.9, -50.1, -300.0, -1e6]
)
def test_the_logarithm_of_the_improvement_is_that_of_its_integral(t):
    assert log_improvement(np.array([t]))[0] == pytest.approx(by_quadrature(t), rel=1e-14, abs=1e-12)


def test_the_logarithm_rises_everywhere_and_stays_a_number():
    t = np.concatenate([-np.logspace(100, 1, 2_000), np.linspace(-9.99, 50, 2_000), np.linspace(-51, -49, 2_001)])
    values = log_improvement(np.sort(t))
    assert np.isfinite(values).all()
    assert (np.diff(values) > -1e-11).all()  # rounding of a difference near -50, of slope 50


def in_mpmath(mean, variance, *, best, xi, nugget):
    with mpmath.workdps(40):
        spread = mpmath.sqrt(mpmath.mpf(float(variance)))
        learnable = max(mpmath.mpf(float(variance)) - nugget, 0)
        t = (float(mean) + xi * mpmath.sqrt(learnable) - best) / spread
        return float(mpmath.log(spread * (mpmath.npdf(t) + t * mpmath.ncdf(t))))


def test_the_value_of_a_candidate_is_the_formula():
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=40), rng.uniform(0.3, 2.0, size=40)
    for xi, nugget in itertools.product([0.0, 1.0, 2.0], [0.0, 0.8]):
        rule = ExpectedImprovement(0.7, xi**2, nugget, 1e-16)
        expected = [in_mpmath(m, v, best=0.7, xi=xi, nugget=nugget) for m, v in zip(mean, variance, strict=True)]
        np.testing.assert_allclose(rule(mean, variance), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", [
    ExpectedImprovement(0.7, 4.0, 0.4, 1e-16), ExpectedImprovement(0.7, 0.0, 0.0, 1e-16),
    ExpectedImprovement(60.0, 1.0, 0.0, 1e-16), UpperConfidenceBound(9.0, 0.4), UpperConfidenceBound(9.0),
    Reach(0.7, 4.0, 0.4, 1e-16), Reach(9.0, 0.0, 0.0, 1e-16),
], ids=repr)  # fmt: skip
def test_no_upper_bound_is_below_a_value_and_few_are_far_above_the_largest(rule):
    """100,000 candidates; the bound of the best of them is no more than rounding above its value."""
    rng = np.random.default_rng(1)
    mean, variance = rng.normal(size=100_000), rng.uniform(1e-9, 3.0, size=100_000) ** rng.integers(1, 4, size=100_000)
    upper, values = np.empty(len(mean)), rule(mean, variance)
    rule.upper(mean, variance, EXACT, upper)
    assert (upper >= values).all()
    assert (rule.lower(mean, variance, EXACT) <= values).all()
    assert (upper >= values.max()).sum() <= 0.02 * len(mean)
    assert upper[values.argmax()] == pytest.approx(values.max(), abs=1e-8)


REACHES = [
    Reach(threshold, xi**2, nugget, 1e-16) for threshold in (-1.0, 0.7, 9.0) for xi, nugget in ((0, 0.0), (2, 0.8))
]


def test_how_surely_a_threshold_is_reached_is_the_formula():
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=40), rng.uniform(0.3, 2.0, size=40)
    for rule in REACHES:
        learnable = np.maximum(variance.astype(np.longdouble) - rule.nugget, 0)
        expected = (mean + np.sqrt(rule.weight * learnable) - rule.threshold) / np.sqrt(variance.astype(np.longdouble))
        np.testing.assert_allclose(rule(mean, variance), expected.astype(float), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("rule", REACHES, ids=repr)
def test_bounds_of_reaching_hold_for_all_moments_within_the_tolerance(rule):
    """The control takes the same end of the variance in numerator and denominator, as bounds of a rising rule may."""
    rng = np.random.default_rng(2)
    mean, variance = rng.normal(size=50_000), rng.uniform(1e-6, 2.0, size=50_000) ** rng.integers(1, 4, size=50_000)
    tolerance = Tolerance(1e-3, 0.2 * variance)
    rounded_mean = mean + rng.uniform(-1, 1, size=50_000) * tolerance.mean
    rounded_variance = variance + rng.uniform(-1, 1, size=50_000) * tolerance.variance / 1.3
    tolerance = Tolerance(1e-3, np.abs(rounded_variance - variance) * 1.01)
    low, high = rule.interval(rounded_mean, rounded_variance, tolerance)
    values = rule(mean, variance)
    assert (low <= values).all()
    assert (values <= high).all()
    naive = rule(rounded_mean + tolerance.mean, rounded_variance + tolerance.variance)
    if rule.threshold < 9:
        assert (naive < values).any()


@pytest.mark.slow(every=5)
@pytest.mark.parametrize(("nugget", "noise", "hides"), [(0.0, 1e-3, True), (0.5, 1e-3, True), (0.5, 0.3, False)])
def test_the_chosen_row_has_the_true_maximum_at_every_step(dtype, nugget, noise, hides):
    """25 steps of 300 candidates, with exact answers, and with noisy ones that may repeat."""
    z = candidates()
    y = outcome_of(z) + math.sqrt(noise) * np.random.default_rng(1).normal(size=300)
    posterior = Posterior(
        z, SquaredExponential(0.8, 2.0), noise_variance=noise, nugget=nugget, capacity=40, dtype=dtype
    )
    rows = [7, 100, 200]
    for row in rows:
        posterior.observe(row, float(y[row]))
    for _ in range(25):
        hidden = np.unique(rows) if hides else np.empty(0, dtype=np.intp)
        choice = posterior.argmax(posterior.improvement(1.5), first, hidden)
        covariance = squared_exponential(0.8, 2.0, np.longdouble)
        moments = in_long_double(z, covariance, rows, y[rows], noise=noise, nugget=nugget)
        mean, variance = (values.astype(float) for values in moments)
        best = mean[np.unique(rows)].max()
        values = ExpectedImprovement(best, 1.5**2, nugget, 1e-16)(mean, variance)
        if hides:
            values[rows] = -np.inf
        assert values[choice.row] == pytest.approx(values.max(), rel=1e-8, abs=1e-8)
        assert choice.acquisition == pytest.approx(values.max(), rel=1e-8, abs=1e-8)
        rows.append(choice.row)
        posterior.observe(choice.row, float(y[choice.row]))


@pytest.mark.parametrize("rule", ["ei", "bound", "reach"])
def test_single_precision_chooses_the_same_to_the_last_bit(rule):
    z = np.random.default_rng(1).uniform(0, 4, size=(2_000, 3))
    y = np.sin(2 * z).sum(axis=1)
    runs = []
    for precision in PRECISIONS:
        posterior = Posterior(z, SquaredExponential(1.0), noise_variance=1e-4, nugget=0.5, capacity=31, dtype=precision)
        posterior.observe(7, float(y[7]))
        choices = []
        for step in range(30):
            acquisition = {
                "ei": posterior.improvement(2.0),
                "bound": UpperConfidenceBound(4.0 + step / 10, 0.5),
                "reach": posterior.reaching(1.5, 2.0),
            }[rule]
            seen = (
                np.unique([7, *(choice.row for choice in choices)]) if rule == "reach" else np.empty(0, dtype=np.intp)
            )
            choices.append(posterior.argmax(acquisition, first, seen))
            posterior.observe(choices[-1].row, float(y[choices[-1].row]))
        runs.append(choices)
    assert runs[0] == runs[1]
    assert len({choice.row for choice in runs[0]}) > 10


def test_rounding_of_means_under_a_nearly_singular_kernel_changes_no_choice():
    """Single precision, exact answers: means are wrong in the second digit, and every path chooses the same row.

    The control is the bound of the inner product alone, which the errors exceed a hundredfold.
    """
    rng = np.random.default_rng(4)
    z = rng.uniform(-1, 1, size=(400, 2))
    y = np.sin(3 * z[:, 0]) * np.cos(2 * z[:, 1])

    def build(dtype):
        return Posterior(z, SquaredExponential(2.0), noise_variance=1e-8, capacity=40, dtype=dtype)

    running, exact = build(np.float32), build(np.float64)
    for step, row in enumerate(rng.choice(400, 40, replace=False), start=1):
        for posterior in (running, exact):
            posterior.observe(int(row), float(y[row]))
        if step % 8 == 0:
            fresh = build(np.float32)
            for index in range(step):
                fresh.observe(int(running.observations.rows[index]), float(y[running.observations.rows[index]]))
            choices = {posterior.argmax(posterior.improvement(2.0), first) for posterior in (running, fresh, exact)}
            assert len(choices) == 1
            error = np.abs(running.mean - exact.solve(np.arange(400)).mean).max()
            assert error < mean_tolerance(running._tol, 1.0, running.observations)
    product_alone = running._tol * np.linalg.norm(running.observations.weights[:40])
    assert error > 50 * product_alone
