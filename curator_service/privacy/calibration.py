"""The noise that a privacy guarantee needs, and the release mechanism that ``auto`` takes by it.

From public values alone, so that the choice discloses nothing.
"""

import math
from decimal import ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from math import sqrt

import numpy as np

from blindopt import wire
from blindopt.arrays import Vector
from curator_service.privacy.entropy import CONDITION_MAX
from curator_service.privacy.loading import load
from curator_service.privacy.noise import LATTICE_BITS, PLANAR_FEATURES_MAX

EPSILON_MIN = Decimal("0.000001")  # below, the root finder's error is not small against delta


@lru_cache(maxsize=256)
def gaussian_sd(epsilon: Decimal, delta: float, sensitivity: float, dimension: int, rows: int = 1) -> float:
    """Standard deviation per coordinate of the analytic Gaussian mechanism (Balle & Wang 2018).

    For (epsilon, delta)-DP when each of ``rows`` rows of ``dimension`` coordinates moves by at most ``sensitivity``
    in Euclidean norm, so that all together move by sqrt(rows) times that, rounding to the noise's lattice included.
    The root finder does not round up, so delta is shrunk and the result grown by more than its error
    (docs/privacy.md).

    >>> from decimal import Decimal
    >>> round(gaussian_sd(Decimal(1), 1e-5, 1.0, 2), 4)
    3.7306
    """
    load()
    import dp_accounting

    if not (EPSILON_MIN <= epsilon <= 1_000 and 0 < delta < 1 and 0 < sensitivity < math.inf):
        raise ValueError("epsilon must be between 0.000001 and 1000, delta and sensitivity positive and finite")
    with np.errstate(divide="ignore"):  # the root finder passes through infinity for a large epsilon
        per_unit = dp_accounting.get_sigma_gaussian(float(epsilon) * (1 - 1e-12), delta * (1 - 1e-6)) * (1 + 1e-9)
    # The lattice step is at most per_unit * moved * 2^-40, and rounding moves all rows by step * sqrt(rows d).
    rounding = per_unit * 2.0**-LATTICE_BITS * math.sqrt(rows * dimension)
    moved = sensitivity if rows == 1 else math.nextafter(math.sqrt(rows), math.inf) * sensitivity * (1 + 2.0**-50)
    return float(per_unit * moved * (1 + 2 * rounding))


@lru_cache(maxsize=256)
def projected_gaussian_sd(
    epsilon: Decimal, delta: float, sensitivity: float, d: int, r: int, slack: float = 0.0
) -> float:
    """Noise per coordinate after a secret orthonormal projection of d features to r, times sqrt(d / r).

    A row that moves by v with |v| <= ``sensitivity`` moves by sqrt(d / r) |v| sqrt(t) after it, t ~ Beta(r/2, (d-r)/2)
    because the projection is uniform and independent of v. The pair (projection, Z) is (epsilon, delta)-private iff
    the mean over t of the Gaussian curve at that sensitivity is at most delta, and Z is post-processing of the pair
    (docs/privacy.md, Theorem A). What the exact formula does not have, on the safe side:

    - ``slack`` is how much further rounding errors of X P may move a row, after the projection;
    - the projection is orthonormal and uniform but for ``projection_error``, which moves a row by that share more;
    - the lattice, of step 2^-40 sd at most, moves a row by 2^-40 sd sqrt(r) more;
    - delta is shrunk by 1e-6 and epsilon by 1e-12: the sum over t errs by less than 1e-9 of itself (a test compares
      it with another quadrature), and the discrete noise differs from the continuous one by far less (gaussian_sd).
    """
    from scipy.optimize import brentq

    if not (EPSILON_MIN <= epsilon <= 1_000 and 0 < delta < 1 and 0 < sensitivity < math.inf and 0 <= slack < math.inf):
        raise ValueError("epsilon must be between 0.000001 and 1000, delta and sensitivity positive and finite")
    if not 1 <= r < d:
        raise ValueError("a projection has fewer columns than there are features")
    target, exact = delta * (1 - 1e-6), float(epsilon) * (1 - 1e-12)
    sizes, weights = projected_length(d, r)
    moved = sensitivity * math.sqrt(d / r) * (sizes + projection_error(d, r)) + slack

    def excess(log_sd: float) -> float:
        shifts = moved / math.exp(log_sd) + 2.0**-LATTICE_BITS * math.sqrt(r)
        delta_of_sd = float(weights @ gaussian_delta(exact, shifts))
        return math.log(delta_of_sd / target) if delta_of_sd > 0 else -1e3

    # The average needs no more noise than the longest row, and more than e^-12 of it.
    worst = math.log(gaussian_sd(epsilon, delta, float(sensitivity * math.sqrt(d / r) * 1.01 + slack), d))
    sd = math.exp(brentq(excess, worst - 12, worst, xtol=1e-12)) * (1 + 1e-9)
    if not excess(math.log(sd)) <= 0:
        raise ValueError("no noise could be calibrated for this epsilon and delta")
    return sd


