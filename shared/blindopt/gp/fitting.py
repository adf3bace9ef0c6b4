"""Hyper-parameters of the largest marginal likelihood: several starts, bounds and weak priors against a collapse."""

from dataclasses import dataclass, replace
from math import exp, floor, log, log10, sqrt

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.errors import NumericalFailure
from blindopt.gp.climbing import minimize
from blindopt.gp.input_noise import declared_noise
from blindopt.gp.kernels import Kind
from blindopt.gp.marginal_likelihood import Evidence, Hyper, MarginalLikelihood
from blindopt.gp.observations import LeaveOneOut
from blindopt.gp.progress import NO_TICK, Tick
from blindopt.wire.release import NoiseLaw
from blindopt.wire.run import NEWEST, Engine, Fit, Parameter

ANSWERS_MIN = 3
ANSWERS_MAX = 300
"""Of more answers only the first are used: a fit costs the cube of their number, and so many determine it."""
_DEFAULT_BOUNDS = {"lengthscale": (0.01, 20.0), "signal_variance": (1e-3, 1e3), "noise_variance": (1e-8, 1.0)}
_SPACING_SHARE, _SPACING_MAX = 0.25, 0.4  # the smallest length-scale, in distances of an answered point to the nearest
_MEDIAN = 0.4  # of the default prior of the length-scale, in typical distances
_SPREAD = 1.0  # of the logarithms, in default priors
_OWN_SPREAD = 0.5  # of the length-scale of a coordinate about that of all: few answers cannot separate them
_SIGNAL_SPREAD = 2.0  # of the signal variance, about the variance of the answers
Ratio = tuple[float, float, float]
"""The median of noise variance to signal variance in the default prior, and its spreads below and above."""
FIT_RATIO: Ratio = (0.01, 1.0, 3.0)
AVERAGES_RATIO: Ratio = (0.1, 2.0, 2.0)
"""Of draws for intervals. FIT_RATIO takes some of the noise for signal, and intervals then hold less often."""
_STARTS = ((log(0.02), log(2.0)), (log(0.1), log(10.0)), (log(1e-6), log(0.3)))
_DIGITS = 4  # of a fitted value: more would not be significant, or not reproducible on another machine
# With a longer memory L-BFGS-B solves its tiny triangular systems in several threads: on a busy machine waiting for
# them took ten times as long as the likelihoods. A memory of one needs half as many likelihoods more.
_OPTIONS = {"ftol": 1e-13, "gtol": 1e-7, "maxcor": 1, "maxfun": 500}
_BLOCK = 1 << 14  # candidates that are read together
_EQUAL = 1e-6  # optima whose likelihoods are closer count as the same, which the first start reached


@dataclass(frozen=True, slots=True)
class FitResult:
    """The best optimum that several starts reached."""

    hyper: Hyper
    log_likelihood: float
    """In nats, without the prior."""
    at_bounds: tuple[Parameter, ...]
    check: LeaveOneOut
    """How well each answer is predicted from the others."""


def suggest_hyper(outcomes: Vector, distance: float) -> Hyper:
    """Guess hyper-parameters from the spread of the outcomes and the ``typical_distance`` of two candidates."""
    variance = float(np.var(outcomes)) if len(outcomes) > 1 else 0.0
    if not 1e-40 < variance < 1e40:
        variance = 1.0
    mean = float(np.mean(outcomes)) if len(outcomes) else 0.0
    return Hyper(_MEDIAN * distance, variance, FIT_RATIO[0] * variance, mean)


def typical_distance(candidates: Matrix, law: NoiseLaw) -> float:
    """Root mean square distance of two candidates (n, r), without the share of the release's noise."""
    mean_square = 2.0 * float(_variances(candidates).sum())
    if (noise := declared_noise(law)) is not None:
        mean_square = max(mean_square - 2 * candidates.shape[1] * noise[1] ** 2, 0.05 * mean_square)
    if not mean_square < 1e80:  # refuses NaN too
        raise NumericalFailure("the candidates hold a number that is not finite, or too large for a length-scale")
    return sqrt(max(mean_square, 1e-80))


