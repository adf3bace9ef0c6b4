"""The exact posterior at few arms that are played often: n x n numbers, whatever the number of plays."""

from copy import copy
from math import log1p
from typing import Self

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.errors import NumericalFailure
from blindopt.gp.single_thread_blas import add_outer

REWARD_MAX = 1e150  # its square is still a number


class ArmsPosterior:
    """Posterior mean and covariance of f at n arms, after each play, in O(n^2) time.

    ``gram`` (n, n) is the prior covariance K, ``lam`` the regulariser lambda. With the counts N and the
    sums S of the rewards of each arm, a play of arm a keeps

        C = (K^-1 + diag(N) / lam)^-1,  mu = C S / lam,  G = 1/2 ln det(I + K_t / lam)

    by one rank-one step. It equals the textbook form k_t^T (K_t + lam I)^-1 y of Zhou & Tan (2021), section 2,
    over the t plays; K need not have an inverse.
    """

    def __init__(self, gram: Matrix, lam: float) -> None:
        if not 0 < lam < np.inf:
            raise ValueError(f"lam must be positive and finite, not {lam}")
        n = len(gram)
        self.lam = lam
        self.covariance: Matrix = np.array(gram, dtype=np.float64, order="C")
        self.mean: Vector = np.zeros(n)
        self.counts: Vector = np.zeros(n)
        self.sums: Vector = np.zeros(n)
        self.plays = 0
        self.gain = 0.0
        """Realised information gain, in nats."""
        self.variance: Vector = np.einsum("ii->i", self.covariance)  # a view
        """Posterior variance of each arm (n,); rounding may leave one just below zero."""

    def copied(self) -> Self:
        """Return another posterior with the same plays."""
        other = copy(self)
        for name in ("covariance", "mean", "counts", "sums"):
            setattr(other, name, getattr(self, name).copy())
        other.variance = np.einsum("ii->i", other.covariance)
        return other

    def play(self, arm: int, reward: float) -> None:
        """Condition on ``reward`` at ``arm``. Changes nothing if ``check_reward`` raises NumericalFailure."""
        check_reward(reward)
        column = self.covariance[:, arm].copy()
        variance = max(float(column[arm]), 0.0)
        pivot = self.lam + variance
        self.mean += column * ((reward - float(self.mean[arm])) / pivot)
        column /= pivot**0.5  # two equal factors: C stays symmetric, to within the rounding of one update
        add_outer(self.covariance, column, column, -1.0)
        self.gain += 0.5 * log1p(variance / self.lam)
        self.counts[arm] += 1
        self.sums[arm] += reward
        self.plays += 1


def check_reward(reward: float) -> None:
    """Raise NumericalFailure if a reward or its square is not a finite number."""
    if not abs(reward) <= REWARD_MAX:  # refuses NaN too
        raise NumericalFailure("a reward cannot be absorbed: it is not finite, or too large")
