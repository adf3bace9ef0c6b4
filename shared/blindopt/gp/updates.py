"""Ways in plain numpy to bring the moments of all candidates up to date, and the sizes at which each is used."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from blindopt.arrays import Mask, Matrix, Rows, Vector
from blindopt.gp.acquisition import Acquisition, Tolerance
from blindopt.gp.candidates import ORDERED_MAX, Candidates
from blindopt.gp.observations import LocalObservations

EPSILON = float(np.finfo(np.float64).eps)
_LOWEST = float(np.finfo(np.float64).min)  # below every bound except that of a hidden row


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Sizes at which one way of computing becomes faster than another. They change the time, and never a choice."""

    compiled_min: int = 2_000
    """Candidates from which on compiled loops take less time than the Python code around them."""
    compiled_max: int = ORDERED_MAX
    """Candidates up to which compiled loops are used."""
    compiled_work_min: float = 1e9
    """Candidates times capacity squared, of all runs, from which on loading numba takes less time (0.4 s)."""
    tile: int = 256
    """Candidates that compiled loops update together: enough to outweigh the overhead, few enough that tiles wait."""
    together_max: int = 16_000
    """Candidates up to which plain numpy updates all at each choice: finding out which can wait takes longer."""
    hot_set_max: int = 50_000
    """Candidates up to which plain numpy updates all from time to time, and a hot set in between."""
    hot_set_share: float = 1 / 16
    """Share of the candidates that may be in the hot set. Before it holds more, all candidates are updated."""
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


class Moments:
    """Whitened rows V (n, capacity), means and variances (n,) of all candidates, which updates write in place.

    They start as those of the prior. ``var_tol`` bounds the rounding error of a variance, in squared units of the
    outcome.
    """

    def __init__(self, whitened: Matrix, prior_mean: float, prior_variance: float, var_tol: float) -> None:
        self.whitened, self.var_tol = whitened, var_tol
        self.prior_mean, self.prior_variance = prior_mean, prior_variance
        self.mean: Vector = np.full(len(whitened), prior_mean)
        self.variance: Vector = np.full(len(whitened), prior_variance)

    def restore(self, rows: Rows, weights: Vector) -> None:
        """Recompute the moments of ``rows`` from their first s whitened columns and the first s ``weights``."""
        whitened = self.whitened[rows, : len(weights)]
        self.mean[rows] = self.prior_mean + whitened @ weights
        self.variance[rows] = np.maximum(self.prior_variance - np.einsum("ij,ij->i", whitened, whitened), 0.0)


class Floor:
    """A lower bound of the largest value of all candidates, less the slack: shared by their parts, and only rising."""

    def __init__(self, value: float = _LOWEST) -> None:
        self.value = value

    def raised(self, value: float) -> float:
        """The floor after another lower bound. Of two threads that raise it at once one may be lost, as it may be."""
        self.value = max(self.value, value)
        return self.value


class Contenders(NamedTuple):
    """Candidates (m,), rising and not hidden, whose value may be the largest, with their rounded moments (m,)."""

    rows: Rows
    mean: Vector
    variance: Vector


class Updates(Protocol):
    """One way to bring the rounded moments of all candidates up to date."""

    def refresh(self, rows: Rows | None = None) -> None:
        """Bring ``rows`` up to date, or all candidates; others too where that takes less time."""

    def ahead_of(self, count: int) -> Rows:
        """Candidates that are up to date with more than the first ``count`` observations."""

    def retract(self, count: int) -> None:
        """Moments are those of at most the first ``count`` observations again."""

    def contenders(self, acquisition: Acquisition, mean_tol: float, hidden: Mask | None, floor: "Floor") -> Contenders:
        """Candidates whose value may be the largest, or less than that by the slack of ``acquisition``.

        Candidates below the ``floor`` may be left out; what else is reached may raise it.
        """


