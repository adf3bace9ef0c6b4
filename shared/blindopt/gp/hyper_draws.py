"""Draws of hyper-parameters from their posterior, and the mixture of laws that they predict."""

from dataclasses import dataclass

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.errors import NumericalFailure
from blindopt.gp.climbing import minimize
from blindopt.gp.fitting import LogPosterior
from blindopt.gp.progress import NO_TICK, Tick

SWEEPS, SWEEPS_MIN = 60, 14
"""The first quarter settles and is left out; each of the others gives a draw."""
_WORK = 6e8  # of all sweeps, about, in operations: half a second
_DIRECTIONS_MAX = 12  # of a sweep
_WIDTH = 2.5  # of a first bracket, in standard deviations of a normal with the curvature at the optimum
_SD_MAX = 2.0  # of a logarithm, where the density is flat
_WIDENED_MAX = 8  # times that a bracket is widened on each side
_STEP = 1e-3  # of the gradient's differences
_DIGITS = 6  # of a direction: libraries differ in the last ones
_REACH, _HALVINGS = 9.0, 60  # of the search for a quantile: in standard deviations, and in steps


@dataclass(frozen=True, slots=True)
class Mixture:
    """Laws of equal weight, one for each of m draws: ``means`` and ``variances`` (m,).

    They are normal, and Student's for limits: with the ``degrees`` of freedom that outcomes leave to hyper-parameters.
    """

    means: Vector
    variances: Vector
    degrees: int

    @property
    def sd(self) -> float:
        """Standard deviation.

        >>> Mixture(np.array([-1.0, 1.0]), np.array([3.0, 3.0]), 30).sd
        2.0
        """
        return float(np.sqrt(self.variances.mean() + self.means.var()))

    def interval(self) -> tuple[float, float]:
        """The quantiles of 2.5 % and 97.5 %.

        >>> low, high = Mixture(np.zeros(2), np.ones(2), 30).interval()
        >>> round(low, 3), round(high, 3)
        (-2.042, 2.042)
        """
        from scipy.special import stdtr  # late, for a fast start of the services

        sds = np.sqrt(np.maximum(self.variances, np.finfo(np.float64).tiny))
        reach = _REACH * sds
        low, high = np.full(2, (self.means - reach).min()), np.full(2, (self.means + reach).max())
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            is_below = stdtr(self.degrees, (middle[:, None] - self.means) / sds).mean(axis=1) < [0.025, 0.975]
            low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
        return float(low[0]), float(high[1])


def hyper_draws(posterior: LogPosterior, start: Vector, seed: list[int], tick: Tick = NO_TICK) -> list[Vector]:
    """Draws of the logarithms (p,) of hyper-parameters from their ``posterior``, in its box.

    Slice sampling (Neal, 2003, figures 3 and 5) along the eigenvectors of the Hessian at the optimum that a climb from
    ``start`` reaches: each once a sweep, or 12 of them drawn anew. Many outcomes get fewer sweeps. The same arguments
    give the same draws. ``tick`` is called in each sweep. Raises NumericalFailure if ``start`` has no finite density.
    """
    rng, (low, high) = np.random.default_rng(seed), posterior.box

    def downhill(logs: Vector) -> tuple[float, Vector]:
        value, gradient = posterior.at(logs)
        return -value, -gradient

    logs = minimize(downhill, start, low, high)
    directions = _directions(posterior, logs)
    value, draws = posterior.value(logs), []
    sweeps = _sweeps(posterior.likelihood.outcomes, len(logs), len(directions))
    for sweep in range(sweeps):
        tick()
        order = rng.permutation(len(directions))[:_DIRECTIONS_MAX]
        for direction in directions[order]:
            logs, value = _sliced(posterior, logs, value, direction, rng)
        if sweep >= sweeps // 4:
            draws.append(logs)
    return draws


def _sweeps(outcomes: int, parameters: int, directions: int) -> int:
    """As many as take about half a second, within limits."""
    likelihood = outcomes**2 * (20 + 2 * parameters)
    return int(min(max(_WORK / (5 * min(directions, _DIRECTIONS_MAX) * likelihood), SWEEPS_MIN), SWEEPS))


def _directions(posterior: LogPosterior, optimum: Vector) -> Matrix:
    """Eigenvectors (q, p) of the Hessian in the q coordinates that the box leaves free, each as long as a bracket."""
    low, high = posterior.box
    free = np.flatnonzero(low < high)
    hessian: Matrix = np.empty((len(free), len(free)))
    for row, j in enumerate(free):
        above, below = optimum.copy(), optimum.copy()
        above[j], below[j] = min(optimum[j] + _STEP, high[j]), max(optimum[j] - _STEP, low[j])
        hessian[row] = (posterior.at(below)[1] - posterior.at(above)[1])[free] / (above[j] - below[j])
    curvatures, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
    vectors *= np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(len(free))])
    directions: Matrix = np.zeros((len(free), len(optimum)))
    sds = 1.0 / np.sqrt(np.maximum(curvatures, _SD_MAX**-2))
    directions[:, free] = np.round(_WIDTH * (vectors * sds).T, _DIGITS)
    return directions


def _sliced(
    posterior: LogPosterior, logs: Vector, value: float, direction: Vector, rng: np.random.Generator
) -> tuple[Vector, float]:
    """The next point, on the slice through ``logs`` along a ``direction``, and the value there."""
    low, high = posterior.box

    def at(share: float) -> float:
        point = logs + share * direction
        if (point < low).any() or (point > high).any():
            return -np.inf
        try:
            return posterior.value(point)
        except NumericalFailure:
            return -np.inf

    level = value + np.log(rng.uniform())
    lower = -rng.uniform()
    upper = lower + 1.0
    for _ in range(_WIDENED_MAX):
        if at(lower) <= level:
            break
        lower -= 1.0
    for _ in range(_WIDENED_MAX):
        if at(upper) <= level:
            break
        upper += 1.0
    while upper - lower > 1e-12:
        share = lower + rng.uniform() * (upper - lower)
        if (new := at(share)) > level:
            return logs + share * direction, new
        lower, upper = (share, upper) if share < 0 else (lower, share)
    return logs, value
