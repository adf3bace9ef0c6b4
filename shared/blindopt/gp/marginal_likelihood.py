"""Hyper-parameters of a Gaussian process by marginal likelihood: analytic gradients, several starts, bounds, priors."""

from dataclasses import dataclass
from math import exp, floor, log, log10, pi, sqrt
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist, squareform

from blindopt.arrays import Matrix, Vector
from blindopt.errors import NumericalFailure
from blindopt.gp.input_noise import correlations, known_noise
from blindopt.gp.kernels import KERNELS, Kind
from blindopt.gp.progress import NO_TICK, Tick
from blindopt.gp.single_thread_blas import gram_of_lower, inverse_factor, left_product, right_product
from blindopt.wire.fits import Fit, FitPriors, LogNormal, Parameter
from blindopt.wire.releases import NoiseLaw

ANSWERS_MIN = 3
ANSWERS_MAX = 300
"""Of more answers the first ones are taken: a fit costs the cube of their number, and they settle it."""
PARAMETERS: tuple[Parameter, ...] = get_args(Parameter)
_USUAL = {"lengthscale": (0.01, 20.0), "signal_variance": (1e-3, 1e3), "noise_variance": (1e-8, 1.0)}
_MEDIAN, _SPREAD = 0.4, 1.0  # where no prior is told: of the length-scale in typical distances; of all logarithms
_STARTS = ((log(0.02), log(2.0)), (log(0.1), log(10.0)), (log(1e-6), log(0.3)))
_DIGITS = 4  # that a fitted value is rounded to: no more than they tell, and equal wherever it is computed
# With a longer memory its triangular systems, though tiny, go to several threads: on a busy machine waiting for them
# took ten times as long as the likelihoods, and a memory of one needs half as many likelihoods more.
_OPTIONS = {"ftol": 1e-13, "gtol": 1e-7, "maxcor": 1, "maxfun": 500}
_BLOCK = 1 << 14  # candidates that are read together
_EQUAL = 1e-6  # optima whose likelihoods are closer are one: the first start that found it counts


@dataclass(frozen=True, slots=True)
class Hyper:
    """Length-scale in scaled units, variances in squared units of the outcome, constant mean in its units."""

    lengthscale: float
    signal_variance: float
    noise_variance: float
    mean: float = 0.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """t outcomes at candidates ``points`` (t, r), which are ``rows`` (t,) of the release.

    The noise variance of outcome i is ``known[i]``, plus the fitted one where ``has_unknown[i]``.
    """

    points: Matrix
    rows: NDArray[np.intp]
    outcomes: Vector
    known: Vector
    has_unknown: NDArray[np.bool_]

    def first(self, count: int) -> "Evidence":
        """The first outcomes alone."""
        some = slice(count)
        return Evidence(
            self.points[some], self.rows[some], self.outcomes[some], self.known[some], self.has_unknown[some]
        )


@dataclass(frozen=True, slots=True)
class Found:
    """The best of several starts."""

    hyper: Hyper
    log_likelihood: float
    """In nats, without the prior."""
    at_bounds: tuple[Parameter, ...]


class MarginalLikelihood:
    """log p(outcomes | log length-scale, log signal variance, log noise variance), and its gradient.

    With K = s R + diag(known + free noise), m the mean and a = K^-1 (y - m):
    -1/2 (y - m)^T a - 1/2 log det K - t/2 log 2 pi, with derivatives 1/2 tr((a a^T - K^-1) dK)
    (Rasmussen & Williams 2006, eqs. 5.8 and 5.9). R holds the kernel's correlations, averaged over the release's
    noise where its law tells of any: then a row has 1 with itself, the nugget included. ``mean`` None: the constant
    that is likeliest, 1^T K^-1 y / 1^T K^-1 1; it is stationary, so the gradient has no term for it.
    """

    def __init__(self, evidence: Evidence, kind: Kind, law: NoiseLaw, mean: float | None) -> None:
        self._evidence, self._kind, self._mean = evidence, kind, mean
        self._noise, self._r = known_noise(law), evidence.points.shape[1]
        self._squared: Vector = pdist(evidence.points, "sqeuclidean")
        above = np.triu_indices(len(evidence.rows), 1)
        self._same: NDArray[np.bool_] = evidence.rows[above[0]] == evidence.rows[above[1]]
        self._free: Vector = evidence.has_unknown.astype(np.float64)

    def at(self, logs: Vector) -> tuple[float, Vector, float]:
        """Value, gradient (3,) and mean. Raises NumericalFailure where K cannot be factored."""
        size, signal, noise = (float(value) for value in np.exp(logs))
        between, slopes = correlations(KERNELS[self._kind](size), self._noise, self._r, self._squared)
        between[self._same], slopes[self._same] = 1.0, 0.0
        correlation, slope = squareform(between), squareform(slopes)
        np.fill_diagonal(correlation, 1.0)
        covariance = signal * correlation
        np.einsum("ii->i", covariance)[:] += self._evidence.known + noise * self._free
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


