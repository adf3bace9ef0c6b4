"""Rules that rank candidates by their posterior moments, and a reproducible choice of the largest value."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import exp, log, pi, sqrt
from typing import ClassVar, NamedTuple, Self

import numpy as np

from blindopt.arrays import Vector
from blindopt.errors import NumericalFailure

_TOGETHER = 1 << 14  # candidates whose bounds are computed together, in the cache
_TANGENTS = 5
_NEAR = 0.01  # of a bound to the largest value: nearer, other candidates are no longer ruled out
_TANGENT_MIN = -30.0  # below, the slope of a tangent would lose digits
_FARTHEST = -1e100  # its square is still a number
_ROUNDING = 1e-14
_EPSILON = float(np.finfo(np.float64).eps)
_QUANTUM = 1e-10
_LOG_ROOT_2PI = 0.5 * log(2 * pi)


def beta(n: int, t: int, delta_prime: float) -> float:
    """Exploration weight beta_t = 2 ln(n t^2 pi^2 / (6 delta')) for n candidates at step t >= 1.

    Source: Kharkovskii et al. (2020), Algorithm 2 line 3, with delta' = delta_ucb / 2 (Theorem 3);
    Srinivas et al. (2010), Theorem 1 has the same form.

    >>> round(beta(10_000, 1, 0.025), 6)
    26.79384
    """
    return 2.0 * log(n * t**2 * pi**2 / (6.0 * delta_prime))


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen row with its moments and acquisition, in the run's own direction (maximization).

    >>> Choice(row=3, mean=0.5, sd=0.1, acquisition=0.02, ties=1).row
    3
    """

    row: int
    mean: float | None
    sd: float | None
    acquisition: float | None
    ties: int
    """Number of rows that share the maximum exactly; the run's seed drew one of them."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimate of f at one row, in the run's own direction and in units of the outcome."""

    row: int
    mean: float
    sd: float | None
    """None where the algorithm estimates no spread."""


def upper_confidence_bound(mean: Vector, variance: Vector, weight: float) -> Vector:
    """Mean + sqrt(weight * variance), elementwise over the n candidates."""
    return mean + np.sqrt(weight * variance)


class Tolerance(NamedTuple):
    """Bounds on the rounding errors of means and of variances: the same for all candidates, or one each (m,)."""

    mean: float | Vector
    variance: float | Vector


@dataclass(frozen=True, slots=True)
class Acquisition(ABC):
    """A value of candidates, from their posterior means and variances: it rises with the mean.

    ``mean`` (m,) and ``variance`` (m,) are posterior moments of m candidates, in units of the outcome, ``tolerance``
    bounds their rounding errors, and ``prior_variance`` is the variance before the first outcome.
    The variance of a candidate that was not observed has a part, the nugget, that no observation of others explains.
    """

    is_tight: ClassVar[bool]
    """Whether ``upper`` of a candidate that is up to date exceeds its value by rounding only."""
    slack: float = field(default=0.0, kw_only=True)
    """By how much ``lower`` is less than it need be: candidates so near the largest value are not ruled out."""

    def with_slack(self, slack: float) -> Self:
        """Return the same rule with another ``slack``."""
        return replace(self, slack=slack)

    @abstractmethod
    def quantum(self, prior_variance: float) -> float:
        """Below it values count as equal: 1e-10 prior standard deviations, or 1e-10 where values have no unit."""

    @abstractmethod
    def __call__(self, mean: Vector, variance: Vector) -> Vector:
        """Values (m,) of m candidates."""

    @abstractmethod
    def interval(self, mean: Vector, variance: Vector, tolerance: Tolerance) -> tuple[Vector, Vector]:
        """Lower and upper bounds (m,) of the values of candidates that are up to date."""

    @abstractmethod
    def lower(self, mean: Vector, variance: Vector, tolerance: Tolerance) -> Vector:
        """Lower bounds (m,) of the values of candidates that are up to date, less the slack."""

    @abstractmethod
    def upper(self, mean: Vector, variance: Vector, tolerance: Tolerance, out: Vector) -> None:
        """Write upper bounds of the values of candidates that are up to date into ``out`` (m,)."""


@dataclass(frozen=True, slots=True)
class UpperConfidenceBound(Acquisition):
    """Mean + sqrt(weight (variance - nugget))."""

    weight: float
    nugget: float = 0.0
    is_tight = True

    def quantum(self, prior_variance: float) -> float:
        return _QUANTUM * sqrt(prior_variance)

    def __call__(self, mean: Vector, variance: Vector) -> Vector:
        return upper_confidence_bound(mean, learnable(variance, self.nugget), self.weight)

    def interval(self, mean: Vector, variance: Vector, tolerance: Tolerance) -> tuple[Vector, Vector]:
        low = self(mean - tolerance.mean, np.maximum(variance - tolerance.variance, 0.0))
        high = self(mean + tolerance.mean, variance + tolerance.variance)
        rounding = 16 * _EPSILON * (np.abs(mean) + np.abs(high))  # a root is at most the sum of the two
        return low - rounding, high + rounding

    def lower(self, mean: Vector, variance: Vector, tolerance: Tolerance) -> Vector:
        values = self(mean - tolerance.mean, np.maximum(variance - tolerance.variance, 0.0))
        return values - self.slack if self.slack else values

    def upper(self, mean: Vector, variance: Vector, tolerance: Tolerance, out: Vector) -> None:
        np.add(variance, tolerance.variance - self.nugget, out=out)
        if self.nugget:
            np.maximum(out, 0.0, out=out)
        out *= self.weight
        np.sqrt(out, out=out)
        out += mean
        out += tolerance.mean


def learnable(variance: Vector, nugget: float) -> Vector:
    """The part of a variance that observations of other candidates can explain: at least 0."""
    return np.maximum(variance - nugget, 0.0) if nugget else variance


@dataclass(frozen=True, slots=True)
class ExpectedImprovement(Acquisition):
    """log (s h((M - best) / s)), where M = mean + sqrt(weight (variance - nugget)) and s^2 = variance.

    h(t) = phi(t) + t Phi(t), so that with weight 0 it is the logarithm of the expected improvement on ``best``. What
    can be learned counts as optimism, as in a confidence bound; the nugget counts as luck alone. In the logarithm of
    the unit of the outcome. ``least_variance`` is below what rounding leaves of a variance: s^2 is at least as large.

    Upper bound: so that only few candidates need a logarithm, tangents of two concave functions are taken at some
    candidates (s_0, t_0): with t = (M - best) / s,
    log s + log h(t) <= log s_0 + s / s_0 - 1 + log h(t_0) + (t - t_0) Phi(t_0) / h(t_0). (h is the integral of Phi,
    which is log-concave, and so is log-concave: Prekopa, 1973.) Each is taken where those before it leave the largest
    bound.

    >>> improvement = ExpectedImprovement(best=0.0, weight=0.0, nugget=0.0, least_variance=1e-16)
    >>> np.exp(improvement(np.array([0.0, 1.0]), np.array([1.0, 1.0]))).round(4)
    array([0.3989, 1.0833])
    """

    best: float
    weight: float
    nugget: float
    least_variance: float
    is_tight = False

    def quantum(self, prior_variance: float) -> float:
        return _QUANTUM

    def __call__(self, mean: Vector, variance: Vector) -> Vector:
        spread, t = self._standardized(mean, variance)
        values: Vector = np.log(spread) + log_improvement(t)
        return values

    def interval(self, mean: Vector, variance: Vector, tolerance: Tolerance) -> tuple[Vector, Vector]:
        low = self(mean - tolerance.mean, np.maximum(variance - tolerance.variance, 0.0))
        high = self(mean + tolerance.mean, variance + tolerance.variance)
        return low - _ROUNDING * (10.0 + np.abs(low)), high + _ROUNDING * (10.0 + np.abs(high))

    def lower(self, mean: Vector, variance: Vector, tolerance: Tolerance) -> Vector:
        values = self(mean - tolerance.mean, np.maximum(variance - tolerance.variance, 0.0))
        return values - _ROUNDING * (10.0 + np.abs(values)) - self.slack

    def upper(self, mean: Vector, variance: Vector, tolerance: Tolerance, out: Vector) -> None:
        for start in range(0, len(out), _TOGETHER):
            part = slice(start, start + _TOGETHER)
            spread, t = self._standardized(mean[part] + tolerance.mean, variance[part] + tolerance.variance)
            _cut(spread, t, out[part])

    def _standardized(self, mean: Vector, variance: Vector) -> tuple[Vector, Vector]:
        """Spreads s (m,) and standardized improvements t (m,)."""
        spread = np.sqrt(np.maximum(variance, self.least_variance))
        t = np.sqrt(self.weight * learnable(variance, self.nugget))
        t += mean
        t -= self.best
        t /= spread
        return spread, np.maximum(t, _FARTHEST, out=t)


@dataclass(frozen=True, slots=True)
class Reach(Acquisition):
    """(mean + sqrt(weight (variance - nugget)) - threshold) / sqrt(variance): how surely an outcome reaches it.

    With weight 0 it is the normal quantile of the probability that f is at least the ``threshold``. What can be learned
    counts as optimism. A variance counts as ``least_variance`` at least. It rises with the mean; with the variance it
    falls where its numerator is positive, so that a bound takes either end of the variance.

    >>> Reach(threshold=1.0, weight=0.0, nugget=0.0, least_variance=1e-16)(np.array([0.0, 3.0]), np.array([1.0, 4.0]))
    array([-1.,  1.])
    """

    threshold: float
    weight: float
    nugget: float
    least_variance: float
    is_tight = True

    def quantum(self, prior_variance: float) -> float:
        return _QUANTUM

    def __call__(self, mean: Vector, variance: Vector) -> Vector:
        return self._between(mean, variance, variance, variance)

    def interval(self, mean: Vector, variance: Vector, tolerance: Tolerance) -> tuple[Vector, Vector]:
        low, high = np.maximum(variance - tolerance.variance, 0.0), variance + tolerance.variance
        return self._between(mean - tolerance.mean, low, low, high, -1.0), self._most(mean, variance, tolerance)

    def lower(self, mean: Vector, variance: Vector, tolerance: Tolerance) -> Vector:
        return self.interval(mean, variance, tolerance)[0] - self.slack

    def upper(self, mean: Vector, variance: Vector, tolerance: Tolerance, out: Vector) -> None:
        for start in range(0, len(out), _TOGETHER):
            part = slice(start, start + _TOGETHER)
            out[part] = self._most(mean[part], variance[part], tolerance)

    def _most(self, mean: Vector, variance: Vector, tolerance: Tolerance) -> Vector:
        low, high = np.maximum(variance - tolerance.variance, 0.0), variance + tolerance.variance
        return self._between(mean + tolerance.mean, high, low, high, 1.0)

    def _between(self, mean: Vector, learned: Vector, low: Vector, high: Vector, side: float = 0.0) -> Vector:
        """Values (m,) for variances from ``low`` to ``high``: the least for ``side`` -1, the largest for 1."""
        root = np.sqrt(self.weight * learnable(learned, self.nugget))
        above = mean + root - self.threshold
        above += side * 8 * _EPSILON * (np.abs(mean) + root + abs(self.threshold))
        divided_by = np.where((above > 0) == (side > 0), low, high)
        values: Vector = above / np.sqrt(np.maximum(divided_by, self.least_variance))
        return values + side * 8 * _EPSILON * np.abs(values)


def _cut(spread: Vector, t: Vector, out: Vector) -> None:
    """Write upper bounds of log s + log h(t) by tangents (see ``ExpectedImprovement``)."""
    from scipy.special import log_ndtr  # late, for a fast start of the services

    at, reached = int(t.argmax()), -np.inf
    if t[at] > 0:
        at = int((t * spread).argmax())
    out.fill(np.inf)
    for _ in range(_TANGENTS):
        s_0, t_0 = float(spread[at]), float(t[at])
        if t_0 < _TANGENT_MIN:
            np.add(np.log(spread), log_improvement(t), out=out)
            break
        log_h = float(log_improvement(t[at : at + 1])[0])
        reached = max(reached, log(s_0) + log_h)
        slope = exp(float(log_ndtr(t_0)) - log_h)
        tangent = t * slope
        tangent += spread / s_0
        tangent += log(s_0) - 1.0 + log_h - slope * t_0
        np.minimum(out, tangent, out=out)
        at = int(out.argmax())
        if out[at] < reached + _NEAR:
            break
    out += _ROUNDING * (10.0 + t_0**2)


def log_improvement(t: Vector) -> Vector:
    """Log of h(t), where h(t) = phi(t) + t Phi(t), to 12 digits for t as low as -1e100.

    h(t) is the expected improvement of a standard normal variable on -t. Below -1 the density is divided out, so that
    nothing underflows: h / phi = 1 + t sqrt(pi / 2) erfcx(-t / sqrt(2)). Below -50 that difference is its asymptotic
    series t^-2 (1 - 3 t^-2 + 15 t^-4 - 105 t^-6 + 945 t^-8), to 2e-13.

    >>> log_improvement(np.array([0.0, -100.0])).round(6).tolist()
    [-0.918939, -5010.129579]
    """
    from scipy.special import erfcx, ndtr

    t = np.asarray(t, dtype=np.float64)
    values = np.empty_like(t)
    near, far = t >= -1.0, t < -50.0
    x = t[near]
    values[near] = np.log(np.exp(-0.5 * x * x - _LOG_ROOT_2PI) + x * ndtr(x))
    x = t[middle := ~(near | far)]
    ratio = np.log1p(x * sqrt(pi / 2) * erfcx(-x * sqrt(0.5)))
    values[middle] = ratio - 0.5 * x * x - _LOG_ROOT_2PI
    x = t[far]
    u = 1.0 / (x * x)
    series = np.log1p(u * (-3.0 + u * (15.0 + u * (-105.0 + u * 945.0))))
    values[far] = series - 2.0 * np.log(-x) - 0.5 * x * x - _LOG_ROOT_2PI
    return values


def choose_maximum(
    acquisition: Vector, mean: Vector, variance: Vector, rng: np.random.Generator | Callable[[], np.random.Generator]
) -> Choice:
    """The row of largest acquisition; exact ties are broken by a draw from ``rng``.

    A callable ``rng`` is called only if there are ties. They are common: before the first outcome every row is equal,
    and grids have symmetric rows. Raises NumericalFailure if the acquisition of a row is not a number.
    """
    best = np.flatnonzero(acquisition == acquisition.max())
    if not len(best):  # NaN equals nothing
        raise NumericalFailure("the acquisition of a candidate is not a number")
    row = int(best[0])
    if len(best) > 1:
        source = rng if isinstance(rng, np.random.Generator) else rng()
        row = int(best[source.integers(len(best))])
    return Choice(
        row=row, mean=float(mean[row]), sd=sqrt(variance[row]), acquisition=float(acquisition[row]), ties=len(best)
    )
