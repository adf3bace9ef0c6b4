"""GP-UCB for many runs at once, against the posterior that everyone else uses."""

import numpy as np
import pytest

from blindopt.gp.acquisition import beta
from blindopt.gp.kernels import Matern52, SquaredExponential
from blindopt.gp.posterior import Posterior
from curator_service.tuning.methods.simulation import ucb

GRID = np.linspace(0, 1, 40)[:, None]


@pytest.mark.parametrize("kernel", [SquaredExponential(0.2), Matern52(0.3)], ids=repr)
@pytest.mark.parametrize("sigma", [0.03, 0.3])
def test_each_of_many_runs_is_the_run_of_one_posterior(kernel, sigma):
    rng = np.random.default_rng(3)
    covariance = kernel(GRID, GRID)
    functions = rng.multivariate_normal(np.zeros(40), covariance, size=5, method="eigh")
    noise = rng.normal(scale=sigma, size=(60, 5))
    betas = np.array([beta(40, t, 0.05) for t in range(1, 61)])
    step = iter(range(60))

    def observe(arms):
        return functions[np.arange(5), arms] + noise[next(step)]

    means, indices, scores = ucb(covariance, sigma, betas, 5, observe)
    for run in range(5):
        posterior = Posterior(GRID, kernel, noise_variance=sigma**2, capacity=60)
        for t, weight in enumerate(betas.tolist()):
            bounds = posterior.mean + np.sqrt(weight * posterior.variance)
            assert bounds[indices[t, run]] >= bounds.max() - 1e-7
            assert scores[t, run] == functions[run, indices[t, run]] + noise[t, run]
            posterior.observe(int(indices[t, run]), float(scores[t, run]))
        np.testing.assert_allclose(means[run], posterior.mean, atol=1e-7)


def test_ties_go_to_the_first():
    _, indices, _ = ucb(np.eye(6), 0.1, np.full(6, 4.0), 1, lambda arms: np.zeros(1))
    assert indices[:, 0].tolist() == list(range(6))
