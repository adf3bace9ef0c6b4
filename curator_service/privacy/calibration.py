"""The noise that a privacy guarantee needs."""

import math
from decimal import Decimal
from functools import lru_cache

import numpy as np

from blindopt.arrays import Vector
from curator_service.privacy.entropy import CONDITION_MAX
from curator_service.privacy.loading import load
from curator_service.privacy.noise import LATTICE_BITS

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
    sizes, weights = _projected_length(d, r)
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


def _projected_length(d: int, r: int) -> tuple[Vector, Vector]:
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