def gaussian_delta(epsilon: float, shift: Vector) -> Vector:
    """The least delta of Gaussian noise whose mean moves by ``shift`` standard deviations, at ``epsilon``.

    Balle & Wang (2018), Theorem 8: Phi(a) - e^epsilon Phi(b) with a, b = +-shift/2 - epsilon/shift. As
    e^epsilon phi(b) = phi(a), it is Phi(a) - phi(a) m(-b) with Mills' ratio m, which does not overflow; where a < 0,
    phi(a) (m(-a) - m(-b)), which does not cancel to nothing.
    """
    from scipy.special import erfcx, ndtr

    def mills(x: Vector) -> Vector:
        ratio: Vector = math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))
        return ratio

    a, b = shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift
    density = np.exp(-(a**2) / 2) / math.sqrt(2 * math.pi)
    below = density * (mills(np.maximum(-a, 0.0)) - mills(-b))
    return np.asarray(np.where(a < 0, below, ndtr(a) - density * mills(-b)))


def projection_error(d: int, r: int) -> float:
    """Bound on the distance, in spectral norm, between the drawn projection and an exact uniform one.

    Its Gaussian matrix errs by 2^-50 of each entry (the quantile of a 63-bit number), Householder's factorization by
    d r units of each column, both in Frobenius norm at most sqrt(r) times the spectral norm; the orthonormal factor
    moves by at most twice that times the condition number (Stewart 1977), which is at most CONDITION_MAX.
    """
    return 2 * CONDITION_MAX * math.sqrt(r) * (d * r + 8) * 2.0**-53


def projected_length(d: int, r: int) -> tuple[Vector, Vector]:
    """Points and weights of the law of sqrt(t), t ~ Beta(r/2, (d-r)/2): Gauss's rule on 64 panels.

    With sqrt(t) = sin(x) the density of x is proportional to sin(x)^(r-1) cos(x)^(d-r-1): a trigonometric polynomial
    whose peak is no narrower than 1 / sqrt(2 d).
    """
    nodes, weights = np.polynomial.legendre.leggauss(24)
    edges = np.linspace(0, math.pi / 2, 65)
    half = (edges[1] - edges[0]) / 2
    x = (edges[:-1, None] + half * (nodes + 1)).ravel()
    log_density = (r - 1) * np.log(np.sin(x)) + (d - r - 1) * np.log(np.cos(x))
    mass = np.tile(weights, 64) * np.exp(log_density - log_density.max())
    return np.sin(x), mass / mass.sum()


ROUNDING = 2.0**-36
"""Taken off epsilon, for drawing on a lattice; and 2^-4 of it times the slope, for losses computed in doubles."""
_DOWN = Context(prec=40, rounding=ROUND_FLOOR)  # so that k times a k-th is epsilon at most
_CELLS = 500
_CUT = 1e-4  # the share of delta that the cells at the two ends of the radius may add


