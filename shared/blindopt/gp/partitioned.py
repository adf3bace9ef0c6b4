"""The candidate of the largest acquisition of all parts: the same one, however the candidates are divided."""

from collections.abc import Callable
from math import isnan, sqrt
from typing import NamedTuple

import numpy as np

from blindopt.arrays import Matrix, Rows, Vector
from blindopt.errors import NumericalFailure
from blindopt.gp.acquisition import Acquisition, Choice
from blindopt.gp.engines import Engine
from blindopt.gp.observations import Observations
from blindopt.gp.part import Law, Question, mean_tolerance
from blindopt.wire.run import Engine as Version

_FEW = 64  # rows that are solved for together at once
_SOLVED_MAX = 1 << 12  # rows that are solved for together


class Solution(NamedTuple):
    """Exact moments of m candidates: their whitened rows v (m, t), means and variances (m,)."""

    rows: Rows
    whitened: Matrix
    mean: Vector
    variance: Vector


Solve = Callable[[Rows], Solution]


class Partitioned:
    """Chooses among n candidates in parts, which an ``engine`` holds.

    The parts say which candidates may have the largest value but for rounding. These are compared by values that
    depend on the observations alone, so that all ways of computing lead to the same choice. Let c_i be the value of
    candidate i as ``solve`` computes it, and c the value before any observation. By ``version`` 1 the largest c_i is
    chosen. By version 2 the largest whole number k_i = round((c_i - c) / q) is chosen, with q the
    quantum of the acquisition: 1e-10 standard deviations of the prior. Rounded moments bound c_i from both sides;
    rounding is monotone, so where both bounds round to the same number it is k_i, and only the others are solved for.
    Of equal k_i the values differ by at most q, so that the chosen one is at most q below the largest c_i. Very many
    candidates far from all observations, whose bound is that of the prior, lie in the middle of a quantum: none of
    them is solved for, except for the one that is drawn.
    """

    def __init__(self, engine: Engine, candidates: Matrix, law: Law, observations: Observations, version: Version):
        self.engine, self._n, self._law = engine, len(candidates), law
        self._observations, self._version = observations, version
        self._tol = law.tolerance(engine.build(candidates, law, observations))
        self._prior = np.array([law.prior_mean]), np.array([law.prior_variance])

    def moments(self, rows: Rows | None = None) -> tuple[Vector, Vector]:
        """Means and variances (m,) of candidates ``rows``, or of all."""
        if rows is None or (np.diff(rows := np.asarray(rows)) > 0).all():
            return self.engine.fetch(rows)
        rising, inverse = np.unique(rows, return_inverse=True)
        mean, variance = self.engine.fetch(rising)
        return mean[inverse], variance[inverse]

    def choose(
        self, acquisition: Acquisition, hidden: Rows, solve: Solve, rng: Callable[[], np.random.Generator]
    ) -> Choice:
        """The row that is none of ``hidden`` (rising) of the largest value; a draw from ``rng()`` breaks ties.

        ``solve`` computes exact moments. Raises NumericalFailure if a value is not a number.
        """
        if self._observations.count:
            rows = self._equals(acquisition, hidden, solve)
            row = int(rows[0] if len(rows) == 1 else rows[rng().integers(len(rows))])
            return _choice(row, len(rows), acquisition, solve)
        count = self._n - len(hidden)  # all are equal
        row = int(rng().integers(count)) if count > 1 else 0
        for other in hidden.tolist():
            row += other <= row
        return _choice(row, count, acquisition, solve)

    def _equals(self, acquisition: Acquisition, hidden: Rows, solve: Solve) -> Rows:
        """Rows, rising, that are equal and the largest."""
        quantum = 0.0 if self._version == 1 else acquisition.quantum(self._law.prior_variance)
        centre = float(acquisition(*self._prior)[0])
        question = Question(acquisition, quantum, centre, hidden)
        answers = list(self.engine.step(question))
        rows, low, high = answers[0]
        if len(answers) > 1:
            rows, low, high = (np.concatenate(values) for values in zip(*answers, strict=True))
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
            solution = solve(rows[first])
            low[first] = high[first] = question.counted(acquisition(solution.mean, solution.variance))
            is_settled[first], size = True, _SOLVED_MAX

    def best(self, rows: Rows, weight: float, solve: Solve) -> tuple[int, float, float]:
        """The first of ``rows`` (rising, not empty) with the largest mean - sqrt(weight variance), and its moments."""
        mean, variance = self.engine.fetch(rows)
        mean_tol = mean_tolerance(self._tol, self._law.prior_variance, self._observations)
        var_tol = self._tol * self._law.prior_variance
        low = mean - np.sqrt(weight * (variance + var_tol)) - mean_tol
        high = mean - np.sqrt(weight * np.maximum(variance - var_tol, 0.0)) + mean_tol
        contenders = rows[high >= low.max()][:_SOLVED_MAX]  # of very many equal ones, the first
        _, _, mean, variance = solve(contenders)
        index = int((mean - np.sqrt(weight * variance)).argmax())
        return int(contenders[index]), float(mean[index]), float(variance[index])


def _choice(row: int, ties: int, acquisition: Acquisition, solve: Solve) -> Choice:
    """The choice of a row that is equal to so many, itself included."""
    _, _, mean, variance = solve(np.array([row]))
    (value,) = acquisition(mean, variance).tolist()
    if isnan(value):
        raise NumericalFailure("the acquisition of a candidate is not a number")
    return Choice(row, float(mean[0]), sqrt(variance[0]), value, ties)
