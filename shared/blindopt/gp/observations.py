"""Outcomes so far, as the posterior reads them: the Cholesky factor of their covariance, and what is derived of it."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Rows, Vector
from blindopt.errors import NumericalFailure
from blindopt.gp.candidates import Points, Precision
from blindopt.gp.kernels import Kernel

OUTCOME_MAX = 1e150  # its square is still a number
Loops = tuple[Matrix, Rows, Matrix, Vector, int]
"""What compiled loops read: queries (t or more, q + 2), rows asked, factor, weights, and how many they are."""
Solved = tuple[int, Vector, float, float]
T = TypeVar("T", bound=np.generic)


class Outcomes:
    """t outcomes y at candidates z_asked, with noise each of its own variance.

    ``factor`` L (t, t) is the Cholesky factor of their covariance and ``inverse`` L^-1; ``weights`` w (t,) are
    L^-1 (y - prior mean); ``surprise`` (t + 1,) are the sums w_1^2 + ... + w_s^2 for s = 0 .. t; ``rows`` (t,) were
    asked, and ``queries`` (q + 2, t) are these as ``Points`` takes covariances with them. All have room for more
    outcomes than there are, up to ``capacity``: read the first ``count``.
    """

    def __init__(
        self,
        points: Points,
        candidates: Matrix,
        kernel: Kernel,
        *,
        noise_variance: float,
        prior_mean: float,
        nugget: float,
        capacity: int,
        dtype: Precision,
    ) -> None:
        self._points, self._candidates, self._kernel, self._nugget = points, candidates, kernel, nugget
        self._noise_variance, self._prior_mean = noise_variance, prior_mean
        self._prior_variance = kernel.variance + nugget
        self._capacity = capacity
        self._solved: Solved | None = None  # the row solved for last: it is most often observed next
        self._at: Matrix = np.empty((0, candidates.shape[1]))
        self.count = 0
        self.rows: Rows = np.empty(0, dtype=np.intp)
        self.factor: Matrix = np.empty((0, 0))
        self.inverse: Matrix = np.empty((0, 0))
        self.weights: Vector = np.empty(0)
        self.surprise: Vector = np.zeros(1)
        self.queries: Matrix = np.empty((points.columns, 0), dtype)

    def observe(self, row: int, outcome: float, noise_variance: float | None = None) -> None:
        """One more outcome. Errors: see ``Posterior.observe``."""
        whitened, mean, pivot = self._next(row, noise_variance)
        if not (abs(outcome) <= OUTCOME_MAX and np.isfinite(pivot) and pivot > 0):  # refuses NaN too
            raise NumericalFailure(f"outcome {self.count + 1} cannot be absorbed: check its value")
        weight = (outcome - mean) / pivot
        surprise = float(self.surprise[self.count]) + float(weight) ** 2 if abs(weight) <= OUTCOME_MAX else np.inf
        if not np.isfinite(surprise):
            raise NumericalFailure(f"outcome {self.count + 1} cannot be absorbed: check its value")
        self._append(row, whitened, pivot, weight, surprise)

    def suppose(self, row: int, noise_variance: float | None = None) -> None:
        """One more, that is the posterior mean. Errors: see ``Posterior.suppose``."""
        whitened, _, pivot = self._next(row, noise_variance)
        if not (np.isfinite(pivot) and pivot > 0):
            raise NumericalFailure(f"row {row} cannot be supposed to be asked: its variance is lost")
        self._append(row, whitened, pivot, 0.0, float(self.surprise[self.count]))

    def retract(self, count: int) -> None:
        """Go back to the first ``count``; ValueError where there are fewer."""
        if not 0 <= count <= self.count:
            raise ValueError(f"there are {self.count} outcomes, not {count}")
        self.count, self._solved = count, None

    def solve(self, rows: Rows) -> tuple[Matrix, Vector, Vector]:
        """Whitened rows (m, t), means and variances (m,) of a few candidates, in float64.

        Bits depend on row and outcomes alone: ``einsum`` without BLAS sums each entry in one order, however many
        there are. One step of refinement makes up for the explicit inverse.
        """
        t = self.count
        wanted = self._kernel(np.asarray(self._candidates[rows]), self._at[:t])
        if self._nugget:
            wanted += self._nugget * (rows[:, None] == self.rows[:t])
        factor, inverse = self.factor[:t, :t], self.inverse[:t, :t]
        whitened = np.einsum("ij,kj->ik", wanted, inverse)
        wanted -= np.einsum("ij,kj->ik", whitened, factor)
        whitened += np.einsum("ij,kj->ik", wanted, inverse)
        mean = self._prior_mean + np.einsum("ij,j->i", whitened, self.weights[:t])
        variance = self._prior_variance - np.einsum("ij,ij->i", whitened, whitened)
        return whitened, mean, np.maximum(variance, 0.0)

    def remember(self, row: int, whitened: Vector, mean: float, variance: float) -> None:
        """What ``solve`` found for the row that is likely to be observed next."""
        self._solved = row, whitened, mean, variance

    def covariance(self, place: Rows | slice, rows: Rows, since: int) -> Matrix:
        """Covariances of candidates with the outcomes ``since`` .. t; ``rows`` are their numbers, ``place`` where."""
        found: Matrix = self._points.covariance(place, self.queries[:, since : self.count])
        if self._nugget:
            found += self._nugget * (rows[:, None] == self.rows[since : self.count])
        return found

    def loops(self) -> Loops:
        """As compiled loops read them."""
        return self.queries.T, self.rows, self.factor, self.weights, self.count

    def _next(self, row: int, noise_variance: float | None) -> tuple[Vector, float, float]:
        """Whitened row, mean, and standard deviation of the next outcome, if it is asked at ``row``."""
        if not 0 <= row < len(self._candidates):
            raise IndexError(f"row {row} of {len(self._candidates)} candidates")
        if self.count == self._capacity:
            raise IndexError(f"the posterior was built for {self.count} outcomes")
        noise = self._noise_variance if noise_variance is None else noise_variance
        if not 0 < noise < np.inf:
            raise ValueError(f"noise_variance must be positive and finite, not {noise}")
        if self._solved is None or self._solved[0] != row:
            whitened, mean, variance = self.solve(np.array([row]))
            self._solved = row, whitened[0], float(mean[0]), float(variance[0])
        _, known, expected, left = self._solved
        return known, expected, float(np.sqrt(left + noise))

    def _append(self, row: int, whitened: Vector, pivot: float, weight: float, surprise: float) -> None:
        t = self.count
        if t == len(self.weights):
            self._grow(min(max(16, 2 * t), self._capacity))
        self.rows[t], self._at[t] = row, self._candidates[row]
        self.queries[:, t] = self._points.queries(self.rows[t : t + 1])[:, 0]
        self.factor[t, :t], self.factor[t, t] = whitened, pivot
        self.inverse[t, :t] = -np.einsum("j,jk->k", whitened, self.inverse[:t, :t]) / pivot
        self.inverse[t, t] = 1.0 / pivot
        self.weights[t], self.surprise[t + 1] = weight, surprise
        self.count, self._solved = t + 1, None

    def _grow(self, size: int) -> None:
        self.rows, self.weights = _grown(self.rows, size), _grown(self.weights, size)
        self._at = _grown(self._at, size, self._at.shape[1])
        self.factor, self.inverse = _grown(self.factor, size, size), _grown(self.inverse, size, size)
        self.surprise = _grown(self.surprise, size + 1)
        self.queries = _grown(self.queries, len(self.queries), size)


def _grown(old: NDArray[T], *shape: int) -> NDArray[T]:
    new = np.zeros(shape, old.dtype)
    new[tuple(slice(length) for length in old.shape)] = old
    return new
