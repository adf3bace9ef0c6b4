"""The exact posterior of a Gaussian process at every candidate, and the candidate of the largest acquisition."""

from collections.abc import Callable
from math import isnan, sqrt
from typing import NamedTuple

import numpy as np

from blindopt.arguments import checked, checked_methods
from blindopt.arrays import Matrix, Rows, Vector
from blindopt.errors import Invalid, NumericalFailure
from blindopt.gp.acquisition import Acquisition, Choice, ExpectedImprovement, Reach
from blindopt.gp.candidates import Precision, Scaling, Span, span_of
from blindopt.gp.kernels import Kernel
from blindopt.gp.observations import OUTCOME_MAX, Observations, times_transposed
from blindopt.gp.parts import Executor, Model, Parts, Search, Threads, mean_tolerance
from blindopt.gp.single_thread_blas import factors, right_product
from blindopt.wire.run import NEWEST, Engine


class Solution(NamedTuple):
    """Exact moments of m candidates: their whitened rows v (m, t), means and variances (m,).

    >>> Solution(np.array([7]), np.zeros((1, 0)), np.array([0.5]), np.array([1.0])).mean
    array([0.5])
    """

    rows: Rows
    whitened: Matrix
    mean: Vector
    variance: Vector


_LEAST = 1e-16  # share of the prior variance: what is less is lost to rounding
_FEW = 64  # rows that are solved for together at once
_SOLVED_MAX = 1 << 12  # rows that are solved for together
_NO_ROWS: Rows = np.empty(0, dtype=np.intp)