def typical_distances(candidates: Matrix) -> Vector:
    """For each coordinate (r,): the ``typical_distance`` of candidates that vary in all as they do in this one.

    A coordinate that does not vary has that of all.
    """
    whole = typical_distance(candidates, NoiseLaw(family="none"))
    each = np.sqrt(2.0 * candidates.shape[1] * np.maximum(_variances(candidates), 0.0))
    distances: Vector = np.where(each > 1e-9 * whole, each, whole)
    return distances


def _variances(candidates: Matrix) -> Vector:
    """Variance of each coordinate (r,), read in blocks."""
    n, r = candidates.shape
    start, total, squares = np.array(candidates[0]), np.zeros(r), np.zeros(r)
    with np.errstate(over="ignore", invalid="ignore"):
        for block in (np.asarray(candidates[at : at + _BLOCK]) - start for at in range(0, n, _BLOCK)):
            total += block.sum(axis=0)
            squares += np.einsum("ij,ij->j", block, block)
        variances: Vector = squares / n - (total / n) ** 2
    return variances


@dataclass(frozen=True, slots=True)
class FitProblem:
    """What hyper-parameters are fitted to, and by which ``settings``.

    ``start`` is that of a kernel if ``has_kernel``. ``distance`` is typical of two candidates; if it has r entries,
    each coordinate has its own and a length-scale of its own. ``units`` (parameters,) say what 1 in the settings is,
    for each parameter. ``ratio`` is that of the default prior.
    """

    evidence: Evidence
    kind: Kind
    law: NoiseLaw
    start: Hyper
    settings: Fit
    distance: float | Vector
    units: Vector | None = None
    has_kernel: bool = False
    engine: Engine = NEWEST
    ratio: Ratio = FIT_RATIO

    @property
    def distances(self) -> Vector:
        return np.atleast_1d(self.distance)

    @property
    def variance(self) -> float:
        return float(np.var(self.evidence.outcomes))

    @property
    def unit_values(self) -> list[float]:
        """What 1 in the settings is, for each parameter."""
        return [1.0] * (len(self.distances) + 2) if self.units is None else self.units.tolist()

    def log_posterior(self) -> "LogPosterior":
        """The density to climb. Raises NumericalFailure if the outcomes are too few or all equal."""
        if len(self.evidence.outcomes) < ANSWERS_MIN:
            raise NumericalFailure(f"{ANSWERS_MIN} answers are needed for a fit")
        if (self.engine > 2 and np.ptp(self.evidence.outcomes) == 0) or not 1e-40 < self.variance < 1e40:
            raise NumericalFailure("the answers are all equal, or too large or small to be distinguished")
        mean = None if self.settings.mean == "fitted" else self.start.mean
        likelihood = MarginalLikelihood(self.evidence, self.kind, self.law, mean, len(self.distances))
        return LogPosterior(likelihood, _Priors(self), _box(self))


def fit(problem: FitProblem, seed: list[int], tick: Tick = NO_TICK) -> FitResult:
    """Hyper-parameters of the largest posterior density of their logarithms, which is the likelihood without priors.

    A search (``climbing``; by version 1 of the engine L-BFGS-B) from the start and from draws of ``seed``; the same
    arguments give the same values, rounded to four digits within the bounds. By versions 1 and 2 of the engine noise
    keeps its ratio to the signal at the start below 2 r outcomes, unless settings say how. ``tick`` is called at each
    likelihood. Raises NumericalFailure as ``log_posterior``, or if no start reaches a finite likelihood.
    """
    problem = replace(problem, evidence=problem.evidence.first(ANSWERS_MAX))
    start, distances, variance = problem.start, problem.distances, problem.variance
    density = problem.log_posterior()
    likelihood, ends, tied = density.likelihood, density.ends, None
    evidence, settings = problem.evidence, problem.settings
    states_noise = settings.priors is not None or settings.bounds.noise_variance is not None
    is_short = len(evidence.outcomes) < 2 * evidence.points.shape[1] and evidence.needs_noise
    if problem.engine < 3 and is_short and not states_noise:
        tied, ends[-1] = log(start.noise_variance / start.signal_variance), (1e-50, 1e50)
    low, high = density.box
    reached = [_climb(density, begin, tied, tick, problem.engine) for begin in _starts(problem, low, high, seed)]
    optima = [optimum for optimum in reached if optimum is not None]
    if not optima:
        raise NumericalFailure("the marginal likelihood could not be computed from any start")
    best = max(value for value, _ in optima)
    logs = next(logs for value, logs in optima if value >= best - _EQUAL * (1 + abs(best)))
    values = [
        float(lower if lower == upper else min(max(_rounded(exp(at)), lower), upper))
        for at, (lower, upper) in zip(logs, ends, strict=True)
    ]
    value, _, mean = likelihood.at(np.log(values))
    check = likelihood.check(np.log(values))
    if problem.settings.mean == "fitted":
        unit = 10.0 ** (floor(log10(variance) / 2) - 6)
        mean = round(mean / unit) * unit
    at_bounds = {
        name: None
        for name, at, lower, upper in zip(_names(len(distances)), logs, low, high, strict=True)
        if lower < upper and (at <= lower + 1e-6 or at >= upper - 1e-6)
    }
    sizes = values[:-2]
    size = sizes[0] if len(sizes) == 1 else _rounded(exp(float(np.mean(np.log(sizes)))))
    hyper = Hyper(size, values[-2], values[-1], mean, tuple(sizes) if len(sizes) > 1 else ())
    return FitResult(hyper, value, tuple(at_bounds), check)


