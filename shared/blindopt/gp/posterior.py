"""The exact posterior of a Gaussian process at every candidate, and the candidate of the largest acquisition."""

from collections.abc import Callable
from math import isnan, sqrt

import numpy as np

from blindopt.arrays import Matrix, Rows, Vector
from blindopt.errors import NumericalFailure
from blindopt.gp.acquisition import Acquisition, Choice, ExpectedImprovement
from blindopt.gp.candidates import Precision, Scaling, Span, span_of
from blindopt.gp.exact_gp import ExactGP
from blindopt.gp.kernels import Kernel
from blindopt.gp.parts import Executor, Model, Parts, Search, Threads, mean_tolerance
from blindopt.wire.run import Engine

_LEAST = 1e-16  # share of the prior variance: what is less is lost to rounding
_FEW = 64  # rows that are solved for together at once
_SOLVED_MAX = 1 << 12  # rows that are solved for together
_NO_ROWS: Rows = np.empty(0, dtype=np.intp)


class Posterior(ExactGP):
    """Posterior mean and variance of f at all n candidates, and the one to choose next.

    The parts of the candidates say which of them may have the largest value but for rounding. These are compared by
    values that depend on the observations alone, to the last bit: not on ``dtype``, restarts, earlier choices, or the
    ``executor`` that holds the parts (one part in this process without it). Let c_i be the value of candidate i as
    ``solve`` computes it, and c the value before any observation. By version 1 of the ``engine`` the largest c_i is
    chosen. By version 2 the largest whole number k_i = round((c_i - c) / q) is chosen, with q the
    quantum of the acquisition: 1e-10 standard deviations of the prior. Rounded moments bound c_i from both sides;
    rounding is monotone, so where both bounds round to the same number it is k_i, and only the others are solved for.
    Of equal k_i the values differ by at most q, so that the chosen one is at most q below the largest c_i. Very many
    candidates far from all observations, whose bound is that of the prior, lie in the middle of a quantum: none of
    them is solved for, except for the one that is drawn.

    Holds n (capacity + rank of Z + 7) numbers of ``dtype``: float32 takes half the memory. ``span``, if it is known,
    spares two passes over the candidates.

    >>> from blindopt.gp.kernels import SquaredExponential
    >>> posterior = Posterior(np.array([[0.0], [1.0]]), SquaredExponential(1.0), noise_variance=0.1, capacity=5)
    >>> posterior.observe(0, 1.0)
    >>> posterior.mean.round(3)
    array([0.909, 0.551])
    """

    def __init__(
        self,
        candidates: Matrix,
        kernel: Kernel,
        *,
        noise_variance: float,
        prior_mean: float = 0.0,
        nugget: float = 0.0,
        capacity: int,
        dtype: Precision = np.float64,
        span: Span | None = None,
        scales: Vector | None = None,
        engine: Engine = 2,
        executor: Executor | None = None,
    ) -> None:
        super().__init__(
            candidates,
            kernel,
            noise_variance=noise_variance,
            prior_mean=prior_mean,
            nugget=nugget,
            capacity=capacity,
            scales=scales,
        )
        self.span = span_of(candidates) if span is None else span
        """Spares another posterior of the same candidates two passes over them."""
        scaling = Scaling.of(candidates, kernel, self.span, scales)
        model = Model(kernel, nugget, self._prior_mean, capacity, dtype, scaling)
        executor = executor or Threads()
        ranges, largest = executor.build(candidates, model, self.observations)
        self._parts, self._engine = Parts(executor, ranges), engine
        self._tol = model.tolerance(largest)

    def moments(self, rows: Rows) -> tuple[Vector, Vector]:
        """Means and variances (m,) of candidates ``rows``."""
        if (np.diff(rows := np.asarray(rows)) > 0).all():
            return self._parts.moments(rows)
        rising, inverse = np.unique(rows, return_inverse=True)
        mean, variance = self._parts.moments(rising)
        return mean[inverse], variance[inverse]

    @property
    def mean(self) -> Vector:
        """Means of all candidates (n,)."""
        return self._parts.moments()[0]

    @property
    def variance(self) -> Vector:
        """Variances of all candidates (n,)."""
        return self._parts.moments()[1]

    def best(self, rows: Rows, weight: float = 0.0) -> tuple[int, float, float]:
        """The first of ``rows`` (rising, not empty) of the largest mean - sqrt(``weight`` variance), and moments."""
        mean, variance = self._parts.moments(rows)
        mean_tol = mean_tolerance(self._tol, self._prior_variance, self.observations)
        var_tol = self._tol * self._prior_variance
        low = mean - np.sqrt(weight * (variance + var_tol)) - mean_tol
        high = mean - np.sqrt(weight * np.maximum(variance - var_tol, 0.0)) + mean_tol
        near = rows[high >= low.max()][:_SOLVED_MAX]  # of very many equal ones, the first
        _, _, mean, variance = self.solve(near)
        index = int((mean - np.sqrt(weight * variance)).argmax())
        return int(near[index]), float(mean[index]), float(variance[index])

    def argmax(
        self, acquisition: Acquisition, rng: Callable[[], np.random.Generator], hidden: Rows = _NO_ROWS
    ) -> Choice:
        """The row of the largest ``acquisition`` that is none of ``hidden`` (rising); a draw of ``rng`` breaks ties.

        Raises IndexError if all are hidden, and NumericalFailure if a value is not a number.
        """
        if (count := self.n - len(hidden)) == 0:
            raise IndexError("every row is hidden")
        if self.count:
            rows = self._equals(acquisition, hidden)
            row = int(rows[0] if len(rows) == 1 else rows[rng().integers(len(rows))])
            count = len(rows)
        else:  # all are equal
            row = int(rng().integers(count)) if count > 1 else 0
            for other in hidden.tolist():
                row += other <= row
        _, _, mean, variance = self.solve(np.array([row]))
        (value,) = acquisition(mean, variance).tolist()
        if isnan(value):
            raise NumericalFailure("the acquisition of a candidate is not a number")
        return Choice(row, float(mean[0]), sqrt(variance[0]), value, count)

    def improvement(self, optimism: float) -> ExpectedImprovement:
        """Expected improvement on the largest mean of the rows observed; on the prior mean before the first.

        ``optimism`` is the number of learnable standard deviations that are added to a mean.
        """
        observed = np.unique(self.observations.rows[: self.count])
        best = self.best(observed)[1] if len(observed) else self._prior_mean
        return ExpectedImprovement(best, optimism**2, self.nugget, _LEAST * self._prior_variance)

    def _equals(self, acquisition: Acquisition, hidden: Rows) -> Rows:
        """Rows, rising, that are equal and the largest."""
        quantum = 0.0 if self._engine == 1 else acquisition.quantum(self._prior_variance)
        centre = float(acquisition(np.array([self._prior_mean]), np.array([self._prior_variance]))[0])
        search = Search(acquisition, quantum, centre, hidden)
        rows, low, high = self._parts.leaders(search)
        if len(rows) == 1:
            return rows
        is_settled = low == high if quantum else np.zeros(len(rows), dtype=np.bool_)
        size = 1 if len(rows) > _FEW else len(rows)  # the first rules out most of very many
        while True:
            kept = high >= low.max(initial=-np.inf)
            rows, low, high, is_settled = np.compress(kept, rows), low[kept], high[kept], is_settled[kept]
            if not len(rows):  # NaN is no bound
                raise NumericalFailure("the acquisition of a candidate is not a number")
            if not len(unsettled := np.flatnonzero(~is_settled)):
                return rows
            first = unsettled[np.argsort(-high[unsettled], kind="stable")[:size]]
            solution = self.solve(rows[first])
            low[first] = high[first] = search.counted(acquisition(solution.mean, solution.variance))
            is_settled[first], size = True, _SOLVED_MAX