def suggested(outcomes: Vector, distance: float) -> Hyper:
    """Where to begin without a kernel: what the spread of candidates and outcomes suggests.

    ``distance`` is the typical one of two candidates, see ``typical_distance``.
    """
    variance = float(np.var(outcomes)) if len(outcomes) > 1 else 0.0
    if not 1e-40 < variance < 1e40:
        variance = 1.0
    mean = float(np.mean(outcomes)) if len(outcomes) else 0.0
    return Hyper(_MEDIAN * distance, variance, 0.01 * variance, mean)


def typical_distance(candidates: Matrix, law: NoiseLaw) -> float:
    """The root mean square distance of two candidates (n, r), without what the release's noise adds to it."""
    n, r = candidates.shape
    start, total, squares = np.array(candidates[0]), np.zeros(r), 0.0
    for block in (np.asarray(candidates[at : at + _BLOCK]) - start for at in range(0, n, _BLOCK)):
        total += block.sum(axis=0)
        squares += float(np.einsum("ij,ij->", block, block))
    found = 2.0 * (squares / n - float(total @ total) / n**2)
    if (noise := known_noise(law)) is not None:
        found = max(found - 2 * r * noise[1] ** 2, 0.05 * found)
    if not found < 1e80:  # refuses NaN too
        raise NumericalFailure("the candidates hold a number that is not finite, or too large for a length-scale")
    return sqrt(max(found, 1e-80))


def fit(
    evidence: Evidence,
    kind: Kind,
    law: NoiseLaw,
    start: Hyper,
    settings: Fit,
    *,
    distance: float,
    seed: list[int],
    is_told: bool = False,
    tick: Tick = NO_TICK,
) -> Found:
    """The likeliest hyper-parameters, or those of largest posterior density of their logarithms where priors are told.

    L-BFGS-B from ``start`` (of a kernel where it ``is_told``) and from draws of ``seed``; the same arguments give the
    same values, rounded to four digits within the bounds. ``tick`` is called at each likelihood. Raises
    NumericalFailure where the outcomes are too few, all equal, or no start leads anywhere.
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
    priors = _priors(settings.priors, distance, start if is_told else None)
    reached = [
        _climb(likelihood, priors, begin, low, high, tick)
        for begin in _starts(start, settings.starts, low, high, variance, distance, seed)
    ]
    good = [told for told in reached if told is not None]
    if not good:
        raise NumericalFailure("the marginal likelihood could not be computed from any start")
    best = max(value for value, _ in good)
    logs = next(logs for value, logs in good if value >= best - _EQUAL * (1 + abs(best)))
    size, signal, noise = (
        lower if lower == upper else min(max(_rounded(exp(at)), lower), upper)
        for at, (lower, upper) in zip(logs, ends, strict=True)
    )
    value, _, mean = likelihood.at(np.log([size, signal, noise]))
    if settings.mean == "fitted":
        unit = 10.0 ** (floor(log10(variance) / 2) - 6)
        mean = round(mean / unit) * unit
    kept = tuple(
        name
        for name, at, lower, upper in zip(PARAMETERS, logs, low, high, strict=True)
        if lower < upper and (at <= lower + 1e-6 or at >= upper - 1e-6)
    )
    return Found(Hyper(size, signal, noise, mean), value, kept)


def _climb(
    likelihood: MarginalLikelihood,
    priors: list[LogNormal | None],
    begin: Vector,
    low: Vector,
    high: Vector,
    tick: Tick,
) -> tuple[float, Vector] | None:
    """The largest value that one start reaches, and where; None if not even its first could be computed.

    A start that breaks off on the way counts with the best it has seen.
    """
    from scipy.optimize import minimize  # late: it takes a tenth of a second, which a run without a fit need not wait

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
    """The bounds. Noise that no outcome has stays where it is."""
    unit = {"lengthscale": distance, "signal_variance": variance, "noise_variance": variance}
    ends = []
    for name in PARAMETERS:
        told = getattr(settings.bounds, name)
        low, high = (told.lower, told.upper) if told else (share * unit[name] for share in _USUAL[name])
        if name == "noise_variance" and not evidence.has_unknown.any():
            low = high = start.noise_variance
        ends.append((max(low, 1e-50), min(high, 1e50)))
    return ends


def _priors(told: FitPriors | None, distance: float, start: Hyper | None) -> list[LogNormal | None]:
    if told is None:
        told = FitPriors(
            lengthscale=LogNormal(median=_MEDIAN * distance, spread=_SPREAD),
            signal_variance=LogNormal(median=start.signal_variance, spread=_SPREAD) if start else None,
            noise_variance=LogNormal(median=start.noise_variance, spread=_SPREAD) if start else None,
        )
    return [getattr(told, name) for name in PARAMETERS]


def _starts(
    start: Hyper, count: int, low: Vector, high: Vector, variance: float, distance: float, seed: list[int]
) -> list[Vector]:
    """The given one and draws, uniform in logarithms over plausible ranges; all within the bounds."""
    units = np.log([distance, variance, variance])
    first = np.log([getattr(start, name) for name in PARAMETERS])
    draws = np.random.default_rng(seed).uniform(size=(count - 1, 3))
    ranges = np.array(_STARTS)
    others = units + ranges[:, 0] + draws * (ranges[:, 1] - ranges[:, 0])
    return [np.clip(at, low, high) for at in (first, *others)]


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS - 1}e}")