@dataclass(frozen=True, slots=True)
class LogPosterior:
    """Log density of the logarithms of hyper-parameters given outcomes, without its constant, in a box of ``ends``."""

    likelihood: MarginalLikelihood
    priors: "_Priors"
    ends: list[tuple[float, float]]
    """Lower and upper bounds of each parameter."""

    @property
    def box(self) -> tuple[Vector, Vector]:
        """Logarithms of the lower and upper bounds."""
        low, high = np.log(np.array(self.ends)).T
        return low, high

    def at(self, logs: Vector) -> tuple[float, Vector]:
        """Value and gradient. Raises NumericalFailure as the likelihood."""
        value, gradient, _ = self.likelihood.at(logs)
        density, slope = self.priors.at(logs)
        return value + density, gradient + slope

    def value(self, logs: Vector) -> float:
        """The value alone, in half the time."""
        return self.likelihood.value(logs) + self.priors.at(logs)[0]


class _Priors:
    """Densities of sums of the logarithms: of each parameter, and of the ratio of noise to signal.

    ``_sums`` (p, parameters) picks what is added up. Each sum is normal, with a spread below its median and another one
    above: a noise that vanishes is less likely than one as large as the signal. Length-scales of coordinates vary about
    their geometric mean, which varies more (by version 1 of the engine each varies by itself).
    """

    def __init__(self, problem: FitProblem) -> None:
        distances, kernel = problem.distances, problem.start if problem.has_kernel else None
        k = len(distances)
        unit = np.eye(k + 2)
        parts: list[tuple[Vector, float, float, float]] = []  # what is added up, the median, the spreads

        def add(direction: Vector, median: float, below: float, above: float | None = None) -> None:
            parts.append((direction, log(median), below, above or below))

        if (given := problem.settings.priors) is not None:
            wishes = [*[given.lengthscale] * k, given.signal_variance, given.noise_variance]
            for direction, prior, size in zip(unit, wishes, problem.unit_values, strict=True):
                if prior is not None:
                    add(direction, prior.median * size, prior.spread)
        else:
            if k > 1 and problem.engine > 1:
                common, middle = unit[:k].mean(axis=0), exp(float(np.mean(np.log(distances))))
                add(common, _MEDIAN * middle, _SPREAD)
                for j in range(k):
                    add(unit[j] - common, distances[j] / middle, _OWN_SPREAD)
            else:
                for j in range(k):
                    add(unit[j], _MEDIAN * distances[j], _SPREAD)
            if kernel is not None:
                add(unit[k], kernel.signal_variance, _SPREAD)
                add(unit[k + 1], kernel.noise_variance, _SPREAD)
            else:
                add(unit[k], problem.variance, _SIGNAL_SPREAD)
                add(unit[k + 1] - unit[k], *problem.ratio)
        self._sums = np.array([direction for direction, *_ in parts]).reshape(len(parts), k + 2)
        self._medians, self._below, self._above = np.array([rest for _, *rest in parts]).reshape(len(parts), 3).T

    def at(self, logs: Vector) -> tuple[float, Vector]:
        """Log density, without its constant, and gradient."""
        off = self._sums @ logs - self._medians
        spreads = np.where(off < 0, self._below, self._above)
        off /= spreads
        return -0.5 * float(off @ off), -(off / spreads) @ self._sums


