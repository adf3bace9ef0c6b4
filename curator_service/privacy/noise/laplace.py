"""Laplace noise on a lattice."""

import math
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Any

import numpy as np

from blindopt.arrays import Vector
from curator_service.privacy.noise.lattice import check_finite, lattice, untrusted

SCALE_MAX = 2.0**57
"""The largest scale of integer noise: of values below 2^62 it leaves 64 bits with a probability below e^-32."""


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
    draw = _laplace(mean_reach(bound, k), epsilon)
    # OpenDP neither clamps nor refuses values outside the bounds that it is given.
    noisy: Vector = np.array([draw(value) for value in np.clip(values, -bound, bound).tolist()])
    return noisy


def add_laplace_to_number(value: float, sensitivity: float, epsilon: Decimal) -> float:
    """Add Laplace noise of ``sensitivity_scale`` to ``value``, without clipping.

    epsilon-DP where neighbours' values lie within ``sensitivity``. Raises NumericalFailure if it is not finite.
    """
    check_finite(np.array([value]))
    return float(_laplace(sensitivity / 2, epsilon)(value))  # halving is exact, so the distance is the sensitivity


def add_integer_laplace(values: list[int], sensitivity: int, epsilon: Decimal) -> list[int]:
    """Add independent, exact discrete Laplace noise of scale ``sensitivity`` / ``epsilon`` to integers.

    epsilon-DP where neighbours' values differ by ``sensitivity`` in all, each a 64-bit number; a difference of a share
    of it costs that share of epsilon. Raises ValueError where the scale exceeds ``SCALE_MAX``: the library would end
    the noise with 64 bits, which is as private, but has another variance.
    """
    draw = _integer_laplace(sensitivity, epsilon)
    return [int(draw(value)) for value in values]


def least_epsilon(sensitivity: int) -> Decimal:
    """The least epsilon, in 12 decimals, of integer noise whose scale is ``SCALE_MAX`` at most."""
    return (sensitivity / Decimal(SCALE_MAX)).quantize(Decimal("1e-12"), ROUND_CEILING)


@lru_cache(maxsize=1024)
def _integer_laplace(sensitivity: int, epsilon: Decimal) -> Any:
    from opendp import domains, measurements, metrics, mod

    mod.enable_features("contrib")
    if not (sensitivity > 0 and 0 < epsilon < math.inf):
        raise ValueError("noise needs a positive sensitivity, and a positive, finite epsilon")
    if epsilon < least_epsilon(sensitivity):
        raise ValueError("noise for so small an epsilon does not fit 64 bits")
    space = domains.atom_domain(T="i64"), metrics.absolute_distance(T="i64")
    scale = sensitivity / float(epsilon)
    for _ in range(16):  # its map rounds up: the first scale that it accepts, some 2^-50 larger
        measurement: Any = measurements.make_laplace(*space, scale=scale)
        if 0.5 * float(epsilon) < measurement.map(sensitivity) <= epsilon:
            return measurement
        scale *= 1 + 2.0**-51
    raise untrusted()


@lru_cache(maxsize=1024)
def _laplace(bound: float, epsilon: Decimal) -> Any:
    from opendp import domains, measurements, metrics, mod  # its prelude would load twice the memory

    mod.enable_features("contrib")
    scale = laplace_scale(bound, epsilon)
    space = domains.atom_domain(T=float, nan=False), metrics.absolute_distance(T=float)
    measurement: Any = measurements.make_laplace(*space, scale=scale, k=lattice(scale))
    # Tripwire for upgrades, and for a scale of 0, which would release the exact value.
    if not 0.5 * float(epsilon) < measurement.map(2 * bound) <= epsilon:
        raise untrusted()
    return measurement
