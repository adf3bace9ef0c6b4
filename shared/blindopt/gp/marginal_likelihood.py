"""Hyper-parameters of a Gaussian process by marginal likelihood: analytic gradients, several starts, bounds, priors."""

from dataclasses import dataclass
from math import exp, floor, log, log10, pi, sqrt
from typing import get_args

import numpy as np
from scipy.spatial.distance import pdist, squareform

from blindopt.arrays import Mask, Matrix, Rows, Vector
from blindopt.errors import NumericalFailure
from blindopt.gp.input_noise import correlations, declared_noise
from blindopt.gp.kernels import KERNELS, Kind
from blindopt.gp.progress import NO_TICK, Tick
from blindopt.gp.single_thread_blas import gram_of_lower, inverse_factor, left_product, right_product
from blindopt.wire.fits import Fit, FitPriors, LogNormal, Parameter
from blindopt.wire.releases import NoiseLaw

ANSWERS_MIN = 3
ANSWERS_MAX = 300
"""Of more answers only the first are used: a fit costs the cube of their number, and so many determine it."""
PARAMETERS: tuple[Parameter, ...] = get_args(Parameter)
_DEFAULT_BOUNDS = {"lengthscale": (0.01, 20.0), "signal_variance": (1e-3, 1e3), "noise_variance": (1e-8, 1.0)}
_MEDIAN = 0.4  # of the default prior of the length-scale, in typical distances
_SPREAD = 1.0  # of the logarithms, in all default priors
_STARTS = ((log(0.02), log(2.0)), (log(0.1), log(10.0)), (log(1e-6), log(0.3)))
_DIGITS = 4  # of a fitted value: more would not be significant, or not reproducible on another machine
# With a longer memory L-BFGS-B solves its tiny triangular systems in several threads: on a busy machine waiting for
# them took ten times as long as the likelihoods. A memory of one needs half as many likelihoods more.
_OPTIONS = {"ftol": 1e-13, "gtol": 1e-7, "maxcor": 1, "maxfun": 500}
_BLOCK = 1 << 14  # candidates that are read together
_EQUAL = 1e-6  # optima whose likelihoods are closer count as the same, which the first start reached


@dataclass(frozen=True, slots=True)
class Hyper:
    """Length-scale in units of the candidates, variances in squared units of the outcome, mean in its units."""

    lengthscale: float
    signal_variance: float
    noise_variance: float
    mean: float = 0.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """t outcomes at candidates ``points`` (t, r), which are ``rows`` (t,) of the release.

    The noise variance of outcome i is ``declared_noise[i]``, plus the fitted one where ``has_fitted_noise[i]``.
    """

    points: Matrix
    rows: Rows
    outcomes: Vector
    declared_noise: Vector
    has_fitted_noise: Mask

    def first(self, count: int) -> "Evidence":
        """The first ``count`` outcomes."""
        return Evidence(
            self.points[:count],
            self.rows[:count],
            self.outcomes[:count],
            self.declared_noise[:count],
            self.has_fitted_noise[:count],
        )


@dataclass(frozen=True, slots=True)
class FitResult:
    """The best optimum that several starts reached."""

    hyper: Hyper
    log_likelihood: float
    """In nats, without the prior."""
    at_bounds: tuple[Parameter, ...]


