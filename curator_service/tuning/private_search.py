"""The private run of GP-UCB: the same search as in simulations, on private scores."""

import numpy as np

from blindopt.arrays import Vector
from curator_service.tuning.batched_gp_ucb import Arms, ucb
from curator_service.tuning.objective import Objective
from curator_service.tuning.prior import Scaled


def posterior_mean(scaled: Scaled, weights: Vector, objective: Objective) -> tuple[Vector, float]:
    """The posterior mean (n,) after T = len(weights) noisy scores, and the largest score, in scaled units."""

    def observe(arms: Arms) -> Vector:
        return np.array([scaled.noisy(objective, int(arms[0]))])

    means, _, scores = ucb(scaled.covariance, scaled.sigma, weights, 1, observe)
    return means[0], float(scores.max())


def largest_score(scaled: Scaled, weights: Vector, objective: Objective) -> float:
    """The largest of T scores without noise, in scaled units."""

    def observe(arms: Arms) -> Vector:
        return np.array([scaled.exact(objective, int(arms[0]))])

    return float(ucb(scaled.covariance, scaled.sigma, weights, 1, observe)[2].max())
