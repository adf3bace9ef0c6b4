"""One part of the candidates: the moments of its rows, and those of its rows whose acquisition may be the largest."""

import sys
from dataclasses import dataclass
from math import sqrt
from typing import Literal, NamedTuple

import numpy as np

from blindopt.arrays import Mask, Matrix, Rows, Vector
from blindopt.gp.acquisition import Acquisition, Tolerance
from blindopt.gp.candidates import Candidates, Lift, Precision, empty_columns, order_of, precision_of
from blindopt.gp.compiled import NORM_MAX, CompiledUpdates, loops_for
from blindopt.gp.hot_set import HotSetUpdates
from blindopt.gp.kernels import Kernel
from blindopt.gp.observations import LocalObservations, Observations
from blindopt.gp.updates import (
    EPSILON,
    Floor,
    Moments,
    SeparateUpdates,
    Thresholds,
    TogetherUpdates,
    Updates,
    blocks,
)

_RESIDUAL = 1 / 16
"""Residual of a rounded whitened row, as a share of the tolerance."""
_LEAST, _MOST = np.array([-np.inf]), np.array([np.inf])


_interpreted_work = [0.0]
"""Candidates times capacity squared of what this process built without compiled loops."""


def uses_compiled_loops(n: int, kernel: Kernel, capacity: int, thresholds: Thresholds) -> bool:
    """Whether n candidates are left to compiled loops: numba is installed, knows the kernel, and saves time.

    It is loaded once that would have saved time: by one large run, or after several smaller ones.
    """
    if not thresholds.compiled_min <= n <= thresholds.compiled_max:
        return False
    if "blindopt.gp.compiled_loops" not in sys.modules:
        _interpreted_work[0] += n * capacity**2
        if _interpreted_work[0] < thresholds.compiled_work_min:
            return False
    return loops_for(kernel) is not None


@dataclass(frozen=True, slots=True)
class Law:
    """What all parts of the candidates share: the process, the precision, and how much they are computed with."""

    kernel: Kernel
    nugget: float
    prior_mean: float
    capacity: int
    dtype: Precision
    lift: Lift
    thresholds: Thresholds

    @property
    def prior_variance(self) -> float:
        """Variance of f at each candidate before the first observation, with the nugget."""
        return self.kernel.variance + self.nugget

    def tolerance(self, largest: float) -> float:
        """Bound on the relative rounding error of what is computed of candidates of squared norms up to ``largest``."""
        return 64.0 * float(np.finfo(self.dtype).eps) * (1 + precision_of(self.kernel, largest)[1])


@dataclass(frozen=True, slots=True)
class Question:
    """Which candidates have the largest ``acquisition``, except for ``hidden`` rows (rising numbers).

    Values are compared as whole numbers of ``quantum`` above ``centre``, or as they are if it is 0.
    """

    acquisition: Acquisition
    quantum: float
    centre: float
    hidden: Rows
    floor: Floor

    def counted(self, values: Vector) -> Vector:
        """Values, or bounds of them, as they are compared."""
        if not self.quantum:
            return values
        counted: Vector = np.rint((values - self.centre) / self.quantum)
        return counted


class Answer(NamedTuple):
    """Rows (m,), rising, that may have the largest value; lower and upper bounds (m,) of theirs, as compared.

    Where the bounds of a row are the same whole number, it is what the row is compared by.
    """

    rows: Rows
    low: Vector
    high: Vector