class MarginalLikelihood:
    """log p(outcomes | log length-scale, log signal variance, log noise variance), and its gradient.

    With K = s R + diag(declared + fitted noise), m the mean and a = K^-1 (y - m):
    -1/2 (y - m)^T a - 1/2 log det K - t/2 log 2 pi, with derivatives 1/2 tr((a a^T - K^-1) dK)
    (Rasmussen & Williams 2006, eqs. 5.8 and 5.9). R holds the kernel's correlations, averaged over the release's
    noise if it declares any; a row then has 1 with itself, the nugget included. If ``mean`` is None, it is the constant
    of largest likelihood, 1^T K^-1 y / 1^T K^-1 1, where the likelihood is stationary: the gradient has no term for it.
    """

    def __init__(self, evidence: Evidence, kind: Kind, law: NoiseLaw, mean: float | None) -> None:
        self._evidence, self._kind, self._mean = evidence, kind, mean
        self._noise, self._r = declared_noise(law), evidence.points.shape[1]
        self._squared: Vector = pdist(evidence.points, "sqeuclidean")
        above = np.triu_indices(len(evidence.rows), 1)
        self._same: Mask = evidence.rows[above[0]] == evidence.rows[above[1]]
        self._free: Vector = evidence.has_fitted_noise.astype(np.float64)

    def at(self, logs: Vector) -> tuple[float, Vector, float]:
        """Value, gradient (3,) and mean. Raises NumericalFailure where K cannot be factored."""
        size, signal, noise = (float(value) for value in np.exp(logs))
        between, slopes = correlations(KERNELS[self._kind](size), self._noise, self._r, self._squared)
        between[self._same], slopes[self._same] = 1.0, 0.0
        correlation, slope = squareform(between), squareform(slopes)
        np.fill_diagonal(correlation, 1.0)
        covariance = signal * correlation
        np.einsum("ii->i", covariance)[:] += self._evidence.declared_noise + noise * self._free
        y, t = self._evidence.outcomes, len(self._evidence.outcomes)
        root = inverse_factor(covariance)
        ones, white = root.sum(axis=1), right_product(root, y)
        mean = self._mean if self._mean is not None else float(ones @ white / (ones @ ones))
        white -= mean * ones
        solved = left_product(white, root)
        logdet = -2.0 * float(np.log(np.einsum("ii->i", root)).sum())
        value = -0.5 * (float(white @ white) + logdet + t * log(2 * pi))
        inner = np.outer(solved, solved) - gram_of_lower(root)
        gradient = 0.5 * np.array([
            signal * float((inner * slope).sum()),
            signal * float((inner * correlation).sum()),
            noise * float(np.einsum("ii->i", inner) @ self._free),
        ])  # fmt: skip
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            raise NumericalFailure("the marginal likelihood of the answers is not a number")
        return value, gradient, mean


def suggest_hyper(outcomes: Vector, distance: float) -> Hyper:
    """Guess hyper-parameters from the spread of the outcomes and the ``typical_distance`` of two candidates."""
    variance = float(np.var(outcomes)) if len(outcomes) > 1 else 0.0
    if not 1e-40 < variance < 1e40:
        variance = 1.0
    mean = float(np.mean(outcomes)) if len(outcomes) else 0.0
    return Hyper(_MEDIAN * distance, variance, 0.01 * variance, mean)


def typical_distance(candidates: Matrix, law: NoiseLaw) -> float:
    """Root mean square distance of two candidates (n, r), without the share of the release's noise."""
    n, r = candidates.shape
    start, total, squares = np.array(candidates[0]), np.zeros(r), 0.0
    for block in (np.asarray(candidates[at : at + _BLOCK]) - start for at in range(0, n, _BLOCK)):
        total += block.sum(axis=0)
        squares += float(np.einsum("ij,ij->", block, block))
    mean_square = 2.0 * (squares / n - float(total @ total) / n**2)
    if (noise := declared_noise(law)) is not None:
        mean_square = max(mean_square - 2 * r * noise[1] ** 2, 0.05 * mean_square)
    if not mean_square < 1e80:  # refuses NaN too
        raise NumericalFailure("the candidates hold a number that is not finite, or too large for a length-scale")
    return sqrt(max(mean_square, 1e-80))


def fit(
    evidence: Evidence,
    kind: Kind,
    law: NoiseLaw,
    start: Hyper,
    settings: Fit,
    *,
    distance: float,
    seed: list[int],
    has_kernel: bool = False,
    tick: Tick = NO_TICK,
) -> FitResult:
    """Hyper-parameters of the largest posterior density of their logarithms, which is the likelihood without priors.

    L-BFGS-B from ``start`` (which is that of a kernel if ``has_kernel``) and from draws of ``seed``; the same arguments
    give the same values, rounded to four digits within the bounds. ``tick`` is called at each likelihood. Raises
    NumericalFailure if the outcomes are too few or all equal, or if no start reaches a finite likelihood.
    """
    evidence = evidence.first(ANSWERS_MAX)
    variance = float(np.var(evidence.outcomes)) if len(evidence.outcomes) else 0.0
    if len(evidence.outcomes) < ANSWERS_MIN:
        raise NumericalFailure(f"{ANSWERS_MIN} answers are needed for a fit")
    if not 1e-40 < variance < 1e40:
        raise NumericalFailure("the answers are all equal, or too large or small to be told apart")
    likelihood = MarginalLikelihood(evidence, kind, law, None if settings.mean == "fitted" else start.mean)
    ends = _box(evidence, settings, start, variance, distance)
    low, high = np.log([lower for lower, _ in ends]), np.log([upper for _, upper in ends])
    priors = _priors(settings.priors, distance, start if has_kernel else None)
    reached = [
        _climb(likelihood, priors, begin, low, high, tick)
        for begin in _starts(start, settings.starts, low, high, variance, distance, seed)
    ]
    optima = [optimum for optimum in reached if optimum is not None]
    if not optima:
        raise NumericalFailure("the marginal likelihood could not be computed from any start")
    best = max(value for value, _ in optima)
    logs = next(logs for value, logs in optima if value >= best - _EQUAL * (1 + abs(best)))
    size, signal, noise = (
        lower if lower == upper else min(max(_rounded(exp(at)), lower), upper)
        for at, (lower, upper) in zip(logs, ends, strict=True)
    )
    value, _, mean = likelihood.at(np.log([size, signal, noise]))
    if settings.mean == "fitted":
        unit = 10.0 ** (floor(log10(variance) / 2) - 6)
        mean = round(mean / unit) * unit
    at_bounds = tuple(
        name
        for name, at, lower, upper in zip(PARAMETERS, logs, low, high, strict=True)
        if lower < upper and (at <= lower + 1e-6 or at >= upper - 1e-6)
    )
    return FitResult(Hyper(size, signal, noise, mean), value, at_bounds)


