"""gamma_T: against every multiset of a small grid, and between greedy and its certificate elsewhere."""

import itertools

import numpy as np
import pytest

from blindopt.gp.kernels import KERNELS, SquaredExponential
from curator_service.tuning.methods.information import greedy_design, largest_gain
from curator_service.tuning.methods.prior import design_sd, posterior_weights

LINE = np.linspace(0, 1, 100)[:, None]
SQUARE = np.stack(np.meshgrid(np.linspace(0, 1, 10), np.linspace(0, 1, 10)), -1).reshape(-1, 2)


def gain_of(covariance, arms, sigma):
    """1/2 ln det(I + sigma^-2 K_A), as it is written."""
    arms = list(arms)
    return 0.5 * np.linalg.slogdet(np.eye(len(arms)) + covariance[np.ix_(arms, arms)] / sigma**2)[1]


@pytest.mark.parametrize("kind", sorted(KERNELS))
@pytest.mark.parametrize(("evaluations", "sigma"), [(3, 0.5), (5, 0.1), (6, 1.0)])
def test_it_holds_the_best_of_all_multisets(kind, evaluations, sigma):
    covariance = KERNELS[kind](0.4)(LINE[::20], LINE[::20])
    best = max(
        gain_of(covariance, arms, sigma) for arms in itertools.combinations_with_replacement(range(5), evaluations)
    )
    gain = largest_gain(covariance, sigma, evaluations)
    assert gain.lower <= best * (1 + 1e-12)
    assert best <= gain.upper * (1 + 1e-12)


@pytest.mark.parametrize("sigma", [0.05, 0.1])
@pytest.mark.parametrize("evaluations", [200, 500])
@pytest.mark.parametrize(
    ("grid", "lengthscale"), [(LINE, 0.1), (LINE, 0.2), (SQUARE, 0.2)], ids=["rough", "line", "2d"]
)
def test_it_is_known_within_one_in_a_hundred(grid, lengthscale, evaluations, sigma):
    covariance = SquaredExponential(lengthscale)(grid, grid)
    gain = largest_gain(covariance, sigma, evaluations)
    assert gain.lower <= gain.upper <= 1.01 * gain.lower
    arms, greedy = greedy_design(covariance, sigma, evaluations)
    assert greedy == gain.lower == pytest.approx(gain_of(covariance, arms, sigma), rel=1e-8)


def test_no_design_at_random_passes_the_certificate(rng):
    covariance = SquaredExponential(0.2)(LINE, LINE)
    gain = largest_gain(covariance, 0.1, 50)
    assert max(gain_of(covariance, rng.integers(100, size=50), 0.1) for _ in range(200)) < gain.upper


def test_the_design_looks_where_it_knows_least():
    covariance = SquaredExponential(0.2)(LINE, LINE)
    arms, _ = greedy_design(covariance, 0.1, 40)
    chosen = []
    for arm in arms.tolist():
        among = covariance[np.ix_(chosen, chosen)] + 0.01 * np.eye(len(chosen))
        whole = covariance[chosen]
        variance = covariance.diagonal() - (
            np.einsum("ij,ij->j", whole, np.linalg.solve(among, whole)) if chosen else 0
        )
        assert variance[arm] >= variance.max() - 1e-9
        chosen.append(arm)


def test_the_sensitivity_of_a_design_is_that_of_simulated_neighbours(rng):
    """The exact sd of mu' - mu with equal noise, against 20,000 pairs; each sd errs by 0.5 %."""
    covariance, sigma, apart = SquaredExponential(0.2)(LINE, LINE), 0.1, 0.01
    arms, _ = greedy_design(covariance, sigma, 60)
    weights = posterior_weights(covariance, arms, sigma)
    oracle = covariance[:, arms] @ np.linalg.inv(covariance[np.ix_(arms, arms)] + sigma**2 * np.eye(60))
    np.testing.assert_allclose(weights, oracle, atol=1e-8)
    difference = rng.multivariate_normal(np.zeros(100), 2 * apart * covariance, size=20_000, method="eigh")
    moved = difference[:, arms] @ weights.T  # the noise of both is the same, and cancels
    np.testing.assert_allclose(design_sd(covariance, arms, sigma, apart), moved.std(axis=0), rtol=0.03)


@pytest.fixture
def rng():
    return np.random.default_rng(11)
