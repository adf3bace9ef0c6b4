"""Climbing in a box, against L-BFGS-B and the conditions of an optimum."""

import numpy as np
import pytest
from scipy.optimize import minimize as by_scipy
from scipy.optimize import rosen, rosen_der

from blindopt.gp.climbing import minimize
from blindopt.gp.kernels import SquaredExponential
from blindopt.gp.posterior import Posterior


@pytest.mark.parametrize("p", [1, 2, 5, 20])
def test_the_smallest_value_of_a_parabola_in_a_box_is_reached(p):
    rng = np.random.default_rng(p)
    root = rng.normal(size=(p, p))
    matrix, centre = root @ root.T + np.eye(p), rng.normal(size=p)
    low, high = np.full(p, -0.5), np.full(p, 0.7)

    def parabola(x):
        return 0.5 * (x - centre) @ matrix @ (x - centre), matrix @ (x - centre)

    x = minimize(parabola, rng.normal(size=p), low, high)
    expected = by_scipy(parabola, np.zeros(p), jac=True, bounds=list(zip(low, high, strict=True)), options={"ftol": 0})
    np.testing.assert_allclose(x, expected.x, atol=1e-5)
    inside = (x > low) & (x < high)
    gradient = parabola(x)[1]
    assert np.abs(gradient[inside]).max(initial=0.0) < 1e-4
    assert ((gradient > 0) == (x <= low))[~inside].all()


def test_a_curved_valley_is_followed_with_few_evaluations_and_its_bound_is_kept():
    calls = []

    def valley(x):
        calls.append(x)
        assert (np.clip(x, -2, [2, 2, 0.9]) == x).all()
        return rosen(x), rosen_der(x)

    x = minimize(valley, np.array([-1.2, 1.0, 0.5]), np.full(3, -2.0), np.array([2.0, 2.0, 0.9]))
    expected = by_scipy(rosen, x, jac=rosen_der, bounds=[(-2, 2), (-2, 2), (-2, 0.9)], options={"ftol": 1e-15})
    np.testing.assert_allclose(x, expected.x, atol=1e-4)
    assert len(calls) < 120


@pytest.mark.parametrize("t", [7, 60])
def test_outcomes_taken_together_have_the_moments_of_outcomes_taken_one_by_one(t):
    rng = np.random.default_rng(0)
    z, y = rng.uniform(size=(300, 2)), rng.normal(size=300)
    rows, noise = rng.integers(0, 200, size=t), rng.uniform(1e-3, 1.0, size=t)
    one_by_one, together = (
        Posterior(z, SquaredExponential(0.3), noise_variance=0.1, prior_mean=2.0, nugget=0.2, capacity=t + 1)
        for _ in range(2)
    )
    for row, own in zip(rows, noise, strict=True):
        one_by_one.observe(int(row), float(y[row]), float(own))
    together.observe = None  # which it takes where one factorization fails
    together.begin(rows, y[rows], noise)
    del together.observe
    for posterior in (one_by_one, together):
        posterior.observe(5, 1.0)
    np.testing.assert_allclose(together.mean, one_by_one.mean, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(together.variance, one_by_one.variance, rtol=1e-11)
    first, second = (posterior.observations for posterior in (one_by_one, together))
    np.testing.assert_allclose(second.factor[: t + 1, : t + 1], first.factor[: t + 1, : t + 1], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(second.weights[: t + 1], first.weights[: t + 1], rtol=1e-9, atol=1e-11)


def test_outcomes_that_cannot_be_factored_together_are_taken_one_by_one():
    z = np.zeros((3, 1))
    together = Posterior(z, SquaredExponential(1.0), noise_variance=1.0, capacity=40)
    together.begin(np.zeros(40, dtype=np.intp), np.ones(40), np.full(40, 1e-18))
    assert (together.count, together.mean[0]) == (40, pytest.approx(1.0))