class Part:
    """Moments of the candidates of consecutive ``rows``, brought up to date where a bound may be the largest.

    Let candidate i be up to date with the first s of t observations. By Cauchy-Schwarz on what its whitened row v_i
    will gain, its mean gains at most sqrt((variance_i(s) - variance_i(t)) W) with W = w_s^2 + ... + w_(t-1)^2, so that

        mean_i(t) + sqrt(beta variance_i(t)) <= mean_i(s) + sqrt(variance_i(s) (beta + W)).

    A candidate whose right-hand side is below a bound already reached, of any part, cannot be the maximum, and waits.
    (Of a variance that holds a nugget, only the rest can shrink while the candidate itself is not observed: see
    ``acquisition`` for the bounds of other rules.) The others are brought up to date many observations at a time, with
    matrix products. In the worst case, when none can wait, a step costs O(n (t + r)), as if each were updated at each
    observation.

    The moments are computed by compiled loops, where numba is installed (the extra ``fast``) and pays; plain
    numpy on all candidates together, where they are few; the same from time to time, and on a hot set near the maximum
    in between, where they are more; plain numpy on each when it is needed, where they are many.

    Reads ``candidates`` (n, r), of which the part has ``rows``, and ``observations``, which it changes in no way.
    """

    updates: Updates
    """The way of computing for so many candidates."""

    def __init__(self, candidates: Matrix, rows: range, law: Law, observations: Observations) -> None:
        self.rows, self._law, self._is_whole = rows, law, len(rows) == len(candidates)
        is_compiled = uses_compiled_loops(len(rows), law.kernel, law.capacity, law.thresholds)
        own = candidates[rows.start : rows.stop]
        order, loops = None, loops_for(law.kernel) if is_compiled else None
        if is_compiled:
            order = law.lift.frame.order if self._is_whole else order_of(own)
        self._candidates = Candidates(own, law.kernel, law.dtype, law.lift, loops=loops, order=order)
        self._observations = LocalObservations(observations, candidates, rows, self._candidates, law.nugget)
        self._hidden, self._mask = np.empty(0, dtype=np.intp), np.zeros(len(rows), dtype=np.bool_)

    @property
    def largest(self) -> float:
        """The largest squared norm of the lifted candidates."""
        return self._candidates.largest

    def begin(self, largest: float) -> None:
        """Get ready for answers, with the largest squared norm of the candidates of all parts."""
        candidates, law, n = self._candidates, self._law, len(self.rows)
        candidates.compare(largest)
        self.tol = law.tolerance(largest)
        thresholds, observations = law.thresholds, self._observations
        shape, is_compiled = (n, law.capacity), candidates.column_major and candidates.cov_rounding <= NORM_MAX
        # Candidates that are updated together grow by columns; many grow by rows, each when it is needed.
        order: Literal["C", "F"] = "F" if n <= max(thresholds.together_max, thresholds.hot_set_max) else "C"
        whitened: Matrix = empty_columns(*shape, law.dtype) if is_compiled else np.empty(shape, law.dtype, order=order)
        self._moments = Moments(whitened, law.prior_mean, law.prior_variance, self.tol * law.prior_variance)
        if is_compiled:
            self.updates = CompiledUpdates(
                candidates, law.kernel, law.nugget, observations, self._moments, thresholds.tile
            )
        elif n <= thresholds.together_max:
            self.updates = TogetherUpdates(candidates, law.nugget, observations, self._moments, thresholds)
        elif n <= thresholds.hot_set_max:
            self.updates = HotSetUpdates(candidates, law.nugget, observations, self._moments, thresholds)
        else:
            self.updates = SeparateUpdates(observations, self._moments, thresholds)

    @np.errstate(invalid="ignore")  # as of answer
    def moments(self, rows: Rows | None = None) -> tuple[Vector, Vector]:
        """Means and variances (m,) of the part's candidates ``rows`` (numbers among all), or of all of them."""
        self._sync()
        if rows is None:
            self.updates.refresh()
            return self._candidates.ordered(self._moments.mean), self._candidates.ordered(self._moments.variance)
        own = self._candidates.positions(rows - self.rows.start)
        self.updates.refresh(own)
        return self._moments.mean[own], self._moments.variance[own]

    # BLAS computes small products in vectors with unused entries, and what is left in these may raise the flag.
    @np.errstate(invalid="ignore")
    def answer(self, question: Question) -> Answer:
        """The rows that may have the largest value of all candidates, as far as the part can say."""
        self._sync()
        hidden = self._hide(question.hidden)
        if hidden is not None and len(self._hidden) == len(self.rows):
            return Answer(self._hidden[:0], np.empty(0), np.empty(0))
        acquisition, mean_tol = question.acquisition, self._mean_tol()
        slack = acquisition.with_slack(question.quantum)
        rows, mean, variance = self.updates.contenders(slack, mean_tol, hidden, question.floor)
        if self._candidates.order is not None:
            rows = self._candidates.order[rows]
            if len(rows) > 1:
                by = np.argsort(rows)
                rows, mean, variance = rows[by], mean[by], variance[by]
        if self._is_whole and len(rows) == 1:  # there is nothing to compare it with
            return Answer(rows, _LEAST, _MOST)
        bounds = acquisition.interval(mean, variance, self._tolerance(mean_tol, variance))
        low, high = (question.counted(bound) for bound in bounds)
        if len(rows) > self._law.thresholds.leaders:
            kept = high >= low.max()
            rows, low, high = np.compress(kept, rows), low[kept], high[kept]
        return Answer(rows + self.rows.start, low, high)

    def _sync(self) -> None:
        """Take over the observations; go back where some were retracted."""
        observed, updates, moments = self._observations, self.updates, self._moments
        if (count := observed.common()) < observed.count:
            weights = observed.weights[:count].astype(moments.whitened.dtype, copy=False)
            for rows in blocks(updates.ahead_of(count), self._law.thresholds.block(count)):
                moments.restore(rows, weights)
            updates.retract(count)
        observed.sync(count)

    def _hide(self, hidden: Rows) -> Mask | None:
        """The part's hidden candidates (n,); None without any."""
        if not (len(hidden) or len(self._hidden)):
            return None
        self._mask[self._hidden] = False
        first, last = np.searchsorted(hidden, [self.rows.start, self.rows.stop])
        self._hidden = self._candidates.positions(hidden[first:last] - self.rows.start)
        self._mask[self._hidden] = True
        return self._mask if len(self._hidden) else None

    def _tolerance(self, mean_tol: float, variance: Vector) -> Tolerance:
        """Bounds on the rounding errors of moments (m,), given the bound for all means, and the rounded variances.

        All that is computed of a candidate but its mean and variance is linear in its covariances k with the
        observations, and the errors shrink with these: |k| <= |L| |v| entry by entry, where |v|^2 is what the
        observations explain of its variance. Only the sums themselves round what is already there.
        """
        observed, prior = self._observations, self._law.prior_variance
        rounding = 2 * EPSILON * observed.count
        explained = np.maximum(prior - variance, 0.0) + rounding * prior
        share = np.minimum(np.sqrt(explained * observed.of_all.variance_max) / prior, 1.0)
        return Tolerance(
            mean_tol * share + rounding * abs(self._law.prior_mean), self._moments.var_tol * share + rounding * prior
        )

    def _mean_tol(self) -> float:
        """Bound on the rounding error of a mean of the part."""
        return mean_tolerance(self.tol, self._law.prior_variance, self._observations.of_all)


def mean_tolerance(tol: float, prior_variance: float, observed: Observations) -> float:
    """Bound on the rounding error of a mean, which is an inner product v . w with the weights.

    That of the product itself is a share ``tol`` of |v| |w|. The rounded v solves L v = k but for residuals of a few
    units in the last place of the prior variance each (substitution is backward stable), and they move the mean
    by their inner product with L^-T w: much further where the covariances are nearly singular. (In single
    precision, with noise of 1e-8 of the prior variance, the residuals came to 1/70 of the tolerance at most.)
    """
    if not (t := observed.count):
        return 0.0
    product_error = sqrt(prior_variance * observed.weight_sq_cumsum[t])
    return tol * float(max(product_error, _RESIDUAL * prior_variance * np.abs(observed.duals[:t]).sum()))
