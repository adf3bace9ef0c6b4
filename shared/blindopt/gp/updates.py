"""Rounded posterior moments of candidates, brought up to date with the observations in plain numpy."""

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.gp.candidates import Candidates, Precision
from blindopt.gp.observations import LocalObservations

COLUMN_ROWS = 1 << 16
"""Candidates whose next column is computed together."""
BLOCK_NUMBERS = 1 << 17
"""Numbers in a temporary array of an update, so that it stays in the cache."""
_BLOCK_ROWS_MIN = 64


class Moments:
    """Whitened rows V (n, capacity), means and variances (n,) of candidates, all with as many observations.

    They start as those of the prior. ``whitened`` grows by columns, and has the precision ``dtype``.
    """

    def __init__(
        self,
        candidates: Candidates,
        observations: LocalObservations,
        *,
        prior_mean: float,
        prior_variance: float,
        nugget: float,
        capacity: int,
        dtype: Precision,
    ) -> None:
        n = len(candidates.extended)
        self._candidates, self._observations, self._nugget = candidates, observations, nugget
        self._prior_mean, self._prior_variance = prior_mean, prior_variance
        self._whitened: Matrix = np.empty((n, capacity), dtype, order="F")
        self._count = 0
        self.mean: Vector = np.full(n, prior_mean)
        self.variance: Vector = np.full(n, prior_variance)

    def refresh(self) -> None:
        """Bring all candidates up to date."""
        s, t = self._count, self._observations.count
        if s == t - 1:
            self._append_column(s)
        elif s < t:
            self._append_columns(s, t)
        self._count = t

    def retract(self, count: int) -> None:
        """Go back to the first ``count`` observations, if there are more."""
        if self._count <= count:
            return
        weights = self._observations.of_all.weights[:count].astype(self._whitened.dtype, copy=False)
        for rows in self._blocks(count):
            whitened = self._whitened[rows, :count]
            self.mean[rows] = self._prior_mean + whitened @ weights
            explained = np.einsum("ij,ij->i", whitened, whitened)
            self.variance[rows] = np.maximum(self._prior_variance - explained, 0.0)
        self._count = count

    def _append_column(self, s: int) -> None:
        """Append column s of all whitened rows, by forward substitution."""
        observed, whitened, mean, variance = self._observations, self._whitened, self.mean, self.variance
        of_all = observed.of_all
        factor = of_all.factor[s, : s + 1].astype(whitened.dtype, copy=False)
        size = min(COLUMN_ROWS, len(mean))
        for start in range(0, len(mean), size):
            rows = slice(start, start + size)
            column = self._candidates.covariance(rows, observed.dual[:, s : s + 1])[:, 0]
            if self._nugget and start <= observed.rows[s] < start + size:
                column[observed.rows[s] - start] += self._nugget
            if s:
                column -= whitened[rows, :s] @ factor[:s]
            new = np.divide(column, factor[s], out=whitened[rows, s])
            mean[rows] += np.multiply(new, of_all.weights[s], out=column)
            variance[rows] -= np.multiply(new, new, out=column)
        np.maximum(variance, 0.0, out=variance)

    def _append_columns(self, s: int, t: int) -> None:
        """Append columns s .. t - 1: (K - V L_old^T) L_new^-T, with the inverse of the new block of L.

        A product is eight times as fast as a substitution.
        """
        observed, dtype = self._observations.of_all, self._whitened.dtype
        old_factor = observed.factor[s:t, :s].T.astype(dtype, copy=False)
        inverse = observed.inverse[s:t, s:t].T.astype(dtype, copy=False)
        weights = observed.weights[s:t].astype(dtype, copy=False)
        for rows in self._blocks(t):
            new = self._observations.covariance(rows, s)
            if s:
                new -= self._whitened[rows, :s] @ old_factor
            self._whitened[rows, s:t] = new = new @ inverse
            self.mean[rows] += new @ weights
            explained = np.einsum("ij,ij->i", new, new)
            self.variance[rows] = np.maximum(self.variance[rows] - explained, 0.0)

    def _blocks(self, count: int) -> list[slice]:
        """Candidates whose ``count`` columns are computed together."""
        n, size = len(self.mean), max(_BLOCK_ROWS_MIN, BLOCK_NUMBERS // max(1, count))
        return [slice(start, min(start + size, n)) for start in range(0, n, size)]
