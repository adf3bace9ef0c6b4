"""The candidates of the largest acquisition, found without bringing all candidates up to date."""

import sys
from collections.abc import Callable
from math import isnan, sqrt
from typing import Literal, NamedTuple

import numpy as np

from blindopt.arrays import Mask, Matrix, Rows, Vector
from blindopt.errors import NumericalFailure
from blindopt.gp.acquisition import Acquisition, Choice, Tolerance, choose_maximum
from blindopt.gp.candidates import Candidates, empty_columns
from blindopt.gp.compiled import NORM_MAX, CompiledUpdates, loops_for
from blindopt.gp.hot_set import HotSetUpdates
from blindopt.gp.kernels import Kernel
from blindopt.gp.observations import Observations
from blindopt.gp.single_thread_blas import left_product
from blindopt.gp.updates import EPSILON, Moments, SeparateUpdates, Thresholds, TogetherUpdates, Updates, blocks
from blindopt.wire.algorithms.plans import Engine

_RESIDUAL = 1 / 16
"""Residual of a rounded whitened row, as a share of the tolerance."""


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

    def choose(self, acquisition: Acquisition, rng: Callable[[], np.random.Generator]) -> Choice:
        """The row of the largest ``acquisition``; a draw from ``rng()`` breaks exact ties."""
        values = acquisition(self.mean, self.variance)
        choice = choose_maximum(values, self.mean, self.variance, rng)
        return Choice(int(self.rows[choice.row]), choice.mean, choice.sd, choice.acquisition, choice.ties)


Solve = Callable[[Rows], Solution]