@lru_cache(maxsize=256)
def planar_slope(epsilon: Decimal, delta: float, d: int) -> Decimal:
    """The slope a for which noise of density exp(-a |u| / Delta) in ``d`` dimensions is (epsilon, delta)-private.

    For a row that moves by Delta at most. Never below ``epsilon``, which needs no delta. The largest a whose delta, by
    ``delta_of`` (an upper bound), is at most ``delta``, less one part in 10^6. The noise is drawn on a lattice, which
    costs less than ROUNDING of epsilon, and sums and distribution functions in doubles less than 1e-6 of delta
    (docs/privacy.md). Raises ValueError for parameters out of range.

    >>> planar_slope(Decimal(1), 1e-5, 10) > Decimal("1.145")
    True
    """
    if not (EPSILON_MIN <= epsilon <= 1_000 and 0 < delta < 1 and d >= 1):
        raise ValueError("epsilon must be between 0.000001 and 1000, delta between 0 and 1, d 1 or more")
    exact, target = float(epsilon), delta * (1 - 1e-6)

    def excess(log_more: float) -> float:
        return math.log(max(delta_of(exact + math.exp(log_more), exact, d, target), 1e-300) / target)

    below, step = -60.0, math.log(delta)
    if excess(below) >= 0:
        return epsilon  # so small a delta does not even pay for the lattice
    while excess(step) <= 0:
        below, step = step, step + 2
    from scipy.optimize import brentq

    more = math.exp(brentq(excess, below, step, xtol=1e-7, rtol=1e-12))
    slope = (exact + more) / (1 + 1e-6)
    if delta_of(slope, exact, d, target) > target:
        return epsilon
    return max(epsilon, Decimal(slope))


def slope_of_row(epsilon: Decimal, delta: float | None, d: int, rows: int) -> Decimal:
    """The slope for each of ``rows`` rows of a person, whose epsilon and delta these are: an equal share, rounded down.

    The rows' noise is independent, so that their epsilons and deltas add up.
    """
    row_epsilon = _DOWN.divide(epsilon, Decimal(rows))
    return row_epsilon if delta is None or row_epsilon < EPSILON_MIN else planar_slope(row_epsilon, delta / rows, d)


