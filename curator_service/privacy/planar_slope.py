"""How steep planar Laplace noise may fall where a delta is granted: steeper than epsilon, so with less noise."""

import math
from decimal import ROUND_FLOOR, Context, Decimal
from functools import lru_cache

import numpy as np

from blindopt.arrays import Vector
from curator_service.privacy.calibration import EPSILON_MIN

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
    each = _DOWN.divide(epsilon, Decimal(rows))
    return each if delta is None or each < EPSILON_MIN else planar_slope(each, delta / rows, d)


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
