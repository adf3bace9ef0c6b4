"""The candidates of the largest upper confidence bound, found without bringing all candidates up to date."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from blindopt.arrays import Mask, Matrix, Rows, Vector
from blindopt.gp.acquisition import Choice, choose_maximum, upper_confidence_bound
from blindopt.gp.candidates import Candidates, empty_columns
from blindopt.gp.compiled import NORM_MAX, CompiledUpdates, loops_for
from blindopt.gp.kernels import Kernel
from blindopt.gp.moments import Moments
from blindopt.gp.observations import Observations

_EPSILON = float(np.finfo(np.float64).eps)
_LOWEST = float(np.finfo(np.float64).min)  # below every bound except that of a hidden row


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Sizes at which one way of computing becomes faster than another. They change the time, and never a choice."""

    compiled_min: int = 2_000
    """Candidates from which on compiled loops take less time than the Python code around them."""
    compiled_max: int = 50_000
    """Candidates up to which compiled loops are used."""
    compiled_work_min: float = 3e9
    """Candidates times capacity squared from which on one run gains more time than loading numba takes (0.4 s)."""
    tile: int = 256
    """Candidates that compiled loops update together: enough to outweigh the overhead, few enough that tiles wait."""
    together_max: int = 16_000
    """Candidates up to which plain numpy updates all at each choice: finding out which can wait takes longer."""
    leaders: int = 64
    """Candidates, spread over all rows, that are updated first: their bounds rule out most of the others."""
    next_batch: int = 1 << 10
    """Candidates that are updated after the leaders; each later batch may be 8 times as large."""
    scan: int = 1 << 16
    """Candidates whose bounds are computed together."""
    block_numbers: int = 1 << 17
    """Numbers in a temporary array of an update, so that it stays in the cache."""
    solve_block: int = 1 << 12
    """Candidates that are solved for together in float64."""

    def block(self, count: int) -> int:
        """Candidates that are updated together with ``count`` observations."""
        return max(self.leaders, self.block_numbers // max(1, count))


THRESHOLDS = Thresholds()


def uses_compiled_loops(n: int, kernel: Kernel, capacity: int, thresholds: Thresholds) -> bool:
    """Whether n candidates are left to compiled loops: numba is installed, knows the kernel, and saves time."""
    if not thresholds.compiled_min <= n <= thresholds.compiled_max:
        return False
    is_loaded = "blindopt.gp.compiled_loops" in sys.modules
    return (is_loaded or n * capacity**2 >= thresholds.compiled_work_min) and loops_for(kernel) is not None


class Solution(NamedTuple):
    """Exact moments of m candidates: their whitened rows v (m, t), means and variances (m,)."""

    rows: Rows
    whitened: Matrix
    mean: Vector
    variance: Vector

    def choose(self, weight: float, rng: Callable[[], np.random.Generator]) -> Choice:
        """The row of largest mean + sqrt(weight variance); a draw from ``rng()`` breaks exact ties."""
        bounds = upper_confidence_bound(self.mean, self.variance, weight)
        choice = choose_maximum(bounds, self.mean, self.variance, rng)
        return Choice(int(self.rows[choice.row]), choice.mean, choice.sd, choice.acquisition, choice.ties)


Solve = Callable[[Rows], Solution]


class Updates(Protocol):
    """One way to bring the rounded moments of all candidates up to date."""

    def refresh(self, rows: Rows | None = None) -> None:
        """Bring ``rows`` up to date, or all candidates; others too where that takes less time."""

    def ahead_of(self, count: int) -> Rows:
        """Candidates that are up to date with more than the first ``count`` observations."""

    def retract(self, count: int) -> None:
        """Moments are those of at most the first ``count`` observations again."""

    def contenders(self, weight: float, mean_tol: float, hidden: Mask | None) -> tuple[Rows, Vector]:
        """Rows, rising and not hidden, whose bound may be the largest; and upper bounds of all (n,)."""


class LazyMaximum:
    """Moments of all n candidates, brought up to date where a bound may be the largest.

    Let candidate i be up to date with the first s of t observations. By Cauchy-Schwarz on what its whitened row v_i
    will gain,

        mean_i(t) + sqrt(beta variance_i(t)) <= mean_i(s) + sqrt(variance_i(s) (beta + w_s^2 + ... + w_(t-1)^2)),

    so a candidate whose right-hand side is below a bound already reached cannot be the maximum, and waits. The others
    are brought up to date many observations at a time, with matrix products. In the worst case, when none can wait, a
    step costs O(n (t + r)), as if each were updated at each observation.

    The few candidates that remain within rounding of the maximum are solved for exactly, so that all ways of
    computing lead to the same choice: compiled loops, where numba is installed (the extra ``fast``) and pays; plain
    numpy on all candidates together, where they are few; plain numpy on each when it is needed, where they are many.
    """

    def __init__(
        self,
        candidates: Candidates,
        kernel: Kernel,
        observations: Observations,
        prior_mean: float,
        nugget: float,
        thresholds: Thresholds,
    ) -> None:
        n, dtype = len(candidates.lifted), candidates.lifted.dtype.type
        self._observations, self._thresholds = observations, thresholds
        self._tol = 64.0 * float(np.finfo(dtype).eps) * (1 + candidates.cov_rounding)
        self._prior_variance = kernel.variance + nugget
        shape, is_compiled = (n, observations.capacity), candidates.column_major and candidates.cov_rounding <= NORM_MAX
        is_few = n <= thresholds.together_max
        # A few candidates grow by columns, all together; many grow by rows, each when it is needed.
        whitened = empty_columns(*shape, dtype) if is_compiled else np.empty(shape, dtype, order="F" if is_few else "C")
        self._moments = Moments(whitened, prior_mean, self._prior_variance, self._tol * self._prior_variance)
        self.updates: Updates
        """The way of computing for so many candidates."""
        if is_compiled:
            self.updates = CompiledUpdates(candidates, kernel, nugget, observations, self._moments, thresholds.tile)
        elif is_few:
            self.updates = TogetherUpdates(candidates, nugget, observations, self._moments, thresholds)
        else:
            self.updates = SeparateUpdates(observations, self._moments, thresholds)

    def all_moments(self) -> tuple[Vector, Vector]:
        """Means and variances of all candidates (n,)."""
        self.updates.refresh()
        return self._moments.mean, self._moments.variance

    def moments(self, rows: Rows) -> tuple[Vector, Vector]:
        """Means and variances (m,) of candidates ``rows``."""
        self.updates.refresh(rows)
        return self._moments.mean[rows], self._moments.variance[rows]

    def retract(self, count: int) -> None:
        """Go back to the first ``count`` observations."""
        weights = self._observations.weights[:count].astype(self._moments.whitened.dtype, copy=False)
        ahead, size = self.updates.ahead_of(count), self._thresholds.block(count)
        for rows in _blocks(ahead, size):
            self._moments.restore(rows, weights)
        self.updates.retract(count)

    def maximum(self, weight: float, hidden: Mask | None, solve: Solve) -> Solution:
        """Exact moments of the candidates that are not ``hidden`` (n,) and may have the largest bound, in order.

        The bound is mean + sqrt(weight variance). ``solve`` computes exact moments; its whitened rows are passed on
        where one call of it was enough, and are empty otherwise.
        """
        if self._observations.count == 0:
            rows = np.arange(len(self._moments.mean)) if hidden is None else np.flatnonzero(~hidden)
            return Solution(rows, np.empty((len(rows), 0)), *self.moments(rows))
        rows, upper = self.updates.contenders(weight, self._mean_tol(), hidden)
        if len(rows) > self._thresholds.leaders:
            first = solve(rows[[int(upper[rows].argmax())]])
            reached = min(upper[rows].max(), upper_confidence_bound(first.mean, first.variance, weight)[0])
            rows = rows[upper[rows] >= reached]
        size = self._thresholds.solve_block
        if len(rows) <= size:
            return solve(rows)
        moments = [solve(block)[2:] for block in _blocks(rows, size)]
        mean, variance = (np.concatenate(parts) for parts in zip(*moments, strict=True))
        return Solution(rows, np.empty((len(rows), 0)), mean, variance)

    def best(self, rows: Rows, weight: float, solve: Solve) -> tuple[int, float, float]:
        """The first of ``rows`` (rising, not empty) with the largest mean - sqrt(weight variance), and its moments."""
        mean, variance = self.moments(rows)
        mean_tol, var_tol = self._mean_tol(), self._moments.var_tol
        low = mean - np.sqrt(weight * (variance + var_tol)) - mean_tol
        high = mean - np.sqrt(weight * np.maximum(variance - var_tol, 0.0)) + mean_tol
        contenders = rows[high >= low.max()][: self._thresholds.solve_block]  # of very many equal ones, the first
        _, _, mean, variance = solve(contenders)
        index = int((mean - np.sqrt(weight * variance)).argmax())
        return int(contenders[index]), float(mean[index]), float(variance[index])

    def _mean_tol(self) -> float:
        """Bound on the rounding error of a mean, which is an inner product with the weights."""
        norm_sq = self._observations.weight_sq_cumsum[self._observations.count]
        return self._tol * float(np.sqrt(self._prior_variance * norm_sq))


class TogetherUpdates:
    """All candidates are up to date with the same number of observations: one column at a time, or several."""

    def __init__(
        self,
        candidates: Candidates,
        nugget: float,
        observations: Observations,
        moments: Moments,
        thresholds: Thresholds,
    ) -> None:
        self._candidates, self._nugget, self._observations = candidates, nugget, observations
        self._moments, self._thresholds = moments, thresholds
        self._synced_count = 0
        self._upper: Vector = np.empty(len(moments.mean))

    def refresh(self, rows: Rows | None = None) -> None:
        """Bring all candidates up to date."""
        s, t = self._synced_count, self._observations.count
        if s == t - 1:
            self._append_column(s)
        elif s < t:
            self._append_columns(s, t)
        self._synced_count = t

    def ahead_of(self, count: int) -> Rows:
        """All candidates, or none."""
        return np.arange(len(self._upper) if self._synced_count > count else 0)

    def retract(self, count: int) -> None:
        """Moments are those of at most the first ``count`` observations again."""
        self._synced_count = min(self._synced_count, count)

    def contenders(self, weight: float, mean_tol: float, hidden: Mask | None) -> tuple[Rows, Vector]:
        """Bring all candidates up to date and compare their bounds."""
        self.refresh()
        moments = self._moments
        upper = np.add(moments.variance, moments.var_tol, out=self._upper)
        upper *= weight
        np.sqrt(upper, out=upper)
        upper += moments.mean
        upper += mean_tol
        if hidden is not None:
            upper[hidden] = -np.inf
        top = int(upper.argmax())
        least_variance = max(moments.variance[top] - moments.var_tol, 0.0)
        return np.flatnonzero(upper >= moments.mean[top] - mean_tol + np.sqrt(weight * least_variance)), upper

    def _append_column(self, s: int) -> None:
        """Append column s of all whitened rows, by forward substitution."""
        observed, moments = self._observations, self._moments
        whitened, mean, variance = moments.whitened, moments.mean, moments.variance
        factor = observed.factor[s, : s + 1].astype(whitened.dtype, copy=False)
        size = min(self._thresholds.scan, len(mean))
        for start in range(0, len(mean), size):
            part = slice(start, start + size)
            column = self._candidates.covariance(part, observed.dual[:, s : s + 1])[:, 0]
            if self._nugget and start <= observed.rows[s] < start + size:
                column[observed.rows[s] - start] += self._nugget
            if s:
                column -= whitened[part, :s] @ factor[:s]
            new = np.divide(column, factor[s], out=whitened[part, s])
            mean[part] += np.multiply(new, observed.weights[s], out=column)
            variance[part] -= np.multiply(new, new, out=column)
        np.maximum(variance, 0.0, out=variance)

    def _append_columns(self, s: int, t: int) -> None:
        """Append columns s .. t - 1 of all whitened rows, a block of rows at a time."""
        observed, moments = self._observations, self._moments
        whitened, mean, variance = moments.whitened, moments.mean, moments.variance
        factor = observed.factor[s:t, :s].T.astype(whitened.dtype, copy=False)
        inverse = observed.inverse[s:t, s:t].T.astype(whitened.dtype, copy=False)
        weights = observed.weights[s:t].astype(whitened.dtype, copy=False)
        n, size = len(mean), self._thresholds.block(t)
        for start in range(0, n, size):
            part = slice(start, min(start + size, n))
            new = observed.covariance(part, np.arange(part.start, part.stop), s)
            if s:
                new -= whitened[part, :s] @ factor
            new = new @ inverse
            whitened[part, s:t] = new
            mean[part] += new @ weights
            variance[part] = np.maximum(variance[part] - np.einsum("ij,ij->i", new, new), 0.0)


class SeparateUpdates:
    """Each candidate waits until its bound may be the largest, and is then brought up to date."""

    def __init__(self, observations: Observations, moments: Moments, thresholds: Thresholds) -> None:
        n = len(moments.mean)
        self._observations, self._moments, self._thresholds = observations, moments, thresholds
        self._synced_counts: Rows = np.zeros(n, dtype=np.intp)
        """With how many observations each candidate is up to date (n,)."""
        self._upper: Vector = np.empty(n)
        self._stripes = min(n, thresholds.leaders)

    def refresh(self, rows: Rows | None = None) -> None:
        """Bring ``rows``, or all candidates, up to date."""
        counts, count = self._synced_counts, self._observations.count
        stale = np.flatnonzero(counts < count) if rows is None else rows[counts[rows] < count]
        for block in _blocks(stale, self._thresholds.scan):
            self._update(block)

    def ahead_of(self, count: int) -> Rows:
        """Candidates that are up to date with more than the first ``count`` observations."""
        return np.flatnonzero(self._synced_counts > count)

    def retract(self, count: int) -> None:
        """Moments are those of at most the first ``count`` observations again."""
        np.minimum(self._synced_counts, count, out=self._synced_counts)

    def contenders(self, weight: float, mean_tol: float, hidden: Mask | None) -> tuple[Rows, Vector]:
        """Update leaders all over the rows, then batches of those whose bounds still reach the largest.

        This ends, because each pass brings at least one stale row up to date, and no row is added.
        """
        upper, counts, t = self._upper, self._synced_counts, self._observations.count
        self._bound(weight, mean_tol)
        if hidden is not None:
            upper[hidden] = -np.inf
        stripes = upper[: len(upper) // self._stripes * self._stripes].reshape(self._stripes, -1)
        leaders = np.arange(self._stripes) * stripes.shape[1] + stripes.argmax(axis=1)
        reached = self._settle(leaders if hidden is None else leaders[~hidden[leaders]], weight, mean_tol)
        rows, batch = np.flatnonzero(upper >= reached), self._thresholds.next_batch
        while len(stale := rows[counts[rows] < t]):
            if batch < len(stale) < len(upper) // 2:
                stale = np.sort(stale[np.argpartition(upper[stale], -batch)[-batch:]])
            reached, batch = max(reached, self._settle(stale, weight, mean_tol)), batch * 8
            rows = rows[upper[rows] >= reached]
        return rows, upper

    def _bound(self, weight: float, mean_tol: float) -> None:
        """Write the upper bounds of all candidates, which ``LazyMaximum`` derives."""
        t, cumsum, moments = self._observations.count, self._observations.weight_sq_cumsum, self._moments
        growth = weight + (cumsum[t] - cumsum[: t + 1])
        growth += 4 * _EPSILON * t * cumsum[t]  # what the difference may have lost to rounding
        for start in range(0, len(self._upper), self._thresholds.scan):
            part = slice(start, start + self._thresholds.scan)
            upper = self._upper[part]
            growth.take(self._synced_counts[part], out=upper, mode="clip")
            upper *= moments.variance[part] + moments.var_tol
            np.sqrt(upper, out=upper)
            upper += moments.mean[part]
            upper += mean_tol

    def _settle(self, rows: Rows, weight: float, mean_tol: float) -> float:
        """Bring ``rows`` up to date and write their upper bounds. Return a lower bound of the largest of theirs."""
        reached, var_tol = _LOWEST, self._moments.var_tol
        for block in _blocks(rows, self._thresholds.scan):
            self._update(block)
            mean, variance = self._moments.mean[block], self._moments.variance[block]
            self._upper[block] = mean + mean_tol + np.sqrt(weight * (variance + var_tol))
            lower = mean - mean_tol + np.sqrt(weight * np.maximum(variance - var_tol, 0.0))
            reached = max(reached, float(lower.max()))
        return reached

    def _update(self, rows: Rows) -> None:
        """Bring ``rows`` up to date: as many together as stay in the cache, those that lack equally many columns."""
        size = self._thresholds.block(self._observations.count)
        if len(rows) > size:
            rows = rows[np.argsort(self._synced_counts[rows], kind="stable")]
        for block in _blocks(rows, size):
            self._append_columns(block)

    def _append_columns(self, rows: Rows) -> None:
        """Append (K - V L_old^T) L_new^-T to whitened rows V, for all columns that any of ``rows`` lacks.

        The block of L^-1 is the inverse of the block of L; a product is eight times as fast as a substitution.
        """
        observed, moments, dtype = self._observations, self._moments, self._moments.whitened.dtype
        t, s = observed.count, int(self._synced_counts[rows].min())
        weights = observed.weights[:t].astype(dtype, copy=False)
        new = observed.covariance(rows, rows, s)
        mean, variance = np.full(len(rows), moments.prior_mean), np.full(len(rows), moments.prior_variance)
        if s:
            old = moments.whitened[rows, :s]
            new -= old @ observed.factor[s:t, :s].T.astype(dtype, copy=False)
            mean += old @ weights[:s]
            variance -= np.einsum("ij,ij->i", old, old)
        new = new @ observed.inverse[s:t, s:t].T.astype(dtype, copy=False)
        moments.whitened[rows, s:t] = new
        mean += new @ weights[s:]
        variance -= np.einsum("ij,ij->i", new, new)
        moments.mean[rows], moments.variance[rows] = mean, np.maximum(variance, 0.0)
        self._synced_counts[rows] = t


def _blocks(rows: Rows, size: int) -> Iterator[Rows]:
    return (rows[start : start + size] for start in range(0, len(rows), size))