class LazyMaximum:
    """Moments of all n candidates, brought up to date where a bound may be the largest.

    Let candidate i be up to date with the first s of t observations. By Cauchy-Schwarz on what its whitened row v_i
    will gain, its mean gains at most sqrt((variance_i(s) - variance_i(t)) W) with W = w_s^2 + ... + w_(t-1)^2, so that

        mean_i(t) + sqrt(beta variance_i(t)) <= mean_i(s) + sqrt(variance_i(s) (beta + W)).

    A candidate whose right-hand side is below a bound already reached cannot be the maximum, and waits. (Of a variance
    that holds a nugget, only the rest can shrink while the candidate itself is not observed: see ``acquisition`` for
    the bounds of other rules.) The others
    are brought up to date many observations at a time, with matrix products. In the worst case, when none can wait, a
    step costs O(n (t + r)), as if each were updated at each observation.

    The candidates that remain within rounding of the maximum are compared by values that depend on the observations
    alone, so that all ways of computing lead to the same choice. Let c_i be the value of candidate i as ``solve``
    computes it, and c the value before any observation. By version 1 of the engine the largest c_i is chosen, and all
    that remain are solved for. By version 2 the largest whole number k_i = round((c_i - c) / q) is chosen, with q the
    quantum of the acquisition: 1e-10 standard deviations of the prior. Rounded moments bound c_i from both sides;
    rounding is monotone, so where both bounds round to the same number it is k_i, and only the others are solved for.
    Of equal k_i the values differ by at most q, so that the chosen one is at most q below the largest c_i. Very many
    candidates far from all observations, whose bound is that of the prior, lie in the middle of a quantum: none of
    them is solved for, except for the one that is drawn.

    The moments are computed by compiled loops, where numba is installed (the extra ``fast``) and pays; plain
    numpy on all candidates together, where they are few; the same from time to time, and on a hot set near the maximum
    in between, where they are more; plain numpy on each when it is needed, where they are many.
    """

    def __init__(
        self,
        candidates: Candidates,
        kernel: Kernel,
        observations: Observations,
        prior_mean: float,
        nugget: float,
        thresholds: Thresholds,
        engine: Engine,
    ) -> None:
        self._prior_mean, self._engine = prior_mean, engine
        n, dtype = len(candidates.lifted), candidates.lifted.dtype.type
        self._observations, self._thresholds = observations, thresholds
        self._tol = 64.0 * float(np.finfo(dtype).eps) * (1 + candidates.cov_rounding)
        self._prior_variance = kernel.variance + nugget
        shape, is_compiled = (n, observations.capacity), candidates.column_major and candidates.cov_rounding <= NORM_MAX
        # Candidates that are updated together grow by columns; many grow by rows, each when it is needed.
        order: Literal["C", "F"] = "F" if n <= max(thresholds.together_max, thresholds.hot_set_max) else "C"
        whitened = empty_columns(*shape, dtype) if is_compiled else np.empty(shape, dtype, order=order)
        self._moments = Moments(whitened, prior_mean, self._prior_variance, self._tol * self._prior_variance)
        self.updates: Updates
        """The way of computing for so many candidates."""
        if is_compiled:
            self.updates = CompiledUpdates(candidates, kernel, nugget, observations, self._moments, thresholds.tile)
        elif n <= thresholds.together_max:
            self.updates = TogetherUpdates(candidates, nugget, observations, self._moments, thresholds)
        elif n <= thresholds.hot_set_max:
            self.updates = HotSetUpdates(candidates, nugget, observations, self._moments, thresholds)
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
        for rows in blocks(ahead, size):
            self._moments.restore(rows, weights)
        self.updates.retract(count)

    def choose(
        self, acquisition: Acquisition, hidden: Mask | None, solve: Solve, rng: Callable[[], np.random.Generator]
    ) -> Choice:
        """The row that is not ``hidden`` (n,) of the largest value; a draw from ``rng()`` breaks ties.

        ``solve`` computes exact moments. Raises NumericalFailure if a value is not a number.
        """
        if self._observations.count == 0:  # all are equal
            rows = np.arange(len(self._moments.mean)) if hidden is None else np.flatnonzero(~hidden)
            return self._drawn(rows, acquisition, solve, rng)
        if self._engine == 1:
            return self._maximum(acquisition, hidden, solve).choose(acquisition, rng)
        return self._drawn(self._equals(acquisition, hidden, solve), acquisition, solve, rng)

    def _drawn(
        self, rows: Rows, acquisition: Acquisition, solve: Solve, rng: Callable[[], np.random.Generator]
    ) -> Choice:
        """One of ``rows``, which are equal."""
        drawn = rows if len(rows) == 1 else rows[[rng().integers(len(rows))]]
        _, _, mean, variance = solve(drawn)
        (value,) = acquisition(mean, variance).tolist()
        if isnan(value):
            raise NumericalFailure("the acquisition of a candidate is not a number")
        return Choice(int(drawn[0]), float(mean[0]), sqrt(variance[0]), value, len(rows))

    def _equals(self, acquisition: Acquisition, hidden: Mask | None, solve: Solve) -> Rows:
        """Rows, rising, of the largest number of quanta."""
        quantum, mean_tol = acquisition.quantum(self._prior_variance), self._mean_tol()
        rows, mean, variance = self.updates.contenders(acquisition.with_slack(quantum), mean_tol, hidden)
        if len(rows) == 1:
            return rows
        (centre,) = acquisition(np.array([self._prior_mean]), np.array([self._prior_variance]))
        bounds = acquisition.interval(mean, variance, self._tolerance(mean_tol, variance))
        low, high = (np.rint((bound - centre) / quantum) for bound in bounds)
        size = 1 if len(rows) > self._thresholds.leaders else len(rows)  # the first rules out most of very many
        while True:
            kept = high >= low.max(initial=-np.inf)
            rows, low, high = np.compress(kept, rows), low[kept], high[kept]
            if not len(rows):  # NaN is no bound
                raise NumericalFailure("the acquisition of a candidate is not a number")
            if not len(unsettled := np.flatnonzero(low < high)):
                return rows
            first = unsettled[np.argsort(-high[unsettled], kind="stable")[:size]]
            solution = solve(rows[first])
            low[first] = high[first] = np.rint((acquisition(solution.mean, solution.variance) - centre) / quantum)
            size = self._thresholds.solve_block

    def _tolerance(self, mean_tol: float, variance: Vector) -> Tolerance:
        """Bounds on the rounding errors of moments (m,), given the bound for all means, and the rounded variances.

        All that is computed of a candidate but its mean and variance is linear in its covariances k with the
        observations, and the errors shrink with these: |k| <= |L| |v| entry by entry, where |v|^2 is what the
        observations explain of its variance. Only the sums themselves round what is already there.
        """
        t, prior, observed = self._observations.count, self._prior_variance, self._observations
        rounding = 2 * EPSILON * t
        explained = np.maximum(prior - variance, 0.0) + rounding * prior
        share = np.minimum(np.sqrt(explained * observed.variance_max) / prior, 1.0)
        return Tolerance(
            mean_tol * share + rounding * abs(self._prior_mean), self._moments.var_tol * share + rounding * prior
        )

    def _maximum(self, acquisition: Acquisition, hidden: Mask | None, solve: Solve) -> Solution:
        """Exact moments of the candidates that are not ``hidden`` (n,) and may have the largest value, in order.

        The whitened rows are empty where one call of ``solve`` was not enough.
        """
        mean_tol = self._mean_tol()
        rows, mean, variance = self.updates.contenders(acquisition, mean_tol, hidden)
        if len(rows) > self._thresholds.leaders:
            upper = acquisition.interval(mean, variance, Tolerance(mean_tol, self._moments.var_tol))[1]
            first = solve(rows[[int(upper.argmax())]])
            rows = rows[upper >= min(upper.max(), acquisition(first.mean, first.variance)[0])]
        size = self._thresholds.solve_block
        if len(rows) <= size:
            return solve(rows)
        moments = [solve(block)[2:] for block in blocks(rows, size)]
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
        """Bound on the rounding error of a mean, which is an inner product v . w with the weights.

        That of the product itself is a share of |v| |w|. The rounded v solves L v = k but for residuals of a few
        units in the last place of the prior variance each (substitution is backward stable), and they move the mean
        by their inner product with L^-T w: much further where the covariances are nearly singular. (In single
        precision, with noise of 1e-8 of the prior variance, the residuals came to 1/70 of the tolerance at most.)
        """
        observed, t = self._observations, self._observations.count
        if not t:
            return 0.0
        product_error = np.sqrt(self._prior_variance * observed.weight_sq_cumsum[t])
        duals = left_product(observed.weights[:t], observed.inverse[:t, :t])
        return self._tol * float(max(product_error, _RESIDUAL * self._prior_variance * np.abs(duals).sum()))
