"""UCB on rewards with Laplace noise, by its exact likelihood: assumed-density filtering."""

from math import erfc, exp, pi, sqrt

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.gp.single_thread_blas import add_outer
from blindopt.optimizer.algorithms.bandits.few_arms import BanditProblem, FewArms

_FAR = 1e6  # standard deviations: beyond, the step has its limit


def laplace_step(distance: float, variance: float, scale: float) -> tuple[float, float]:
    """First and second derivative of ln Z by the mean, Z = E Laplace(y; f, L) for f of mean mu and ``variance`` s2.

    ``distance`` is y - mu, ``scale`` L. With d = |distance| and
    A = erfc((s2/L - d) / sqrt(2 s2)), B = exp(2d/L) erfc((s2/L + d) / sqrt(2 s2)):
    g = (A - B) / ((A + B) L), h = 1/L^2 - N(d; 0, s2) / (L^2 Z) - g^2. A and B share a factor that overflows and
    underflows; it is taken out where it can.
    """
    from scipy.special import erfcx  # late, for a fast start of the services

    d, sd = abs(distance), sqrt(variance)
    near, far = (variance / scale - d) / (sd * sqrt(2)), (variance / scale + d) / (sd * sqrt(2))
    if near > -_FAR:
        # B exp(near^2) = erfcx(far) always; A exp(near^2) = erfcx(near) grows beyond doubles below 0.
        share = exp(-near * near) if near < 0 else 1.0
        a = erfc(near) if near < 0 else float(erfcx(near))
        b = float(erfcx(far)) * share
        density = 4 * scale * share / (sqrt(2 * pi) * sd * (a + b))  # N(d; 0, s2) / Z
    else:
        a, b, density = 2.0, 0.0, 0.0
    g = (a - b) / (a + b) / scale
    h = (1 - density) / scale**2 - g * g
    # The law is log-concave: the variance falls, and stays above 0. Rounding may say otherwise.
    return (g if distance >= 0 else -g), min(max(h, -1 / variance), 0.0)


class LaplaceAdf(FewArms):
    """The arm of largest mean + beta sd; the prior is B^2 K, and each reward is one exact step with its Laplace law.

    mu += g c, C += h c c^T with c = C[:, a]: the Gaussian with the moments of the true posterior after the step.
    The measurement noise is left out: fine while R is much smaller than L.
    """

    def __init__(self, problem: BanditProblem, beta: float) -> None:
        super().__init__(problem)
        self.beta = beta
        self.mean: Vector = np.zeros(len(problem.gram))
        self.covariance = np.ascontiguousarray(problem.gram * problem.law.value_bound**2)
        self._variance = np.einsum("ii->i", self.covariance)
        self._answered: Matrix | None = None
        """The covariance without the pending rounds of a batch; None outside of one."""

    def estimates(self) -> tuple[Vector, Vector, float, float]:
        return self.mean, self._variance, self.beta, 1.0

    def _learn(self, arm: int, reward: float) -> None:
        column = self.covariance[:, arm].copy()
        variance = float(column[arm])
        if not variance > 0:  # nothing is left to learn there
            return
        g, h = laplace_step(reward - float(self.mean[arm]), variance, self.problem.law.scale)
        self.mean += g * column
        column *= sqrt(-h)
        add_outer(self.covariance, column, column, -1.0)

    def suppose(self, row: int) -> None:
        """Add a pending round, as if its reward were the mean: the step is then of the covariance alone."""
        self._answered = self.covariance.copy() if self._answered is None else self._answered
        self._learn(row, float(self.mean[row]))

    def retract(self) -> None:
        if self._answered is not None:
            self.covariance, self._answered = self._answered, None
            self._variance = np.einsum("ii->i", self.covariance)
