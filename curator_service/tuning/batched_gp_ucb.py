"""GP-UCB over a finite grid, for many runs side by side: the private run is one of one, a simulation is thousands."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Vector

Arms = NDArray[np.intp]
Observe = Callable[[Arms], Vector]
"""From one grid place for each run (b,) to a score for each (b,), in scaled units."""


def ucb(covariance: Matrix, sigma: float, weights: Vector, runs: int, observe: Observe) -> tuple[Matrix, Arms, Matrix]:
    """Posterior means (runs, n) after T = len(weights) scores, places (T, runs), and scores (T, runs).

    Each step scores the largest mean + sqrt(beta_t variance); where several are largest, the first: a rule that draws
    nothing, the same in every run. Source: Kusner et al. (2015), eqs. 2-3.
    """
    n, steps = len(covariance), len(weights)
    prior = covariance.diagonal()
    mean, variance = np.zeros((runs, n)), np.tile(prior, (runs, 1))
    whitened = np.empty((runs, steps, n))
    every = np.arange(runs)
    places, scores = np.empty((steps, runs), dtype=np.intp), np.empty((steps, runs))
    for t, weight in enumerate(weights.tolist()):
        arms = places[t] = (mean + np.sqrt(weight * variance)).argmax(axis=1)
        values = scores[t] = observe(arms)
        old = whitened[:, :t]
        row = covariance[arms] - np.matmul(old[every, :, arms][:, None, :], old)[:, 0]
        pivot = np.sqrt(variance[every, arms] + sigma**2)
        row /= pivot[:, None]
        whitened[:, t] = row
        mean += row * ((values - mean[every, arms]) / pivot)[:, None]
        variance -= row**2
        np.maximum(variance, 0.0, out=variance)
    return mean, places, scores
