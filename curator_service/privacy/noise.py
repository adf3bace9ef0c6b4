"""Every noise draw of the curator, through OpenDP's exact lattice samplers, with our guards.

OpenDP by itself reads NaN as 0, builds a mechanism of scale 0 that releases the exact value, and trusts
any sensitivity that it is told: what is checked here is checked for that reason.
"""

import math
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np

from shared.errors import NumericalFailure
from shared.matrix import Vector

LATTICE_BITS = 40


def lattice(sd: float) -> int:
    """The exponent k of the lattice 2^k that noise of standard deviation ``sd`` is drawn on."""
    if not 0 < sd < math.inf:
        raise ValueError("noise needs a positive, finite standard deviation")
    return math.floor(math.log2(sd)) - LATTICE_BITS


def add_gaussian(values: Vector, sd: float) -> Vector:
    """``values`` (m,) rounded to the lattice 2^k plus discrete Gaussian noise on it, k = floor(log2 sd) - 40.

    How close its law is to the continuous one on rounded values: docs/privacy.md. Raises
    NumericalFailure for a value that is not finite.
    """
    if not np.isfinite(values).all():
        raise NumericalFailure("noise was asked for a number that is not finite")
    if values.size == 0:
        return values.copy()
    noisy: Vector = np.array(_gaussian(values.size, sd)(values.tolist()))
    return noisy


@lru_cache(maxsize=16)
def _gaussian(size: int, sd: float) -> Any:
    import opendp.prelude as dp

    dp.enable_features("contrib")  # never `idealized-numerics`, which opens the unsafe part
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=size)
    measurement: Any = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=sd, k=lattice(sd))
    # A sensitivity of one sd must cost rho = 1/2 and a little for the lattice: a tripwire for upgrades.
    rho = measurement.map(sd)
    if not 0.5 <= rho < 0.5 * (1 + 1e-6 * math.sqrt(size)):
        raise NumericalFailure("the noise library does not account as it should: nothing was drawn")
    return measurement


def laplace_scale(bound: float, epsilon: Decimal) -> float:
    """Scale of the noise of an answer in [-bound, bound] that is epsilon-DP: 2 bound / epsilon and a little.

    The little pays for rounding answers to the lattice (docs/privacy.md).
    """
    if not (0 < bound < math.inf and 0 < epsilon < math.inf):
        raise ValueError("noise needs a positive, finite bound and epsilon")
    return 2 * bound / float(epsilon) * (1 + 2.0**-38 * max(1.0, 1 / float(epsilon)))


def add_laplace(values: Vector, bound: float, epsilon: Decimal) -> Vector:
    """``values`` (m,) clipped to [-bound, bound], each with Laplace noise of ``laplace_scale`` of its own.

    Each is epsilon-DP by itself, whatever the value. Raises NumericalFailure for one that is not finite.
    """
    if not np.isfinite(values).all():
        raise NumericalFailure("noise was asked for a number that is not finite")
    draw = _laplace(bound, epsilon)
    # OpenDP neither clamps nor refuses what lies outside the bounds that it is told.
    noisy: Vector = np.array([draw(value) for value in np.clip(values, -bound, bound).tolist()])
    return noisy


@lru_cache(maxsize=64)
def _laplace(bound: float, epsilon: Decimal) -> Any:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    scale = laplace_scale(bound, epsilon)
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    measurement: Any = dp.m.make_laplace(*space, scale=scale, k=lattice(scale))
    # A tripwire for upgrades, and for a scale of 0, which would release the exact value.
    if not 0.5 * float(epsilon) < measurement.map(2 * bound) <= epsilon:
        raise NumericalFailure("the noise library does not account as it should: nothing was drawn")
    return measurement
