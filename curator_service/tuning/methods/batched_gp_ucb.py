"""GP-UCB over a finite grid, for many runs at once: one for a private search, thousands for a simulation."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Vector

Arms = NDArray[np.intp]
Observe = Callable[[Arms], Vector]
"""Returns scores (b,) in scaled units, from the grid index of each run (b,)."""


def ucb(covariance: Matrix, sigma: float, weights: Vector, runs: int, observe: Observe) -> tuple[Matrix, Arms, Matrix]:
    """Posterior means (runs, n) after T = len(weights) scores, grid indices (T, runs), and scores (T, runs).

    Each step scores the index of the largest mean + sqrt(beta_t variance), the first one of several: the rule is
    deterministic, and the same in every run. Source: Kusner et al. (2015), eqs. 2-3.
    """
    n, steps = len(covariance), len(weights)
    prior = covariance.diagonal()
    mean, variance = np.zeros((runs, n)), np.tile(prior, (runs, 1))
    whitened = np.empty((runs, steps, n))
    every = np.arange(runs)
    indices, scores = np.empty((steps, runs), dtype=np.intp), np.empty((steps, runs))
    for t, weight in enumerate(weights.tolist()):
        arms = indices[t] = (mean + np.sqrt(weight * variance)).argmax(axis=1)
        values = scores[t] = observe(arms)
        old = whitened[:, :t]
        row = covariance[arms] - np.matmul(old[every, :, arms][:, None, :], old)[:, 0]
        pivot = np.sqrt(variance[every, arms] + sigma**2)
        row /= pivot[:, None]
        whitened[:, t] = row
        mean += row * ((values - mean[every, arms]) / pivot)[:, None]
        variance -= row**2
        np.maximum(variance, 0.0, out=variance)
    return mean, indices, scores
