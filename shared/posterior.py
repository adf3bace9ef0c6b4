"""The exact Gaussian-process posterior at every candidate, one outcome at a time."""

import numpy as np

from shared.errors import NumericalFailure
from shared.kernels import SquaredExponential
from shared.matrix import Matrix, Vector

OUTCOME_MAX = 1e150  # its square is still a number


class Posterior:
    """Posterior mean and variance of f at all n candidates, after each outcome.

    Equals eq. (1) of Kharkovskii et al. (2020) (Rasmussen & Williams 2006, eqs. 2.25-2.26), without
    ever building an n x n or refitting a t x t matrix: with the whitened columns V (n, t) of the
    observed rows, the posterior covariance is K - V V^T, and an outcome y at row i adds the column

        c = (k(Z, z_i) - V V_i^T) / sqrt(variance_i + noise_variance)

    A step costs O(n (t + r)) time; the whole run holds n * capacity numbers. A row may be observed
    again. ``noise_variance`` is in squared units of the outcome and must be positive.
    """

    def __init__(
        self,
        candidates: Matrix,
        kernel: SquaredExponential,
        *,
        noise_variance: float,
        prior_mean: float = 0.0,
        capacity: int,
    ) -> None:
        if not 0 < noise_variance < np.inf:
            raise ValueError(f"noise_variance must be positive and finite, not {noise_variance}")
        if not np.isfinite(candidates).all():
            raise NumericalFailure("the candidates hold a number that is not finite")
        n = len(candidates)
        self._candidates = candidates
        self._kernel = kernel
        self._noise_variance = noise_variance
        # One contiguous row per outcome: the update below then reads memory in order.
        self._whitened: Matrix = np.empty((capacity, n))
        self.count = 0
        self.mean: Vector = np.full(n, float(prior_mean))
        self.variance: Vector = np.full(n, kernel.variance)

    def observe(self, row: int, outcome: float) -> None:
        """Condition on ``outcome`` at candidate ``row``.

        Raises NumericalFailure, and changes nothing, if the outcome is not finite or the
        factorization has lost its positive pivot; IndexError past n or past the capacity.
        """
        if not 0 <= row < len(self.mean):
            raise IndexError(f"row {row} of {len(self.mean)} candidates")
        if self.count == len(self._whitened):
            raise IndexError(f"the posterior was built for {self.count} outcomes")
        pivot = self.variance[row] + self._noise_variance
        if not (abs(outcome) <= OUTCOME_MAX and np.isfinite(pivot) and pivot > 0):  # refuses NaN too
            raise NumericalFailure(f"outcome {self.count + 1} cannot be absorbed: check its value")
        seen = self._whitened[: self.count]
        column = self._kernel(self._candidates, self._candidates[row : row + 1])[:, 0]
        column -= seen[:, row] @ seen
        column /= np.sqrt(pivot)
        self.mean += column * ((outcome - self.mean[row]) / np.sqrt(pivot))
        self.variance -= column * column
        np.maximum(self.variance, 0.0, out=self.variance)  # rounding may dip below zero
        self._whitened[self.count] = column
        self.count += 1