def delta_of(slope: float, epsilon: float, d: int, about: float) -> float:
    """An upper bound on the delta, at ``epsilon``, of noise of density exp(-slope |u|) whose centre moves by 1.

    The loss is L = slope (sqrt(R^2 + 1 - 2 R c) - R), with R ~ Gamma(d, 1 / slope) the length of the noise and c the
    cosine of its angle to the move, independent, (1 + c) / 2 ~ Beta((d - 1) / 2, (d - 1) / 2), and delta =
    E (1 - exp(epsilon - L))_+. L falls with R and with c, so each cell of a grid of R and c counts with its lower
    corner. For d = 1, 1 - exp((epsilon - slope) / 2). ``about``: the size of the result, which sets
    where the grid begins and ends, and not whether the bound holds. ROUNDING is paid for.
    """
    at = epsilon - ROUNDING * (1 + slope / 16)
    most = -math.expm1(min(at - slope, 0.0))
    if most == 0:
        return 0.0
    if d == 1:
        return -math.expm1((at - slope) / 2)
    from scipy.special import betainc, gammaincinv

    share = min(0.5, _CUT * about / most)
    first, last = gammaincinv(d, share), gammaincinv(d, 1 - 1e-7)
    edges = np.concatenate([[0.0], np.linspace(math.sqrt(first), math.sqrt(last), _CELLS) ** 2])
    radius = edges[:, None] / slope
    # Below x all angles are bad, but for one radius in a hundred: finer cells there.
    ratio, short = at / slope, gammaincinv(d, 0.01) / slope
    bad = max((1 - ratio + (1 - ratio**2) / (2 * short)) / 2, 1e-12)
    x = min(bad, 1.0) * np.linspace(0.0, 1.0, _CELLS // 2 + 1) ** 2
    if bad < 1:
        x = np.concatenate([x, np.geomspace(bad, 1.0, _CELLS // 6 + 1)[1:]])
    mass, x = np.diff(betainc((d - 1) / 2, (d - 1) / 2, x)), x[:-1]
    cosine = 2 * x - 1
    away = np.sqrt(np.maximum(radius**2 + 1 - 2 * radius * cosine, 0.0))
    loss = slope * (1 - 2 * radius * cosine) / (away + radius)
    return float(_masses(edges, d) @ (np.maximum(-np.expm1(at - loss), 0.0) @ mass))


def _masses(edges: Vector, d: int) -> Vector:
    """The mass of Gamma(d, 1) between ``edges`` (m,) and above the last, by whichever tail is the smaller number."""
    from scipy.special import gammainc, gammaincc

    below, above = gammainc(d, edges), gammaincc(d, edges)
    mass = np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))
    return np.append(mass, above[-1])


DELTA_FEATURES_MIN = 5
GAIN_MIN = 0.02
"""`auto` spends a delta on planar Laplace noise from so many features on, where that makes it so much smaller."""
AXES_MAX = 20
"""The most axes of a release."""
AXES_SHARE = Decimal("0.2")
"""Of epsilon, which private axes use; and half of delta."""
_MILLIONTHS = Decimal("1e-12")
Rows = wire.GaussianRelease | wire.PlanarLaplaceRelease
Local = Rows | wire.GaussianProjectionRelease | wire.AxesRelease
Concrete = wire.IdentityRelease | wire.PoGpUcbRelease | wire.GroupsRelease | Local


def concrete(study: wire.StudyCreate) -> tuple[Concrete, str | None]:
    """The release of a study, and why ``auto`` chose it (None if the owner chose).

    ``auto`` takes the smallest standard deviation of the noise per coordinate. That is sqrt(d + 1) k Delta / a of
    planar Laplace with slope a, for k rows of a person, or that of the analytic Gaussian mechanism.
    """
    spec = study.release
    if not isinstance(spec, wire.AutoRelease):
        return spec, None
    d, k = len(study.features), study.protected_rows
    if spec.promise == "one_feature":
        return _planar(spec, None), "Chosen: Laplace noise in each feature, which needs no delta."
    if d > PLANAR_FEATURES_MAX and (axes := _axes(spec, d)) is not None:
        whose = "a public sample" if axes.axes == "public" else "the records, found privately"
        return axes, f"Chosen: axes of {whose}, because {d} features each add noise."
    return smallest(spec, d, k)


def smallest(spec: wire.AutoRelease, d: int, k: int) -> tuple[Rows, str]:
    """The noise with the smallest standard deviation per coordinate of ``d``, for ``k`` rows of a person, and why."""
    if spec.delta is None:
        return _planar(spec, None), "Chosen: planar Laplace, the noise that needs no delta."
    gaussian = _gaussian(spec, spec.delta)
    if d > PLANAR_FEATURES_MAX:
        return gaussian, f"Chosen: Gaussian, as planar Laplace is for {PLANAR_FEATURES_MAX} features at most."
    planar = _planar(spec, None)
    planar_sd = sqrt(d + 1) * k * spec.sensitivity / float(wire.amount(spec.epsilon))
    if d >= DELTA_FEATURES_MIN:
        with_delta = sqrt(d + 1) * spec.sensitivity / float(slope_of_row(wire.amount(spec.epsilon), spec.delta, d, k))
        if with_delta <= (1 - GAIN_MIN) * planar_sd:
            planar, planar_sd = _planar(spec, spec.delta), with_delta
    gaussian_noise = gaussian_sd(wire.amount(spec.epsilon), spec.delta, spec.sensitivity, d, k)
    if planar_sd <= gaussian_noise:
        need = "" if planar.delta else " No delta needed."
        sizes = f"{planar_sd:.4g} per coordinate; Gaussian {gaussian_noise:.4g}"
        return planar, f"Chosen: planar Laplace, the smaller noise ({sizes}).{need}"
    sizes = f"{gaussian_noise:.4g} per coordinate; planar Laplace {planar_sd:.4g}"
    return gaussian, f"Chosen: Gaussian, the smaller noise ({sizes})."


def of_axes(release: wire.AxesRelease) -> tuple[Decimal, float]:
    """Epsilon and delta of the axes; 0 for public ones."""
    if release.axes == "public":
        return Decimal(0), 0.0
    epsilon = (wire.amount(release.epsilon) * AXES_SHARE).quantize(_MILLIONTHS, ROUND_FLOOR)
    return epsilon, (release.delta or 0.0) / 2


def on_axes(release: wire.AxesRelease, r: int, k: int) -> Rows:
    """The release of the rows on ``r`` axes, with what the axes leave of epsilon and delta, for a move by Delta."""
    epsilon, delta = of_axes(release)
    remaining = wire.AutoRelease(
        epsilon=format(wire.amount(release.epsilon) - epsilon, "f"),
        delta=None if release.delta is None else release.delta - delta,
        sensitivity=release.sensitivity,
    )
    return smallest(remaining, r, k)[0]


def epsilon_of(release: Concrete) -> Decimal | None:
    return None if isinstance(release, wire.IdentityRelease) else wire.amount(release.epsilon)


def failure(release: Concrete) -> float:
    """The delta that a release charges every record; 0 where it promises pure epsilon, or nothing."""
    if isinstance(release, wire.IdentityRelease | wire.PoGpUcbRelease | wire.GroupsRelease):
        return 0.0
    return release.delta or 0.0


def as_run(study: wire.StudyCreate, mechanism: str, delta: float | None = None, r: int | None = None) -> Concrete:
    """The release of a study that ran with ``mechanism``, even if ``auto`` would take another one today.

    ``delta`` and ``r``: those of its report, which say whether planar Laplace noise was drawn with a delta, and on how
    many axes.
    """
    spec = study.release
    if isinstance(spec, wire.AutoRelease) and mechanism == "axes":
        spec = _axes(spec, len(study.features)) or spec
    if isinstance(spec, wire.AxesRelease):
        return spec.model_copy(update={"r": r or spec.r})
    if not isinstance(spec, wire.AutoRelease):
        return spec
    if mechanism == "planar_laplace":
        return _planar(spec, delta)
    if mechanism == "gaussian" and spec.delta is not None:
        return _gaussian(spec, spec.delta)
    raise ValueError(f"auto never took {mechanism} for this study")


def _axes(spec: wire.AutoRelease, d: int) -> wire.AxesRelease | None:
    """The axes that ``auto`` takes for ``d`` features; None without any, or where noise on all features is better."""
    is_public = spec.sample_dataset_id is not None
    if spec.r == d if is_public else spec.radius is None or spec.delta is None:
        return None
    return wire.AxesRelease(
        mechanism="axes",
        epsilon=spec.epsilon,
        delta=spec.delta,
        sensitivity=spec.sensitivity,
        axes="public" if is_public else "private",
        sample_dataset_id=spec.sample_dataset_id,
        radius=None if is_public else spec.radius,
        r=spec.r,
    )


def _planar(spec: wire.AutoRelease, delta: float | None) -> wire.PlanarLaplaceRelease:
    fields = spec.model_dump(exclude={"mechanism", "delta", "sample_dataset_id", "radius", "r"})
    return wire.PlanarLaplaceRelease(mechanism="planar_laplace", delta=delta, **fields)


def _gaussian(spec: wire.AutoRelease, delta: float) -> wire.GaussianRelease:
    return wire.GaussianRelease(
        mechanism="gaussian", epsilon=spec.epsilon, delta=delta, sensitivity=spec.sensitivity, rotate=spec.rotate
    )
