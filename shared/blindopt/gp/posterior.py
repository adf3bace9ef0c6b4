"""The exact posterior of a Gaussian process at every candidate, and the candidate of the largest acquisition."""

from collections.abc import Callable
from math import sqrt

import numpy as np

from blindopt.arrays import Matrix, Rows, Vector
from blindopt.errors import NumericalFailure
from blindopt.gp.acquisition import Acquisition, Choice, ExpectedImprovement, UpperConfidenceBound
from blindopt.gp.candidates import Frame, Lift, Precision, frame_of
from blindopt.gp.kernels import Kernel
from blindopt.gp.observations import OUTCOME_MAX, Observations
from blindopt.gp.partitions import engines
from blindopt.gp.partitions.part import Law
from blindopt.gp.partitions.partitioned import Partitioned, Solution
from blindopt.gp.single_thread_blas import factors, right_product
from blindopt.gp.updates import THRESHOLDS, Thresholds
from blindopt.wire.algorithms.plans import Engine

_LEAST = 1e-16  # share of the prior variance: what is less is lost to rounding


class Posterior:
    """Posterior mean and variance of f at all n candidates, given t observations y = f + noise.

    Let k_i (t,) be the covariances of candidate i with the observed ones, K (t, t) those among the observed ones, S
    the diagonal matrix of noise variances, and m the prior mean. By Rasmussen & Williams (2006), eqs. 2.25-2.26,

        mean_i = m + k_i^T (K + S)^-1 (y - m),  variance_i = k_ii - k_i^T (K + S)^-1 k_i.

    With L the Cholesky factor of K + S, w = L^-1 (y - m) and the whitened row v_i = L^-1 k_i, these are m + v_i . w
    and k_ii - |v_i|^2. Another observation appends a row to L, and a number to w and to each v_i.

    ``Part`` brings the moments of candidates up to date, and ``Partitioned`` says when candidates are equal by each
    version (``engine``). Choices depend on the observations alone, to the last bit: not on ``dtype``, ``thresholds``,
    numba, restarts, earlier choices, or on ``parts``, the engine that holds the candidates in parts (one part in this
    process without it). A row may be observed again.
    Variances are in squared units of the outcome; ``nugget`` is that of a part of f that each row has for itself (see
    ``input_noise``). Coordinates are multiplied by ``scales`` (r,) first, if there are any. Holds
    n (capacity + rank of Z + 7) numbers of ``dtype``: float32 takes half the memory.
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
        frame: Frame | None = None,
        scales: Vector | None = None,
        thresholds: Thresholds = THRESHOLDS,
        engine: Engine = 2,
        parts: engines.Engine | None = None,
    ) -> None:
        self.n, r = candidates.shape
        self._candidates, self._kernel, self._prior_mean = candidates, kernel, float(prior_mean)
        self._scales = scales
        self._prior_variance, self.nugget = kernel.variance + nugget, nugget
        self.frame = frame_of(candidates) if frame is None else frame
        """Spares another posterior of the same candidates two passes over them."""
        self.observations = Observations(r, noise_variance, nugget, capacity)
        lift = Lift.of(candidates, kernel, self.frame, scales)
        law = Law(kernel, nugget, self._prior_mean, capacity, dtype, lift, thresholds)
        self.parts = parts or engines.LocalEngine()
        self.maximum = Partitioned(self.parts, candidates, law, self.observations, engine)
        self._hidden: Rows = np.empty(0, dtype=np.intp)
        self._solved: Solution | None = None  # the row to observe next is often among those solved for last

    @property
    def count(self) -> int:
        """t: observations so far, supposed ones included."""
        return self.observations.count

    def observe(self, row: int, outcome: float, noise_variance: float | None = None) -> None:
        """Condition on ``outcome`` at candidate ``row``; ``noise_variance`` is its own, if it differs from the usual.

        Raises IndexError past n or the capacity, and NumericalFailure for an outcome or a variance that is no number.
        """
        whitened, mean, pivot = self._next_row(row, noise_variance)
        weight = (outcome - mean) / pivot if abs(outcome) <= OUTCOME_MAX and 0 < pivot < np.inf else np.nan
        if not abs(weight) <= OUTCOME_MAX:  # refuses NaN too
            raise NumericalFailure(f"outcome {self.count + 1} cannot be absorbed: check its value")
        self.observations.append(row, self._inputs(row), whitened, pivot, weight)

    def begin(self, rows: Rows, outcomes: Vector, noise_variances: Vector) -> None:
        """Condition on the first t outcomes (t,) of ``rows`` (t,) together, each with its noise variance.

        One factorization takes the place of t rows, whose last digits it changes: whoever repeats the choices begins
        with the same ones together. Outcomes whose covariance cannot be factored are taken one by one. Raises as
        ``observe``.
        """
        assert not self.count, "only the first outcomes come together"
        inputs = self._inputs(rows)
        gram = self._kernel(inputs, inputs)
        if self.nugget:
            gram += self.nugget * (rows[:, None] == rows)
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

        Means stay, and variances fall as they will whatever it is: Desautels et al. (2014), section 4.
        """
        whitened, _, pivot = self._next_row(row, noise_variance)
        if not 0 < pivot < np.inf:
            raise NumericalFailure(f"row {row} cannot be supposed to be queried: its variance is lost")
        self.observations.append(row, self._inputs(row), whitened, pivot, 0.0)

    def retract(self, count: int) -> None:
        """Go back to the first ``count`` observations; ValueError if there are fewer."""
        if count != self.count:
            self.observations.retract(count)
            self._solved = None

    def solve(self, rows: Rows) -> Solution:
        """Whitened rows v (m, t) and moments (m,) of a few candidates, in float64.

        Their bits depend on row and observations alone, because ``einsum`` without BLAS sums each entry in one order.
        A step of iterative refinement makes up for the explicit inverse of L.
        """
        t, observed = self.count, self.observations
        cross = self._kernel(self._inputs(rows), observed.inputs[:t])
        if self.nugget:
            cross += self.nugget * (rows[:, None] == observed.rows[:t])
        factor, inverse = observed.factor[:t, :t], observed.inverse[:t, :t]
        whitened = np.einsum("ij,kj->ik", cross, inverse)
        cross -= np.einsum("ij,kj->ik", whitened, factor)
        whitened += np.einsum("ij,kj->ik", cross, inverse)
        mean = self._prior_mean + np.einsum("ij,j->i", whitened, observed.weights[:t])
        variance = self._prior_variance - np.einsum("ij,ij->i", whitened, whitened)
        self._solved = Solution(rows, whitened, mean, np.maximum(variance, 0.0))
        return self._solved

    def moments(self, rows: Rows) -> tuple[Vector, Vector]:
        """Means and variances (m,) of candidates ``rows``."""
        return self.maximum.moments(rows)

    @property
    def mean(self) -> Vector:
        """Means of all candidates (n,)."""
        return self.maximum.moments()[0]

    @property
    def variance(self) -> Vector:
        """Variances of all candidates (n,)."""
        return self.maximum.moments()[1]

    def best(self, rows: Rows, weight: float = 0.0) -> tuple[int, float, float]:
        """The first of ``rows`` (rising, not empty) with the largest mean - sqrt(weight variance), and its moments."""
        return self.maximum.best(rows, weight, self.solve)

    def hide(self, rows: Rows) -> None:
        """Choose none of ``rows`` from now on, and any other; rows hidden before are shown again."""
        self._hidden = np.unique(rows)

    def choose(self, weight: float, rng: Callable[[], np.random.Generator]) -> Choice:
        """The row not hidden of largest mean + sqrt(weight variance); a draw from ``rng()`` breaks ties."""
        return self.maximize(UpperConfidenceBound(weight), rng)

    def maximize(self, acquisition: Acquisition, rng: Callable[[], np.random.Generator]) -> Choice:
        """The row not hidden of the largest ``acquisition``; a draw from ``rng()`` breaks ties."""
        if len(self._hidden) == self.n:
            raise IndexError("every row is hidden")
        return self.maximum.choose(acquisition, self._hidden, self.solve, rng)

    def improvement(self, optimism: float) -> ExpectedImprovement:
        """Expected improvement on the largest mean of the rows observed; on the prior mean before the first.

        ``optimism`` is the number of learnable standard deviations that are added to a mean.
        """
        observed = np.unique(self.observations.rows[: self.count])
        best = self.best(observed)[1] if len(observed) else self._prior_mean
        return ExpectedImprovement(best, optimism**2, self.nugget, _LEAST * self._prior_variance)

    def _inputs(self, rows: Rows | int) -> Matrix:
        inputs: Matrix = np.asarray(self._candidates[rows])
        return inputs if self._scales is None else inputs * self._scales

    def _next_row(self, row: int, noise_variance: float | None) -> tuple[Vector, float, float]:
        """Whitened row (t,) and pivot that an observation at ``row`` adds to L; between them, the mean there."""
        if not 0 <= row < self.n:
            raise IndexError(f"row {row} of {self.n} candidates")
        noise = self.observations.next_noise(noise_variance)
        if (solved := self._solved) is None or row not in solved.rows.tolist():
            solved = self.solve(np.array([row]))
        i, self._solved = solved.rows.tolist().index(row), None
        return solved.whitened[i], float(solved.mean[i]), sqrt(solved.variance[i] + noise)
