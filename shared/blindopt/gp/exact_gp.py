"""Exact inference with a Gaussian process: the posterior at a few candidates, given outcomes at others."""

from math import sqrt
from typing import NamedTuple

import numpy as np

from blindopt.arrays import Matrix, Rows, Vector
from blindopt.errors import NumericalFailure
from blindopt.gp.kernels import Kernel
from blindopt.gp.observations import OUTCOME_MAX, Observations, times_transposed
from blindopt.gp.single_thread_blas import factors, right_product


class Solution(NamedTuple):
    """Exact moments of m candidates: their whitened rows v (m, t), means and variances (m,).

    >>> Solution(np.array([7]), np.zeros((1, 0)), np.array([0.5]), np.array([1.0])).mean
    array([0.5])
    """

    rows: Rows
    whitened: Matrix
    mean: Vector
    variance: Vector


class ExactGP:
    """A Gaussian process at n candidates, conditioned on t observations y = f + noise.

    Let k_i (t,) be the covariances of candidate i with the observed ones, K (t, t) those among the observed ones, S
    the diagonal matrix of noise variances, and m the prior mean. By Rasmussen & Williams (2006), eqs. 2.25-2.26,

        mean_i = m + k_i^T (K + S)^-1 (y - m),  variance_i = k_ii - k_i^T (K + S)^-1 k_i.

    With L the Cholesky factor of K + S, w = L^-1 (y - m) and the whitened row v_i = L^-1 k_i, these are m + v_i . w
    and k_ii - |v_i|^2. Another observation appends a row to L, and a number to w and to each v_i.

    Candidates (n, r) are ``candidates``, ``kernel`` is their covariance, ``prior_mean`` is in units of the outcome, and
    ``capacity`` is the most observations. Variances are in squared units of the outcome: ``noise_variance`` is the
    usual one of an observation, and ``nugget`` is that of a part of f that each row has for itself (see
    ``input_noise``). Coordinates are multiplied by ``scales`` (r,) first, if there are any. A row may be observed
    again.
    """

    def __init__(
        self,
        candidates: Matrix,
        kernel: Kernel,
        *,
        noise_variance: float,
        prior_mean: float,
        nugget: float,
        capacity: int,
        scales: Vector | None,
    ) -> None:
        self.n, r = candidates.shape
        self._candidates, self._kernel, self._prior_mean = candidates, kernel, float(prior_mean)
        self._scales = scales
        self._prior_variance, self.nugget = kernel.variance + nugget, nugget
        self.observations = Observations(r, noise_variance, nugget, capacity)
        self._solved: Solution | None = None  # the row to observe next is often among those solved for last

    @property
    def count(self) -> int:
        """t: observations so far, supposed ones included."""
        return self.observations.count

    def observe(self, row: int, outcome: float, noise_variance: float | None = None) -> None:
        """Condition on ``outcome`` at candidate ``row``; ``noise_variance`` is its own, if it differs from the usual.

        Raises IndexError past n or the capacity, and NumericalFailure for an outcome or a variance that is no number.
        """
        whitened, mean, pivot = self._next_row(row, noise_variance)
        weight = (outcome - mean) / pivot if abs(outcome) <= OUTCOME_MAX and 0 < pivot < np.inf else np.nan
        if not abs(weight) <= OUTCOME_MAX:  # refuses NaN too
            raise NumericalFailure(f"outcome {self.count + 1} cannot be absorbed: check its value")
        self.observations.append(row, self._inputs(row), whitened, pivot, weight)

    def begin(self, rows: Rows, outcomes: Vector, noise_variances: Vector) -> None:
        """Condition on the first t ``outcomes`` (t,) of ``rows`` (t,) together, with ``noise_variances`` (t,).

        One factorization takes the place of t rows, whose last digits it changes: anyone who repeats the choices
        begins with the same ones together. Outcomes whose covariance cannot be factored are taken one by one. Raises as
        ``observe``.
        """
        assert not self.count, "only the first outcomes come together"
        inputs = self._inputs(rows)
        gram = self._kernel(inputs, inputs)
        if self.nugget:
            gram += self.nugget * (rows[:, None] == rows)
        np.einsum("ii->i", gram)[:] += noise_variances
        off = outcomes - self._prior_mean
        try:
            factor, inverse = factors(gram)
            weights = right_product(inverse, off)
            weights += right_product(inverse, off - right_product(factor, weights))
            if not (np.abs(weights).max(initial=0.0) <= OUTCOME_MAX and (noise_variances > 0).all()):
                raise NumericalFailure("outcomes cannot be absorbed: check their values")
        except NumericalFailure:
            for row, outcome, noise_variance in zip(rows.tolist(), outcomes.tolist(), noise_variances, strict=True):
                self.observe(row, outcome, float(noise_variance))
        else:
            self.observations.begin(rows, inputs, factor, inverse, weights)

    def suppose(self, row: int, noise_variance: float | None = None) -> None:
        """Condition on an outcome at ``row`` that is still to come, as if it were the posterior mean there.

        ``noise_variance`` is its own, if it differs from the usual.

        Means stay, and variances fall as they will whatever it is: Desautels et al. (2014), section 4.
        """
        whitened, _, pivot = self._next_row(row, noise_variance)
        if not 0 < pivot < np.inf:
            raise NumericalFailure(f"row {row} cannot be supposed to be queried: its variance is lost")
        self.observations.append(row, self._inputs(row), whitened, pivot, 0.0)

    def retract(self, count: int) -> None:
        """Go back to the first ``count`` observations; ValueError if there are fewer."""
        if count != self.count:
            self.observations.retract(count)
            self._solved = None

    def solve(self, rows: Rows) -> Solution:
        """Whitened rows v (m, t) and moments (m,) of a few candidates ``rows``, in float64.

        Their bits depend on row and observations alone, because ``einsum`` without BLAS sums each entry in one order.
        A step of iterative refinement makes up for the explicit inverse of L.
        """
        t, observed = self.count, self.observations
        cross = self._kernel(self._inputs(rows), observed.inputs[:t])
        if self.nugget:
            cross += self.nugget * (rows[:, None] == observed.rows[:t])
        factor, inverse = observed.factor[:t, :t], observed.inverse[:t, :t]
        whitened = times_transposed(cross, inverse)
        cross -= times_transposed(whitened, factor)
        whitened += times_transposed(cross, inverse)
        mean = self._prior_mean + np.einsum("ij,j->i", whitened, observed.weights[:t])
        variance = self._prior_variance - np.einsum("ij,ij->i", whitened, whitened)
        self._solved = Solution(rows, whitened, mean, np.maximum(variance, 0.0))
        return self._solved

    def _inputs(self, rows: Rows | int) -> Matrix:
        inputs: Matrix = np.asarray(self._candidates[rows])
        return inputs if self._scales is None else inputs * self._scales

    def _next_row(self, row: int, noise_variance: float | None) -> tuple[Vector, float, float]:
        """Whitened row (t,) and pivot that an observation at ``row`` adds to L; between them, the mean there."""
        if not 0 <= row < self.n:
            raise IndexError(f"row {row} of {self.n} candidates")
        noise = self.observations.next_noise(noise_variance)
        if (solved := self._solved) is None or row not in solved.rows.tolist():
            solved = self.solve(np.array([row]))
        i, self._solved = solved.rows.tolist().index(row), None
        return solved.whitened[i], float(solved.mean[i]), sqrt(solved.variance[i] + noise)