@checked_methods
class Posterior:
    """Posterior mean and variance of f at all n candidates given t observations y = f + noise, and the next to choose.

    Let k_i (t,) be the covariances of candidate i with the observed ones, K (t, t) those among the observed ones, S
    the diagonal matrix of noise variances, and m the prior mean. By Rasmussen & Williams (2006), eqs. 2.25-2.26,

        mean_i = m + k_i^T (K + S)^-1 (y - m),  variance_i = k_ii - k_i^T (K + S)^-1 k_i.

    With L the Cholesky factor of K + S, w = L^-1 (y - m) and the whitened row v_i = L^-1 k_i, these are m + v_i . w
    and k_ii - |v_i|^2. Another observation appends a row to L, and a number to w and to each v_i.

    Candidates (n, r) are ``candidates``, ``kernel`` is their covariance, ``prior_mean`` is in units of the outcome, and
    ``capacity`` is the number of observations that there is room for at first. Variances are in squared units of the
    outcome: ``noise_variance`` is the usual one of an observation, and ``nugget`` is that of a part of f that each row
    has for itself (see ``input_noise``). Coordinates are multiplied by ``scales`` (r,) first, if there are any. A row
    may be observed again.

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

    A candidate that ``refine`` has given a place of less noise has the first kernel of ``refined`` with the others and
    the second with others that are refined, both with the length-scale of ``kernel``. The parts know its outcomes, and
    not its place: it is always solved for.

    Holds n (capacity + rank of Z + 7) numbers of ``dtype``: float32 takes half the memory. ``span``, if it is known,
    spares two passes over the candidates. From version 3 on, with ``scales``, it is that of the scaled columns.

    >>> from blindopt.gp.kernels import SquaredExponential
    >>> posterior = Posterior(np.array([[0.0], [1.0]]), SquaredExponential(1.0), noise_variance=0.1, capacity=5)
    >>> posterior.observe(0, 1.0)
    >>> posterior.mean.round(3)
    array([0.909, 0.551])
    """

    @checked
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
        engine: Engine = NEWEST,
        executor: Executor | None = None,
        refined: tuple[Kernel, Kernel] | None = None,
    ) -> None:
        if candidates.ndim != 2 or candidates.dtype.kind not in "fiu" or np.ma.isMaskedArray(candidates):
            raise Invalid.at("candidates", "must be a matrix of real numbers, a row for each candidate")
        self.n, r = candidates.shape
        if scales is not None and scales.shape != (r,):
            raise Invalid.at("scales", f"must be {r} numbers, one for each column")
        if refined is not None and not (isinstance(refined, tuple) and len(refined) == 2):
            raise Invalid.at(
                "refined", "must be two kernels: of a refined candidate with others, and with refined ones"
            )
        self._candidates, self._kernel, self._prior_mean = candidates, kernel, float(prior_mean)
        self._scales, self._refined = scales, refined
        self._prior_variance, self.nugget = kernel.variance + nugget, nugget
        self.observations = Observations(r, noise_variance, nugget, capacity)
        self._solved: Solution | None = None  # the row to observe next is often among those solved for last
        if dtype not in (np.float32, np.float64):
            raise Invalid.at("dtype", "must be float32 or float64 of numpy")
        if executor is not None and not hasattr(executor, "build"):
            raise Invalid.at("executor", "must be an executor such as Threads()")
        if span is None and (scales is None or engine < 3):
            span = span_of(candidates)
        self.span = span
        """Spares another posterior of the same candidates two passes over them."""
        scaling = Scaling.of(candidates, kernel, span, scales)
        cross = None if refined is None else refined[0]
        model = Model(kernel, nugget, self._prior_mean, capacity, dtype, scaling, cross)
        executor = Threads() if executor is None else executor
        ranges, largest = executor.build(candidates, model, self.observations)
        self._parts, self._engine = Parts(executor, ranges), engine
        self._tol = model.tolerance(largest)

    @property
    def count(self) -> int:
        """t: observations so far, supposed ones included."""
        return self.observations.count

    def refine(self, row: int, centre: Vector) -> None:
        """Have the outcomes of candidate ``row``, of which there are none yet, belong to a ``centre`` (r,)."""
        assert self._refined is not None, "a posterior that refines has the kernels for it"
        self.observations.places[row], self._solved = centre, None

    def observe(self, row: int, outcome: float, noise_variance: float | None = None) -> None:
        """Condition on ``outcome`` at candidate ``row``; ``noise_variance`` is its own, if it differs from the usual.

        Raises Invalid past n, and NumericalFailure for an outcome or a variance that is no number.
        """
        whitened, mean, pivot = self._next_row(row, noise_variance)
        weight = (outcome - mean) / pivot if abs(outcome) <= OUTCOME_MAX and 0 < pivot < np.inf else np.nan
        if not abs(weight) <= OUTCOME_MAX:  # refuses NaN too
            raise NumericalFailure(f"outcome {self.count + 1} cannot be absorbed: check its value")
        self.observations.append(row, self._inputs(row), whitened, pivot, weight)

    def begin(self, rows: Rows, outcomes: Vector, noise_variances: Vector) -> None:
        """Condition on the first t ``outcomes`` (t,) of ``rows`` (t,) together, with ``noise_variances`` (t,).

        One factorization takes the place of t rows, whose last digits it changes: anyone who repeats the choices
        begins with the same ones together. Outcomes whose covariance cannot be factored are taken one by one. Raises as
        ``observe``.
        """
        assert not self.count, "only the first outcomes come together"
        inputs = self._inputs(rows)
        gram = self._covariances(rows, rows, inputs)
        np.einsum("ii->i", gram)[:] += noise_variances
        off = outcomes - self._prior_mean
        try:
            factor, inverse = factors(gram)
            weights = right_product(inverse, off)
            weights += right_product(inverse, off - right_product(factor, weights))
            if not (np.abs(weights).max(initial=0.0) <= OUTCOME_MAX and (noise_variances > 0).all()):
                raise NumericalFailure("outcomes cannot be absorbed: check their values")
        except NumericalFailure:
            for row, outcome, noise_variance in zip(rows.tolist(), outcomes.tolist(), noise_variances, strict=True):
                self.observe(row, outcome, float(noise_variance))
        else:
            self.observations.begin(rows, inputs, factor, inverse, weights)

    def suppose(self, row: int, noise_variance: float | None = None) -> None:
        """Condition on an outcome at ``row`` that is still to come, as if it were the posterior mean there.

        ``noise_variance`` is its own, if it differs from the usual.

        Means stay, and variances fall as they will whatever it is: Desautels et al. (2014), section 4.
        """
        whitened, _, pivot = self._next_row(row, noise_variance)
        if not 0 < pivot < np.inf:
            raise NumericalFailure(f"row {row} cannot be supposed to be queried: its variance is lost")
        self.observations.append(row, self._inputs(row), whitened, pivot, 0.0)

    def retract(self, count: int) -> None:
        """Go back to the first ``count`` observations; Invalid if there are fewer."""
        if count != self.count:
            self.observations.retract(count)
            self._solved = None

    def solve(self, rows: Rows) -> Solution:
        """Whitened rows v (m, t) and moments (m,) of a few candidates ``rows``, in float64.

        Their bits depend on row and observations alone, because ``einsum`` without BLAS sums each entry in one order.
        A step of iterative refinement makes up for the explicit inverse of L.
        """
        t, observed = self.count, self.observations
        cross = self._covariances(rows, observed.rows[:t], observed.inputs[:t])
        factor, inverse = observed.factor[:t, :t], observed.inverse[:t, :t]
        whitened = times_transposed(cross, inverse)
        cross -= times_transposed(whitened, factor)
        whitened += times_transposed(cross, inverse)
        mean = self._prior_mean + np.einsum("ij,j->i", whitened, observed.weights[:t])
        variance = self._prior_variance - np.einsum("ij,ij->i", whitened, whitened)
        self._solved = Solution(rows, whitened, mean, np.maximum(variance, 0.0))
        return self._solved

    def correlations(self, rows: Rows, others: Rows) -> Matrix:
        """Prior correlations (m, k) of f, without the nugget, at ``rows`` (m,) and ``others`` (k,)."""
        correlations: Matrix = self._kernel(self._inputs(rows), self._inputs(others))
        correlations /= self._kernel.variance
        return correlations

    def _covariances(self, rows: Rows, others: Rows, inputs: Matrix) -> Matrix:
        """Prior covariances (m, k) of f at ``rows`` (m,) and ``others`` (k,), whose places are ``inputs`` (k, r)."""
        own, is_same = self._inputs(rows), rows[:, None] == others
        covariances: Matrix = self._kernel(own, inputs)
        if self.nugget:
            covariances += self.nugget * is_same
        if self._refined is not None and self.observations.places:
            refined = np.add.outer(
                *(self.observations.is_refined(numbers).astype(np.intp) for numbers in (rows, others))
            )
            for number, kernel in enumerate(self._refined, start=1):
                np.copyto(covariances, kernel(own, inputs), where=refined == number)
            covariances[is_same] = self._prior_variance
        return covariances

    def _inputs(self, rows: Rows | int) -> Matrix:
        places = self.observations.places
        try:
            inputs: Matrix = np.asarray(self._candidates[rows])
        except IndexError:
            raise Invalid.at("rows", f"must be numbers from 0 to {self.n - 1}") from None
        if places:
            numbers = np.atleast_1d(rows).tolist()
            inputs = np.array([places.get(row, own) for row, own in zip(numbers, np.atleast_2d(inputs), strict=True)])
            inputs = inputs.reshape(*np.shape(rows), self._candidates.shape[1])
        return inputs if self._scales is None else inputs * self._scales

    def _next_row(self, row: int, noise_variance: float | None) -> tuple[Vector, float, float]:
        """Whitened row (t,) and pivot that an observation at ``row`` adds to L; between them, the mean there."""
        if not 0 <= row < self.n:
            raise Invalid.at("row", f"must be from 0 to {self.n - 1}")
        noise = self.observations.next_noise(noise_variance)
        if (solved := self._solved) is None or row not in solved.rows.tolist():
            solved = self.solve(np.array([row]))
        i, self._solved = solved.rows.tolist().index(row), None
        return solved.whitened[i], float(solved.mean[i]), sqrt(solved.variance[i] + noise)

    def moments(self, rows: Rows) -> tuple[Vector, Vector]:
        """Means and variances (m,) of candidates ``rows``."""
        if (np.diff(rows) > 0).all():
            return self._moments(rows)
        rising, inverse = np.unique(rows, return_inverse=True)
        mean, variance = self._moments(rising)
        return mean[inverse], variance[inverse]

    def _moments(self, rows: Rows | None = None) -> tuple[Vector, Vector]:
        """Means and variances of candidates ``rows`` (rising), or of all: of refined ones as they are solved for."""
        mean, variance = self._parts.moments(rows)
        if self.observations.places:
            numbers = np.arange(self.n) if rows is None else rows
            refined = np.flatnonzero(self.observations.is_refined(numbers))
            mean, variance, solution = mean.copy(), variance.copy(), self.solve(numbers[refined])
            mean[refined], variance[refined] = solution.mean, solution.variance
        return mean, variance

    @property
    def mean(self) -> Vector:
        """Means of all candidates (n,)."""
        return self._moments()[0]

    @property
    def variance(self) -> Vector:
        """Variances of all candidates (n,)."""
        return self._moments()[1]

    def best(self, rows: Rows, weight: float = 0.0) -> tuple[int, float, float]:
        """The first of ``rows`` (rising, not empty) of the largest mean - sqrt(``weight`` variance), and moments."""
        if not 0 <= weight < np.inf:
            raise Invalid.at("weight", "must be finite and not negative")
        mean, variance = self._moments(rows)
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

        Raises Invalid if all are hidden, and NumericalFailure if a value is not a number.
        """
        if (count := self.n - len(hidden)) == 0:
            raise Invalid("every candidate is hidden")
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
        if not abs(optimism) <= OUTCOME_MAX:
            raise Invalid.at("optimism", "must be a finite number")
        observed = np.unique(self.observations.rows[: self.count])
        best = self.best(observed)[1] if len(observed) else self._prior_mean
        return ExpectedImprovement(best, optimism**2, self.nugget, _LEAST * self._prior_variance)

    def reaching(self, threshold: float, optimism: float) -> Reach:
        """How surely candidates reach a ``threshold``, in units of the outcome; ``optimism`` as in ``improvement``."""
        if not (abs(optimism) <= OUTCOME_MAX and abs(threshold) <= OUTCOME_MAX):
            raise Invalid.at("threshold", "and optimism must be finite numbers")
        return Reach(threshold, optimism**2, self.nugget, _LEAST * self._prior_variance)

    def _equals(self, acquisition: Acquisition, hidden: Rows) -> Rows:
        """Rows, rising, that are equal and the largest."""
        quantum = 0.0 if self._engine == 1 else acquisition.quantum(self._prior_variance)
        centre = float(acquisition(np.array([self._prior_mean]), np.array([self._prior_variance]))[0])
        refined = np.setdiff1d(np.array(list(self.observations.places), dtype=np.intp), hidden)
        search = Search(acquisition, quantum, centre, np.union1d(hidden, refined) if len(refined) else hidden)
        rows, low, high = self._parts.leaders(search)
        if len(refined):
            solution = self.solve(refined)
            values = search.counted(acquisition(solution.mean, solution.variance))
            order = np.argsort(rows := np.concatenate([rows, refined]), kind="stable")
            rows = rows[order]
            low, high = (np.concatenate([bounds, values])[order] for bounds in (low, high))
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
