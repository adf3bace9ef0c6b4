"""Laplace noise on a lattice."""

import math
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np

from blindopt.arrays import Vector
from curator_service.privacy.noise.lattice import check_finite, lattice, untrusted


def laplace_scale(bound: float, epsilon: Decimal) -> float:
    """Scale of the noise of an answer in [-bound, bound] that is epsilon-DP: 2 bound / epsilon and a little.

    The little pays for rounding answers to the lattice (docs/privacy.md).
    """
    if not (0 < bound < math.inf and 0 < epsilon < math.inf):
        raise ValueError("noise needs a positive, finite bound and epsilon")
    return 2 * bound / float(epsilon) * (1 + 2.0**-38 * max(1.0, 1 / float(epsilon)))


def sensitivity_scale(sensitivity: float, epsilon: Decimal) -> float:
    """The same for a number that moves by ``sensitivity`` at most, wherever it lies."""
    return laplace_scale(sensitivity / 2, epsilon)


def add_laplace(values: Vector, bound: float, epsilon: Decimal) -> Vector:
    """``values`` (m,) clipped to [-bound, bound], each with Laplace noise of ``laplace_scale`` of its own.

    Each is epsilon-DP by itself, whatever the value. Raises NumericalFailure for one that is not finite.
    """
    check_finite(values)
    draw = _laplace(bound, epsilon)
    # OpenDP neither clamps nor refuses what lies outside the bounds that it is told.
    noisy: Vector = np.array([draw(value) for value in np.clip(values, -bound, bound).tolist()])
    return noisy


def add_laplace_to_one(value: float, sensitivity: float, epsilon: Decimal) -> float:
    """``value`` with Laplace noise of ``sensitivity_scale``: nothing is clipped.

    epsilon-DP where neighbours' values lie within ``sensitivity``. Raises NumericalFailure for one that is not finite.
    """
    check_finite(np.array([value]))
    return float(_laplace(sensitivity / 2, epsilon)(value))  # an exact half: the same distance as that of a range


@lru_cache(maxsize=64)
def _laplace(bound: float, epsilon: Decimal) -> Any:
    from opendp import domains, measurements, metrics, mod  # its prelude would load twice the memory

    mod.enable_features("contrib")
    scale = laplace_scale(bound, epsilon)
    space = domains.atom_domain(T=float, nan=False), metrics.absolute_distance(T=float)
    measurement: Any = measurements.make_laplace(*space, scale=scale, k=lattice(scale))
    # A tripwire for upgrades, and for a scale of 0, which would release the exact value.
    if not 0.5 * float(epsilon) < measurement.map(2 * bound) <= epsilon:
        raise untrusted()
    return measurement
