"""One part of the candidates: the moments of its rows, and those of its rows whose acquisition may be the largest."""

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np

from blindopt.arrays import Mask, Matrix, Rows, Vector
from blindopt.gp.acquisition import Acquisition, Tolerance
from blindopt.gp.candidates import Candidates, Lift, Precision, precision_of
from blindopt.gp.kernels import Kernel
from blindopt.gp.observations import LocalObservations, Observations
from blindopt.gp.updates import Moments

_EPSILON = float(np.finfo(np.float64).eps)
_FEW = 64  # rows of which comparing the bounds saves nothing
_RESIDUAL = 1 / 16
"""Residual of a rounded whitened row, as a share of the tolerance."""
_LEAST, _MOST = np.array([-np.inf]), np.array([np.inf])


@dataclass(frozen=True, slots=True)
class Law:
    """What all parts of the candidates share: the process, the precision, and how much they are computed with."""

    kernel: Kernel
    nugget: float
    prior_mean: float
    capacity: int
    dtype: Precision
    lift: Lift

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
    """Moments of the candidates of consecutive ``rows``, and those of them whose acquisition may be the largest.

    Reads ``candidates`` (n, r), of which the part has ``rows``, and ``observations``, which it changes in no way.
    """

    def __init__(self, candidates: Matrix, rows: range, law: Law, observations: Observations) -> None:
        self.rows, self._law, self._is_whole = rows, law, len(rows) == len(candidates)
        self._candidates = Candidates(candidates[rows.start : rows.stop], law.kernel, law.dtype, law.lift)
        self._observations = LocalObservations(observations, candidates, rows, self._candidates, law.nugget)
        self._hidden, self._mask = np.empty(0, dtype=np.intp), np.zeros(len(rows), dtype=np.bool_)
        self._upper: Vector = np.empty(len(rows))

    @property
    def largest(self) -> float:
        """The largest squared norm of the lifted candidates."""
        return self._candidates.largest

    def begin(self, largest: float) -> None:
        """Get ready for answers, with the largest squared norm of the candidates of all parts."""
        candidates, law = self._candidates, self._law
        candidates.compare(largest)
        self.tol = law.tolerance(largest)
        self._var_tol = self.tol * law.prior_variance
        self._moments = Moments(
            candidates,
            self._observations,
            prior_mean=law.prior_mean,
            prior_variance=law.prior_variance,
            nugget=law.nugget,
            capacity=law.capacity,
            dtype=law.dtype,
        )

    @np.errstate(invalid="ignore")  # as of answer
    def moments(self, rows: Rows | None = None) -> tuple[Vector, Vector]:
        """Means and variances (m,) of the part's candidates ``rows`` (numbers among all), or of all of them."""
        self._sync()
        own = slice(None) if rows is None else rows - self.rows.start
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
        rows, mean, variance = self._highest(slack, Tolerance(mean_tol, self._var_tol), hidden)
        if self._is_whole and len(rows) == 1:  # there is nothing to compare it with
            return Answer(rows, _LEAST, _MOST)
        bounds = acquisition.interval(mean, variance, self._tolerance(mean_tol, variance))
        low, high = (question.counted(bound) for bound in bounds)
        if len(rows) > _FEW:
            kept = high >= low.max()
            rows, low, high = np.compress(kept, rows), low[kept], high[kept]
        return Answer(rows + self.rows.start, low, high)

    def _highest(
        self, acquisition: Acquisition, tolerance: Tolerance, hidden: Mask | None
    ) -> tuple[Rows, Vector, Vector]:
        """Rows (m,) whose value may be the largest of the part, less the slack, with their rounded moments (m,)."""
        mean, variance, upper = self._moments.mean, self._moments.variance, self._upper
        acquisition.upper(mean, variance, tolerance, upper)
        if hidden is not None:
            upper[hidden] = -np.inf
        top = slice(int(upper.argmax()), int(upper.argmax()) + 1)
        rows = np.flatnonzero(upper >= acquisition.lower(mean[top], variance[top], tolerance))  # none at NaN
        mean, variance = mean[rows], variance[rows]
        if acquisition.is_tight or len(rows) < 2:
            return rows, mean, variance
        values = acquisition(mean + tolerance.mean, variance + tolerance.variance)
        kept = values >= acquisition.lower(mean, variance, tolerance).max()
        return rows[kept], mean[kept], variance[kept]

    def _sync(self) -> None:
        """Take over the observations, and go back where some were retracted."""
        observed = self._observations
        if (count := observed.common()) < observed.count:
            self._moments.retract(count)
        observed.sync(count)
        self._moments.refresh()

    def _hide(self, hidden: Rows) -> Mask | None:
        """The part's hidden candidates (n,); None without any."""
        if not (len(hidden) or len(self._hidden)):
            return None
        self._mask[self._hidden] = False
        first, last = np.searchsorted(hidden, [self.rows.start, self.rows.stop])
        self._hidden = hidden[first:last] - self.rows.start
        self._mask[self._hidden] = True
        return self._mask if len(self._hidden) else None

    def _tolerance(self, mean_tol: float, variance: Vector) -> Tolerance:
        """Bounds on the rounding errors of moments (m,), given the bound for all means, and the rounded variances.

        All that is computed of a candidate but its mean and variance is linear in its covariances k with the
        observations, and the errors shrink with these: |k| <= |L| |v| entry by entry, where |v|^2 is what the
        observations explain of its variance. Only the sums themselves round what is already there.
        """
        observed, prior = self._observations, self._law.prior_variance
        rounding = 2 * _EPSILON * observed.count
        explained = np.maximum(prior - variance, 0.0) + rounding * prior
        share = np.minimum(np.sqrt(explained * observed.of_all.variance_max) / prior, 1.0)
        return Tolerance(
            mean_tol * share + rounding * abs(self._law.prior_mean), self._var_tol * share + rounding * prior
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
