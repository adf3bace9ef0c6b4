"""Laplace noise on a lattice."""

import math
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from functools import lru_cache

import numpy as np

from blindopt.arrays import Vector
from blindopt.errors import NumericalFailure
from curator_service.privacy.noise.discrete_laplace import SCALE_MAX, SCALE_MIN, integers
from curator_service.privacy.noise.lattice import add_on_lattice, check_finite, lattice


def laplace_scale(bound: float, epsilon: Decimal) -> float:
    """Scale of the noise that makes an answer in [-bound, bound] epsilon-DP: slightly more than 2 bound / epsilon.

    The excess pays for rounding answers to the lattice (docs/privacy.md).
    """
    if not (0 < bound < math.inf and 0 < epsilon < math.inf):
        raise ValueError("noise needs a positive, finite bound and epsilon")
    return 2 * bound / float(epsilon) * (1 + 2.0**-38 * max(1.0, 1 / float(epsilon)))


def sensitivity_scale(sensitivity: float, epsilon: Decimal) -> float:
    """Scale of the noise for a number that moves by ``sensitivity`` at most, in any range."""
    return laplace_scale(sensitivity / 2, epsilon)


def mean_reach(bound: float, k: int) -> float:
    """Half of what one of ``k`` values in [-bound, bound] can move their mean by, for ``laplace_scale``.

    bound / k, and bound for k = 1. Each of two means of doubles errs by 2^-52 of the bound at most, which is added.
    """
    return bound if k == 1 else math.nextafter(bound / k * (1 + k * 2.0**-51), math.inf)


def add_laplace(values: Vector, bound: float, epsilon: Decimal, k: int = 1) -> Vector:
    """Clip ``values`` (m,) to [-bound, bound] and add independent Laplace noise of ``laplace_scale``.

    Each is epsilon-DP by itself, whatever the value; where it is the mean of ``k`` values in that range, for replacing
    one of them. Raises NumericalFailure for a value that is not finite.
    """
    check_finite(values)
    return _add(np.clip(values, -bound, bound), mean_reach(bound, k), epsilon)


def add_laplace_to_number(value: float, sensitivity: float, epsilon: Decimal) -> float:
    """Add Laplace noise of ``sensitivity_scale`` to ``value``, without clipping.

    epsilon-DP where neighbours' values lie within ``sensitivity``. Raises NumericalFailure if it is not finite.
    """
    values = np.array([value])
    check_finite(values)
    return float(_add(values, sensitivity / 2, epsilon)[0])  # halving is exact, so the distance is the sensitivity


def add_integer_laplace(values: list[int], sensitivity: int, epsilon: Decimal) -> list[int]:
    """Add independent, exact discrete Laplace noise of scale ``sensitivity`` / ``epsilon`` to integers.

    epsilon-DP where neighbours' values differ by ``sensitivity`` in all; a difference of a share of it costs that share
    of epsilon. Sums end at the ends of 64 bits. Raises ValueError where the scale exceeds ``SCALE_MAX``: they would
    often end there, which is as private, but has another variance.
    """
    noise = integers(len(values), _integer_scale(sensitivity, epsilon)).tolist()
    return [max(-(1 << 63), min(value + size, (1 << 63) - 1)) for value, size in zip(values, noise, strict=True)]


def least_epsilon(sensitivity: int) -> Decimal:
    """The least epsilon, in 12 decimals, of integer noise whose scale is ``SCALE_MAX`` at most.

    Values below 2^62 leave 64 bits then with a probability below e^-32.
    """
    return (sensitivity / Decimal(SCALE_MAX)).quantize(Decimal("1e-12"), ROUND_CEILING)


@lru_cache(maxsize=1024)
def _integer_scale(sensitivity: int, epsilon: Decimal) -> float:
    """``sensitivity`` / ``epsilon``, rounded up: the noise then costs epsilon at most."""
    if not (sensitivity > 0 and 0 < epsilon < math.inf):
        raise ValueError("noise needs a positive sensitivity, and a positive, finite epsilon")
    if epsilon < least_epsilon(sensitivity):
        raise ValueError("noise for so small an epsilon does not fit 64 bits")
    exact = Fraction(sensitivity) / Fraction(epsilon)
    scale = float(exact)
    return max(scale if Fraction(scale) >= exact else math.nextafter(scale, math.inf), SCALE_MIN)


def _add(values: Vector, bound: float, epsilon: Decimal) -> Vector:
    k, scale = _law(bound, epsilon)
    return add_on_lattice(values, k, lambda count: integers(count, scale))


@lru_cache(maxsize=1024)
def _law(bound: float, epsilon: Decimal) -> tuple[int, float]:
    """The lattice 2^k, and the scale of the noise in steps of it.

    Raises NumericalFailure if it costs more than epsilon, or less than half: the tripwire for a scale of 0, which would
    release the exact value. Two values differ by 2 bound, and each is rounded by half a step.
    """
    scale = laplace_scale(bound, epsilon)
    k = lattice(scale)
    cost = (2 * Fraction(bound) + Fraction(2) ** k) / Fraction(scale)
    if not Fraction(epsilon) / 2 < cost <= Fraction(epsilon):
        raise NumericalFailure("the noise does not cost what it should: nothing was drawn")
    return k, math.ldexp(scale, -k)
