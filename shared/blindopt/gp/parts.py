"""Candidates in consecutive parts, in this process or others: moments, and those that may have the largest value."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from blindopt.arrays import Mask, Matrix, Rows, Vector
from blindopt.gp.acquisition import Acquisition, Tolerance
from blindopt.gp.candidates import Candidates, Precision, Scaling, precision_of
from blindopt.gp.kernels import Kernel
from blindopt.gp.observations import LocalObservations, Observations

COLUMN_ROWS = 1 << 16
"""Candidates whose next column is computed together."""
BLOCK_NUMBERS = 1 << 17
"""Numbers in a temporary array of an update, so that it stays in the cache."""
_BLOCK_ROWS_MIN = 64


@dataclass(frozen=True, slots=True)
class Model:
    """What all parts of the candidates share: the process, the precision, and how much they are computed with."""

    kernel: Kernel
    nugget: float
    prior_mean: float
    capacity: int
    dtype: Precision
    scaling: Scaling
    refined: Kernel | None = None
    """Covariance of candidates with refined ones."""

    @property
    def prior_variance(self) -> float:
        """Variance of f at each candidate before the first observation, with the nugget."""
        return self.kernel.variance + self.nugget

    def tolerance(self, largest: float) -> float:
        """Bound on the relative rounding error of what is computed of candidates of squared norms up to ``largest``."""
        return 64.0 * float(np.finfo(self.dtype).eps) * (1 + precision_of(self.kernel, largest)[1])


class Moments:
    """Whitened rows V (n, capacity), means and variances (n,) of candidates, all with as many observations.

    They start as those of the prior. V grows by columns, past the capacity too, and has the precision of the ``model``.
    """

    def __init__(self, candidates: Candidates, observations: LocalObservations, model: Model) -> None:
        n = len(candidates.extended)
        self._candidates, self._observations, self._model = candidates, observations, model
        self._whitened: Matrix = np.empty((n, model.capacity), model.dtype, order="F")
        self._count = 0
        self.mean: Vector = np.full(n, model.prior_mean)
        self.variance: Vector = np.full(n, model.prior_variance)

    def refresh(self) -> None:
        s, t = self._count, self._observations.count
        if t > self._whitened.shape[1]:
            larger: Matrix = np.empty((len(self.mean), 2 * t), self._whitened.dtype, order="F")
            larger[:, :s], self._whitened = self._whitened[:, :s], larger
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
            self.mean[rows] = self._model.prior_mean + whitened @ weights
            explained = np.einsum("ij,ij->i", whitened, whitened)
            self.variance[rows] = np.maximum(self._model.prior_variance - explained, 0.0)
        self._count = count

    def _append_column(self, s: int) -> None:
        """Append column s of all whitened rows, by forward substitution."""
        observed, whitened, mean, variance = self._observations, self._whitened, self.mean, self.variance
        of_all, nugget = observed.of_all, self._model.nugget
        factor = of_all.factor[s, : s + 1].astype(whitened.dtype, copy=False)
        size = min(COLUMN_ROWS, len(mean))
        for start in range(0, len(mean), size):
            rows = slice(start, start + size)
            column = observed.prior_covariance(rows, s)[:, 0]
            if nugget and start <= observed.rows[s] < start + size:
                column[observed.rows[s] - start] += nugget
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


_EPSILON = float(np.finfo(np.float64).eps)
_FEW = 64  # rows of which comparing the bounds saves nothing
_RESIDUAL = 1 / 16
"""Residual of a rounded whitened row, as a share of the tolerance."""
_LEAST, _MOST = np.array([-np.inf]), np.array([np.inf])
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Search:
    """Which candidates have the largest ``acquisition``, except for ``hidden`` rows (rising numbers).

    Values are compared as whole numbers of ``quantum`` above ``centre``, or as they are if it is 0.
    """

    acquisition: Acquisition
    quantum: float
    centre: float
    hidden: Rows

    def within(self, rows: range) -> "Search":
        if not len(self.hidden):
            return self
        first, last = np.searchsorted(self.hidden, [rows.start, rows.stop])
        return replace(self, hidden=self.hidden[first:last])

    def counted(self, values: Vector) -> Vector:
        """Values, or bounds of them, as they are compared."""
        if not self.quantum:
            return values
        counted: Vector = np.rint((values - self.centre) / self.quantum)
        return counted


class Leaders(NamedTuple):
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

    def __init__(self, candidates: Matrix, rows: range, model: Model, observations: Observations) -> None:
        self.rows, self._model, self._is_whole = rows, model, len(rows) == len(candidates)
        own = candidates[rows.start : rows.stop]
        self._candidates = Candidates(own, model.kernel, model.dtype, model.scaling, model.refined)
        self._observations = LocalObservations(observations, candidates, rows, self._candidates, model.nugget)
        self._hidden, self._mask = np.empty(0, dtype=np.intp), np.zeros(len(rows), dtype=np.bool_)
        self._upper: Vector = np.empty(len(rows))

    @property
    def largest(self) -> float:
        """The largest squared norm of the extended candidates."""
        return self._candidates.largest

    def begin(self, largest: float) -> None:
        """Get ready for answers, with the largest squared norm of the candidates of all parts."""
        candidates, model = self._candidates, self._model
        candidates.compare(largest)
        self._tol = model.tolerance(largest)
        self._var_tol = self._tol * model.prior_variance
        self._moments = Moments(candidates, self._observations, model)

    @np.errstate(invalid="ignore")  # as of leaders
    def moments(self, rows: Rows | None = None) -> tuple[Vector, Vector]:
        """Means and variances (m,) of the part's candidates ``rows`` (numbers among all), or of all of them."""
        self._sync()
        own = slice(None) if rows is None else rows - self.rows.start
        return self._moments.mean[own], self._moments.variance[own]

    # BLAS computes small products in vectors with unused entries, and what is left in these may raise the flag.
    @np.errstate(invalid="ignore")
    def leaders(self, search: Search) -> Leaders:
        """The rows that may have the largest value of all candidates, as far as the part can say."""
        self._sync()
        hidden = self._hide(search.hidden)
        if hidden is not None and len(self._hidden) == len(self.rows):
            return Leaders(self._hidden[:0], np.empty(0), np.empty(0))
        acquisition = search.acquisition
        mean_tol = mean_tolerance(self._tol, self._model.prior_variance, self._observations.of_all)
        slack = acquisition.with_slack(search.quantum)
        rows, mean, variance = self._highest(slack, Tolerance(mean_tol, self._var_tol), hidden)
        if self._is_whole and len(rows) == 1:  # there is nothing to compare it with
            return Leaders(rows, _LEAST, _MOST)
        bounds = acquisition.interval(mean, variance, self._tolerance(mean_tol, variance))
        low, high = (search.counted(bound) for bound in bounds)
        if len(rows) > _FEW:
            kept = high >= low.max()
            rows, low, high = np.compress(kept, rows), low[kept], high[kept]
        return Leaders(rows + self.rows.start, low, high)

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
        self._hidden = hidden - self.rows.start
        self._mask[self._hidden] = True
        return self._mask if len(self._hidden) else None

    def _tolerance(self, mean_tol: float, variance: Vector) -> Tolerance:
        """Bounds on the rounding errors of moments (m,), given the bound for all means, and the rounded variances.

        All that is computed of a candidate but its mean and variance is linear in its covariances k with the
        observations, and the errors shrink with these: |k| <= |L| |v| entry by entry, where |v|^2 is what the
        observations explain of its variance. Only the sums themselves round what is already there.
        """
        observed, prior = self._observations, self._model.prior_variance
        rounding = 2 * _EPSILON * observed.count
        explained = np.maximum(prior - variance, 0.0) + rounding * prior
        share = np.minimum(np.sqrt(explained * observed.of_all.variance_max) / prior, 1.0)
        return Tolerance(
            mean_tol * share + rounding * abs(self._model.prior_mean), self._var_tol * share + rounding * prior
        )