def _climb(
    likelihood: MarginalLikelihood,
    priors: list[LogNormal | None],
    begin: Vector,
    low: Vector,
    high: Vector,
    tick: Tick,
) -> tuple[float, Vector] | None:
    """The largest value that a climb from ``begin`` reaches, and its logarithms; None if it computes no likelihood.

    A climb that breaks off with NumericalFailure counts with the best value until then.
    """
    from scipy.optimize import minimize  # late: it takes a tenth of a second, and a run without a fit does without

    best: tuple[float, Vector] | None = None

    def downhill(logs: Vector) -> tuple[float, Vector]:
        nonlocal best
        tick()
        value, gradient, _ = likelihood.at(logs)
        for i, prior in enumerate(priors):
            if prior is not None:
                off = (float(logs[i]) - log(prior.median)) / prior.spread
                value -= 0.5 * off**2
                gradient[i] -= off / prior.spread
        if best is None or value > best[0]:
            best = value, logs.copy()
        return -value, -gradient

    try:
        bounds = list(zip(low, high, strict=True))
        minimize(downhill, begin, jac=True, method="L-BFGS-B", bounds=bounds, options=_OPTIONS)
    except NumericalFailure:
        pass
    return best


def _box(
    evidence: Evidence, settings: Fit, start: Hyper, variance: float, distance: float
) -> list[tuple[float, float]]:
    """Lower and upper bounds of each parameter. A noise variance that no outcome needs stays as it is."""
    unit = {"lengthscale": distance, "signal_variance": variance, "noise_variance": variance}
    ends = []
    for name in PARAMETERS:
        bounds = getattr(settings.bounds, name)
        low, high = (bounds.lower, bounds.upper) if bounds else (unit[name] * x for x in _DEFAULT_BOUNDS[name])
        if name == "noise_variance" and not evidence.has_fitted_noise.any():
            low = high = start.noise_variance
        ends.append((max(low, 1e-50), min(high, 1e50)))
    return ends


def _priors(priors: FitPriors | None, distance: float, start: Hyper | None) -> list[LogNormal | None]:
    if priors is None:
        priors = FitPriors(
            lengthscale=LogNormal(median=_MEDIAN * distance, spread=_SPREAD),
            signal_variance=LogNormal(median=start.signal_variance, spread=_SPREAD) if start else None,
            noise_variance=LogNormal(median=start.noise_variance, spread=_SPREAD) if start else None,
        )
    return [getattr(priors, name) for name in PARAMETERS]


def _starts(
    start: Hyper, count: int, low: Vector, high: Vector, variance: float, distance: float, seed: list[int]
) -> list[Vector]:
    """``start`` and draws that are uniform in logarithms over plausible ranges, as logarithms within the bounds."""
    units = np.log([distance, variance, variance])
    first = np.log([getattr(start, name) for name in PARAMETERS])
    draws = np.random.default_rng(seed).uniform(size=(count - 1, 3))
    ranges = np.array(_STARTS)
    others = units + ranges[:, 0] + draws * (ranges[:, 1] - ranges[:, 0])
    return [np.clip(at, low, high) for at in (first, *others)]


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS - 1}e}")
