"""Moments of a few candidates near the maximum, kept up to date while all others wait for the same update."""

from dataclasses import dataclass

import numpy as np

from blindopt.arrays import Mask, Matrix, Rows, Vector
from blindopt.gp.acquisition import Acquisition, plain_weight
from blindopt.gp.updates import EPSILON, Contenders, Floor, TogetherUpdates, leaders


@dataclass(frozen=True, slots=True)
class HotSet:
    """m candidates in arrays of their own: whitened rows (m, count), means and variances (m,)."""

    rows: Rows
    whitened: Matrix
    mean: Vector
    variance: Vector

    def joined(self, other: "HotSet") -> "HotSet":
        """Candidates of this set and, after them, of another one with as many columns."""
        return HotSet(
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.whitened, other.whitened]),
            np.concatenate([self.mean, other.mean]),
            np.concatenate([self.variance, other.variance]),
        )

    def upper(self, weight: float, mean_tol: float, var_tol: float) -> Vector:
        """Upper bounds (m,) of the confidence bounds."""
        upper: Vector = self.mean + mean_tol + np.sqrt(weight * (self.variance + var_tol))
        return upper

    def reached(self, weight: float, mean_tol: float, var_tol: float) -> float:
        """Lower bound of the largest confidence bound."""
        return float((self.mean - mean_tol + np.sqrt(weight * np.maximum(self.variance - var_tol, 0.0))).max())


class HotSetUpdates(TogetherUpdates):
    """All candidates are updated together, but not at each choice: in between, only a hot set of them is.

    The others keep s observations, and join the hot set when their bound (see ``Part``) may be the largest.
    Before the set holds more than its share, all candidates are updated, and it starts anew. Where rows are hidden,
    all are updated at each choice, because too many of those near the maximum are among the hidden ones.
    """

    _hot: HotSet | None = None
    _deviation: Vector
    """Roots of variance + var_tol (n,) at s observations, computed with each new hot set."""

    def refresh(self, rows: Rows | None = None) -> None:
        """Bring all candidates up to date."""
        super().refresh(rows)
        self._hot = None

    def retract(self, count: int) -> None:
        """Moments are those of at most the first ``count`` observations again."""
        super().retract(count)
        self._hot = None

    def contenders(self, acquisition: Acquisition, mean_tol: float, hidden: Mask | None, floor: Floor) -> Contenders:
        """Compare the bounds of the hot set, or of all candidates where too many would have to join it."""
        weight = plain_weight(acquisition)
        if weight is not None and hidden is None and 0 < self._synced_count < self._observations.count:
            self._hot = hot = self._extended(weight, mean_tol + acquisition.slack)
            if hot is not None:
                bounds = weight, mean_tol + acquisition.slack, self._moments.var_tol
                kept = np.flatnonzero(hot.upper(*bounds) >= hot.reached(*bounds))
                kept = kept[np.argsort(hot.rows[kept])]
                return Contenders(hot.rows[kept], hot.mean[kept], hot.variance[kept])
        return super().contenders(acquisition, mean_tol, hidden, floor)

    def _extended(self, weight: float, mean_tol: float) -> HotSet | None:
        """The hot set with all candidates whose bound may be the largest, or None if these are more than its share.

        Writes the upper bounds of the other candidates. It ends, because each pass adds candidates to the set.
        """
        s, t, cumsum = self._synced_count, self._observations.count, self._observations.weight_sq_cumsum
        hot, var_tol, upper, thresholds = self._hot, self._moments.var_tol, self._upper, self._thresholds
        if hot is None:
            self._deviation = np.sqrt(self._moments.variance + var_tol)
        growth = weight + (1 + 4 * EPSILON * t) * cumsum[t] - cumsum[s]  # epsilon: what the sums lost to rounding
        np.multiply(self._deviation, np.sqrt(growth), out=upper)
        upper += self._moments.mean
        upper += mean_tol
        if hot is None:
            hot = self._updated(leaders(upper, thresholds.leaders))
        elif hot.whitened.shape[1] < t:
            new, mean, variance = self._new_columns(hot.rows, hot.rows, hot.whitened, hot.mean, hot.variance)
            hot = HotSet(hot.rows, np.concatenate([hot.whitened, new], axis=1), mean, variance)
        upper[hot.rows], batch = -np.inf, thresholds.leaders
        rows = np.flatnonzero(upper >= hot.reached(weight, mean_tol, var_tol))
        while len(rows):
            joining = rows if len(rows) <= batch else rows[np.argpartition(upper[rows], -batch)[-batch:]]
            if len(hot.rows) + len(joining) > thresholds.hot_set_share * len(upper):
                return None
            hot, batch = hot.joined(self._updated(joining)), batch * 8
            upper[joining] = -np.inf
            rows = rows[upper[rows] >= hot.reached(weight, mean_tol, var_tol)]
        return hot

    def _updated(self, rows: Rows) -> HotSet:
        """Return candidates ``rows``, which wait, up to date."""
        old, moments = self._moments.whitened[rows, : self._synced_count], self._moments
        new, mean, variance = self._new_columns(rows, rows, old, moments.mean[rows], moments.variance[rows])
        return HotSet(rows, np.concatenate([old, new], axis=1), mean, variance)