def mean_tolerance(tol: float, prior_variance: float, observed: Observations) -> float:
    """Bound on the rounding error of a mean, which is an inner product v . w with the weights.

    That of the product itself is a share ``tol`` of |v| |w|. The rounded v solves L v = k but for residuals of a few
    units in the last place of the prior variance each (substitution is backward stable), and they move the mean
    by their inner product with L^-T w: much further where the covariances are nearly singular. (In single
    precision, with noise of 1e-8 of the prior variance, the residuals came to 1/70 of the tolerance at most.)
    """
    if not (t := observed.count):
        return 0.0
    weights = observed.weights[:t]
    product_error = sqrt(prior_variance * (weights @ weights))
    return tol * float(max(product_error, _RESIDUAL * prior_variance * np.abs(observed.duals[:t]).sum()))


def edges(rows: range, count: int) -> list[range]:
    """Divide rows into so many ranges of about the same size, none of them empty.

    >>> edges(range(10, 20), 3)
    [range(10, 13), range(13, 16), range(16, 20)]
    """
    n, count = len(rows), max(1, min(count, len(rows)))
    return [rows[n * i // count : n * (i + 1) // count] for i in range(count)]


class Executor(Protocol):
    """Holds the parts of the candidates of one posterior, and calls them.

    It changes the time and the memory of a choice, and never the choice: a part is a cache of its candidates and of
    the observations, which may be built again at any time.
    """

    def build(self, candidates: Matrix, model: Model, observations: Observations) -> tuple[list[range], float]:
        """Build parts of ``candidates`` (n, r), in place of any others: their rows, and the largest squared norm.

        Each call is about ``observations`` as they then are.
        """

    def each(self, method: str, arguments: Mapping[int, Any]) -> list[Any]:
        """Call a method of ``Part``, of the parts with these numbers, each with its argument; return the results."""

    def drop(self) -> None:
        """Free what the parts hold."""


class Threads:
    """Parts in this process, called on up to ``threads`` threads at once.

    numpy leaves the interpreter to other threads while it computes; BLAS should have one thread then.
    """

    def __init__(self, parts: int = 1, threads: int = 1) -> None:
        self._count = parts
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="part") if threads > 1 else None
        self.parts: list[Part] = []

    def build(self, candidates: Matrix, model: Model, observations: Observations) -> tuple[list[range], float]:
        ranges, largest = self.build_some(candidates, range(len(candidates)), model, observations)
        self.begin(largest)
        return ranges, largest

    def build_some(
        self, candidates: Matrix, rows: range, model: Model, observations: Observations
    ) -> tuple[list[range], float]:
        """Build parts of ``rows`` alone. Before any call they have to ``begin``."""
        self.parts.clear()
        ranges = edges(rows, self._count)
        self.parts = self._map(lambda own: Part(candidates, own, model, observations), ranges)
        return ranges, max(part.largest for part in self.parts)

    def begin(self, largest: float) -> None:
        """Get ready for calls, with the largest squared norm of all candidates, also those of other processes."""
        self._map(lambda part: part.begin(largest), self.parts)

    def each(self, method: str, arguments: Mapping[int, Any]) -> list[Any]:
        return self._map(lambda item: getattr(self.parts[item[0]], method)(item[1]), arguments.items())

    def drop(self) -> None:
        self.parts.clear()
        if self._pool is not None:
            self._pool.shutdown()

    def _map(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        return list(map(work, items) if self._pool is None else self._pool.map(work, items))


class Parts:
    """All parts that an executor holds, as if they were one; ``ranges`` are their rows."""

    def __init__(self, executor: Executor, ranges: list[range]) -> None:
        self._executor, self._ranges = executor, ranges

    def leaders(self, search: Search) -> Leaders:
        """The rows that may have the largest value of all candidates, as far as each part can say."""
        searches = {number: search.within(rows) for number, rows in enumerate(self._ranges)}
        leaders: list[Leaders] = self._executor.each("leaders", searches)
        return leaders[0] if len(leaders) == 1 else Leaders(*map(np.concatenate, zip(*leaders, strict=True)))

    def moments(self, rows: Rows | None = None) -> tuple[Vector, Vector]:
        """Means and variances (m,) of candidates ``rows`` (rising), or of all."""
        if rows is None or len(self._ranges) == 1:
            arguments = dict.fromkeys(range(len(self._ranges)), rows)
        else:
            arguments = dict(self._split(rows))
        moments: list[tuple[Vector, Vector]] = self._executor.each("moments", arguments)
        if len(moments) == 1:
            return moments[0]
        mean, variance = (np.concatenate(values) for values in zip(*moments, strict=True))
        return mean, variance

    def _split(self, rows: Rows) -> Iterator[tuple[int, Rows]]:
        """The parts that hold some of ``rows`` (rising), with these rows."""
        limits = np.searchsorted(rows, [part.start for part in self._ranges] + [self._ranges[-1].stop])
        for number in range(len(self._ranges)):
            if len(own := rows[limits[number] : limits[number + 1]]):
                yield number, own