def _climb(
    posterior: LogPosterior, begin: Vector, tied: float | None, tick: Tick, engine: Engine
) -> tuple[float, Vector] | None:
    """The largest value that a climb from ``begin`` reaches, and its logarithms; None if it computes no likelihood.

    ``tied``: the logarithm of a fixed ratio of noise to signal. A climb that breaks off with NumericalFailure counts
    with the best value until then.
    """
    best: tuple[float, Vector] | None = None
    low, high = posterior.box

    def downhill(logs: Vector) -> tuple[float, Vector]:
        nonlocal best
        tick()
        if tied is not None:
            logs = np.append(logs[:-1], logs[-2] + tied)
        value, gradient = posterior.at(logs)
        if best is None or value > best[0]:
            best = value, logs.copy()
        if tied is not None:
            gradient[-2:] = gradient[-2] + gradient[-1], 0.0
        return -value, -gradient

    try:
        if engine == 1:
            from scipy.optimize import minimize as minimize_by_scipy  # late: it takes a tenth of a second

            bounds = list(zip(low, high, strict=True))
            minimize_by_scipy(downhill, begin, jac=True, method="L-BFGS-B", bounds=bounds, options=_OPTIONS)
        else:
            minimize(downhill, begin, low, high)
    except NumericalFailure:
        pass
    return best


def _box(problem: FitProblem) -> list[tuple[float, float]]:
    """Lower and upper bounds of each parameter. A noise variance that no outcome needs stays as it is.

    The length-scale is at least a share of the median distance of an answered point to the nearest other one, in
    typical distances: answers say nothing about a shorter one. Of r coordinates, each has 1 / sqrt(r) of a distance.
    """
    evidence, settings, distances = problem.evidence, problem.settings, problem.distances
    unit = [*distances, problem.variance, problem.variance]
    smallest, largest = _DEFAULT_BOUNDS["lengthscale"]
    k = len(distances)
    share = _SPACING_SHARE / sqrt(k) * _spacing(evidence.points / distances)
    if settings.priors is None:
        smallest = max(smallest, min(share, _SPACING_MAX * _MEDIAN))
    shared = {**_DEFAULT_BOUNDS, "lengthscale": (smallest, largest)}
    ends = []
    for name, size, given in zip(_names(k), unit, problem.unit_values, strict=True):
        bounds = getattr(settings.bounds, name)
        low, high = (bounds.lower * given, bounds.upper * given) if bounds else (size * x for x in shared[name])
        if name == "noise_variance" and not evidence.needs_noise:
            low = high = problem.start.noise_variance
        ends.append((max(low, 1e-50), min(high, 1e50)))
    return ends


def _spacing(points: Matrix) -> float:
    """Median distance of different points (t, r) to the nearest other one; 0 for fewer than two."""
    points = np.unique(points, axis=0)
    if len(points) < 2:
        return 0.0
    from scipy.spatial.distance import cdist

    between = cdist(points, points)
    np.fill_diagonal(between, np.inf)
    return float(np.median(between.min(axis=0)))


def _names(k: int) -> list[Parameter]:
    names: list[Parameter] = ["lengthscale"] * k
    return [*names, "signal_variance", "noise_variance"]


def _starts(problem: FitProblem, low: Vector, high: Vector, seed: list[int]) -> list[Vector]:
    """The start and draws that are uniform in logarithms over plausible ranges, as logarithms within the bounds.

    The length-scales of coordinates start at one share of their distances, which is that of the start for the first.
    """
    start, distances, variance = problem.start, problem.distances, problem.variance
    k, units = len(distances), np.log([*distances, variance, variance])
    common = exp(float(np.mean(np.log(distances))))
    first = np.log([*(start.lengthscale / common * distances), start.signal_variance, start.noise_variance])
    draws = np.random.default_rng(seed).uniform(size=(problem.settings.starts - 1, 3))
    ranges = np.array(_STARTS)
    drawn = ranges[:, 0] + draws * (ranges[:, 1] - ranges[:, 0])
    others = units + np.repeat(drawn, [k, 1, 1], axis=1)
    return [np.clip(at, low, high) for at in (first, *others)]


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS - 1}e}")
