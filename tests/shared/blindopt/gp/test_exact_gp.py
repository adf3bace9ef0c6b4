"""The Gaussian process itself: first outcomes that come together, and what it refuses."""

import numpy as np
import pytest

from blindopt.errors import Invalid, NumericalFailure
from blindopt.gp.kernels import SquaredExponential
from blindopt.gp.posterior import Posterior
from blindopt.gp.single_thread_blas import factors, right_product

ROWS = np.array([3, 0, 5, 1])
NOISE = np.full(4, 0.1)


def process(candidates=None):
    z = np.linspace(0.0, 3.0, 8)[:, None] if candidates is None else candidates
    options = {"noise_variance": 0.1, "prior_mean": 0.5, "capacity": 60}
    return Posterior(z, SquaredExponential(1.0), **options)


@pytest.mark.parametrize("wrong", [np.nan, 1e200])
def test_an_outcome_that_is_no_number_or_too_large_is_refused_among_the_first_too(wrong):
    with pytest.raises(NumericalFailure, match="outcome 3 cannot be absorbed"):
        process().begin(ROWS, np.array([1.0, 2.0, wrong, 0.5]), NOISE)


@pytest.mark.parametrize("wrong", [0.0, -0.1, np.nan])
def test_first_outcomes_without_positive_noise_are_refused(wrong):
    with pytest.raises(Invalid, match="noise_variance must be positive"):
        process().begin(ROWS, np.array([1.0, 0.3, 2.0, 0.5]), np.array([0.1, wrong, 0.1, 0.2]))


def test_the_weights_of_first_outcomes_are_refined_once():
    """Residuals of L w = y - m, computed with more digits, are far below those of one product with the inverse."""
    z = np.sort(np.random.default_rng(0).uniform(0, 1, size=(40, 1)), axis=0)
    outcomes, noises, rows = np.cos(5 * z[:, 0]), np.full(40, 1e-12), np.arange(40)
    gp = process(z)
    gp.begin(rows, outcomes, noises)
    kernel = SquaredExponential(1.0)
    factor, inverse = factors(kernel(z, z) + np.diag(noises))
    exact, off = factor.astype(np.longdouble), (outcomes - 0.5).astype(np.longdouble)

    def residual(weights):
        return float(np.abs(exact @ weights.astype(np.longdouble) - off).max())

    assert residual(gp.observations.weights[:40]) < 0.1 * residual(right_product(inverse, outcomes - 0.5))