class TogetherUpdates:
    """All candidates are up to date with the same number of observations: one column at a time, or several."""

    def __init__(
        self,
        candidates: Candidates,
        nugget: float,
        observations: LocalObservations,
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

    def contenders(self, acquisition: Acquisition, mean_tol: float, hidden: Mask | None, floor: Floor) -> Contenders:
        """Bring all candidates up to date and compare their values."""
        self.refresh()
        return compared(self._moments, acquisition, mean_tol, hidden, self._upper, floor)

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
        whitened, mean, variance = self._moments.whitened, self._moments.mean, self._moments.variance
        n, size = len(mean), self._thresholds.block(t)
        for start in range(0, n, size):
            part = slice(start, min(start + size, n))
            rows, old = np.arange(part.start, part.stop), (whitened[part, :s], mean[part], variance[part])
            whitened[part, s:t], mean[part], variance[part] = self._new_columns(part, rows, *old)

    def _new_columns(
        self, index: Rows | slice, rows: Rows, whitened: Matrix, mean: Vector, variance: Vector
    ) -> tuple[Matrix, Vector, Vector]:
        """Columns s .. t - 1 (m, t - s) of whitened rows that have s columns (m, s), and moments (m,) with these.

        ``rows`` (m,) are the candidates' numbers and ``index`` selects the same ones, as an array or a slice.
        """
        observed, dtype, s, t = self._observations, whitened.dtype, whitened.shape[1], self._observations.count
        new = observed.covariance(index, rows, s)
        if s:
            new -= whitened @ observed.factor[s:t, :s].T.astype(dtype, copy=False)
        new = new @ observed.inverse[s:t, s:t].T.astype(dtype, copy=False)
        explained = np.einsum("ij,ij->i", new, new)
        mean = mean + new @ observed.weights[s:t].astype(dtype, copy=False)
        return new, mean, np.maximum(variance - explained, 0.0)


class SeparateUpdates:
    """Each candidate waits until its bound may be the largest, and is then brought up to date."""

    def __init__(self, observations: LocalObservations, moments: Moments, thresholds: Thresholds) -> None:
        n = len(moments.mean)
        self._observations, self._moments, self._thresholds = observations, moments, thresholds
        self._synced_counts: Rows = np.zeros(n, dtype=np.intp)
        """With how many observations each candidate is up to date (n,)."""
        self._upper: Vector = np.empty(n)

    def refresh(self, rows: Rows | None = None) -> None:
        """Bring ``rows``, or all candidates, up to date."""
        counts, count = self._synced_counts, self._observations.count
        stale = np.flatnonzero(counts < count) if rows is None else rows[counts[rows] < count]
        for block in blocks(stale, self._thresholds.scan):
            self._update(block)

    def ahead_of(self, count: int) -> Rows:
        """Candidates that are up to date with more than the first ``count`` observations."""
        return np.flatnonzero(self._synced_counts > count)

    def retract(self, count: int) -> None:
        """Moments are those of at most the first ``count`` observations again."""
        np.minimum(self._synced_counts, count, out=self._synced_counts)

    def contenders(self, acquisition: Acquisition, mean_tol: float, hidden: Mask | None, floor: Floor) -> Contenders:
        """Update leaders all over the rows, then batches of those whose bounds still reach the largest value.

        This ends, because each pass brings at least one stale row up to date, and no row is added.
        """
        upper, counts, t = self._upper, self._synced_counts, self._observations.count
        tolerance = Tolerance(mean_tol, self._moments.var_tol)
        if acquisition.nugget:  # the bounds hold for candidates without observations of their own
            self.refresh(self._observations.own_rows)
        self._bound(acquisition, tolerance)
        if hidden is not None:
            upper[hidden] = -np.inf
        first = leaders(upper, self._thresholds.leaders)
        reached = floor.raised(self._settle(first if hidden is None else first[~hidden[first]], acquisition, tolerance))
        rows, batch = np.flatnonzero(upper >= reached), self._thresholds.next_batch
        while len(stale := rows[counts[rows] < t]):
            if batch < len(stale) < len(upper) // 2:
                stale = np.sort(stale[np.argpartition(upper[stale], -batch)[-batch:]])
            reached, batch = floor.raised(self._settle(stale, acquisition, tolerance)), batch * 8
            rows = rows[upper[rows] >= reached]
        return refined(self._moments, rows, acquisition, tolerance)

    def _bound(self, acquisition: Acquisition, tolerance: Tolerance) -> None:
        """Write the upper bounds of all candidates, which ``Part`` derives."""
        t, cumsum, moments = self._observations.count, self._observations.weight_sq_cumsum, self._moments
        growth = cumsum[t] - cumsum[: t + 1]
        growth += 4 * EPSILON * t * cumsum[t]  # what the difference may have lost to rounding
        for start in range(0, len(self._upper), self._thresholds.scan):
            part = slice(start, start + self._thresholds.scan)
            own = growth.take(self._synced_counts[part], mode="clip")
            acquisition.upper(moments.mean[part], moments.variance[part], own, tolerance, self._upper[part])

    def _settle(self, rows: Rows, acquisition: Acquisition, tolerance: Tolerance) -> float:
        """Bring ``rows`` up to date and write their upper bounds. Return a lower bound of the largest value."""
        reached = _LOWEST
        for block in blocks(rows, self._thresholds.scan):
            self._update(block[self._synced_counts[block] < self._observations.count])
            reached = max(reached, settled(self._moments, block, acquisition, tolerance, self._upper))
        return reached

    def _update(self, rows: Rows) -> None:
        """Bring ``rows`` up to date: as many together as stay in the cache, those that lack equally many columns."""
        size = self._thresholds.block(self._observations.count)
        if len(rows) > size:
            rows = rows[np.argsort(self._synced_counts[rows], kind="stable")]
        for block in blocks(rows, size):
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


def compared(
    moments: Moments, acquisition: Acquisition, mean_tol: float, hidden: Mask | None, upper: Vector, floor: Floor
) -> Contenders:
    """Candidates whose value may be the largest, if all are up to date. Writes upper bounds (n,)."""
    tolerance = Tolerance(mean_tol, moments.var_tol)
    acquisition.upper(moments.mean, moments.variance, 0.0, tolerance, upper)
    if hidden is not None:
        upper[hidden] = -np.inf
    top = slice(int(upper.argmax()), int(upper.argmax()) + 1)
    reached = max(float(acquisition.lower(moments.mean[top], moments.variance[top], tolerance)[0]), floor.value)
    floor.raised(reached)  # NaN is no bound, and rules out all candidates
    return refined(moments, np.flatnonzero(upper >= reached), acquisition, tolerance)


def settled(moments: Moments, rows: Rows, acquisition: Acquisition, tolerance: Tolerance, upper: Vector) -> float:
    """Write the upper bounds of ``rows``, which are up to date. Return a lower bound of the largest value of theirs."""
    mean, variance, own = moments.mean[rows], moments.variance[rows], np.empty(len(rows))
    acquisition.upper(mean, variance, 0.0, tolerance, own)
    upper[rows] = own
    if not acquisition.is_tight:
        top = [int(own.argmax())]
        mean, variance = mean[top], variance[top]
    return float(acquisition.lower(mean, variance, tolerance).max())


def refined(moments: Moments, rows: Rows, acquisition: Acquisition, tolerance: Tolerance) -> Contenders:
    """Those of ``rows``, which are up to date, whose values may be the largest but for rounding."""
    contenders = Contenders(rows, moments.mean[rows], moments.variance[rows])
    if acquisition.is_tight or len(rows) < 2:
        return contenders
    _, mean, variance = contenders
    upper = acquisition(mean + tolerance.mean, variance + tolerance.variance)
    kept = upper >= acquisition.lower(mean, variance, tolerance).max()
    return Contenders(*(values[kept] for values in contenders))


def leaders(upper: Vector, count: int) -> Rows:
    """Return the row of the largest of ``upper`` (n,) in each of ``count`` stripes of consecutive rows, or all n."""
    count = min(count, len(upper))
    stripes = upper[: len(upper) // count * count].reshape(count, -1)
    rows: Rows = np.arange(count) * stripes.shape[1] + stripes.argmax(axis=1)
    return rows


def blocks(rows: Rows, size: int) -> Iterator[Rows]:
    """Return consecutive parts of ``rows`` of at most ``size``."""
    return (rows[start : start + size] for start in range(0, len(rows), size))
