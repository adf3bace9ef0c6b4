"""Functions drawn from the kernel have its covariance."""

import numpy as np

from blindopt.gp.kernels import SquaredExponential
from curator_service.releases.forecasts.simulation import draw_functions

POINTS = np.array([[0.0, 0.0], [1.0, 0.5], [4.0, 0.0], [4.0, 0.0]])


def test_their_covariance_is_the_kernel():
    """40,000 draws, 5.5 standard errors; a lengthscale off by a tenth is caught."""
    kernel = SquaredExponential(1.5, 4.0)
    drawn = draw_functions(POINTS, kernel, 40_000, np.random.default_rng(1))
    assert drawn.shape == (40_000, 4)
    sample_covariance, exact = drawn.T @ drawn / 40_000, kernel(POINTS, POINTS)
    error = 5.5 * np.sqrt((exact**2 + 16) / 40_000)
    assert (np.abs(sample_covariance - exact) < error).all()
    assert (np.abs(sample_covariance - SquaredExponential(1.65, 4.0)(POINTS, POINTS)) > error).any()
    assert (np.abs(drawn.mean(axis=0)) < 5.5 * 2 / 200).all()


def test_records_that_coincide_have_one_outcome():
    drawn = draw_functions(POINTS, SquaredExponential(1.5, 4.0), 100, np.random.default_rng(2))
    assert np.abs(drawn[:, 2] - drawn[:, 3]).max() < 0.1


def test_many_records_in_a_smooth_kernel_can_be_factorized():
    points = np.random.default_rng(3).uniform(0, 1, (500, 2))
    drawn = draw_functions(points, SquaredExponential(5.0, 1e-6), 3, np.random.default_rng(4))
    assert np.isfinite(drawn).all()
    assert 1e-5 < drawn.std() * 1e2 < 1


def test_a_seed_decides_them():
    kernel = SquaredExponential(1.5)
    first, again = (draw_functions(POINTS, kernel, 3, np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
