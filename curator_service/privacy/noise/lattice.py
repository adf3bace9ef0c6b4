"""The lattice of every draw, sums on it that are rounded once, and decisions without error."""

import math
import os
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Vector
from blindopt.errors import NumericalFailure

Integers = NDArray[Any]
"""64-bit integers, or Python's where one of them is larger."""
LATTICE_BITS = 40
BITS = 53
"""Bits of a double, and of a uniform number that is compared first."""
EXACT = 1 << BITS
"""All integers below it are doubles."""
EXP_ERROR = 2.0**-45
"""Bound on the relative error of exp in doubles, where 2^-50 would be ample."""
_EXPONENT_MIN, _EXPONENT_MAX = -1074, 1023


def lattice(sd: float) -> int:
    """The exponent k of the lattice 2^k that noise of standard deviation ``sd`` is drawn on."""
    if not 0 < sd < math.inf:
        raise ValueError("noise needs a positive, finite standard deviation")
    return math.floor(math.log2(sd)) - LATTICE_BITS


def add_on_lattice(values: Vector, k: int, draw: Callable[[int], Integers]) -> Vector:
    """Round finite ``values`` (m,) to the lattice 2^k, and add as many of its steps as ``draw(m)`` returns for each.

    The sum is exact, and then rounded once to a double, at most to the largest one. Raises NumericalFailure for a
    lattice that doubles do not hold, or on which the largest ones would be rounded to infinity, which no noise moves.
    """
    if not (k >= _EXPONENT_MIN and k + BITS <= _EXPONENT_MAX):
        raise NumericalFailure("noise of this size does not fit doubles: nothing was drawn")
    noise = draw(values.size)
    # From 2^53 steps on a double lies on the lattice already.
    is_near = np.abs(values) < math.ldexp(1.0, k + BITS)
    if is_near.all() and k + BITS < _EXPONENT_MAX:
        near: Vector = np.ldexp(add_integers(np.rint(np.ldexp(values, -k)), noise), k)
        return near
    step, largest = Fraction(2) ** k, Fraction(np.finfo(np.float64).max)
    pairs = zip(values.tolist(), noise.tolist(), strict=True)
    sums = ((round(Fraction(value) / step) + size) * step for value, size in pairs)
    return np.array([float(max(-largest, min(total, largest))) for total in sums])


def add_integers(steps: Matrix | Vector, noise: Integers) -> Matrix:
    """Add integers to doubles that are integers; each sum is rounded once."""
    real = noise.astype(np.float64)
    if np.abs(real).max(initial=0) < EXACT:
        noisy: Matrix = steps + real
        return noisy
    pairs = zip(steps.ravel().tolist(), noise.ravel().tolist(), strict=True)
    return np.array([float(int(step) + size) for step, size in pairs]).reshape(steps.shape)


def check_finite(values: Vector | Matrix) -> None:
    if not np.isfinite(values).all():
        raise NumericalFailure("noise was requested for a number that is not finite")


def untrusted() -> NumericalFailure:
    """The error for a mechanism whose privacy cost by OpenDP's own map is wrong."""
    return NumericalFailure("the noise library does not account as it should: nothing was drawn")


def surely_below(word: int, probability: Callable[[int], tuple[Fraction, Fraction]]) -> bool:
    """Whether U < p, where ``word`` holds the first 53 bits of a uniform U in [0, 1).

    ``probability`` returns p as computed with so many digits, and a bound on the error of its logarithm. Takes more
    digits and more bits from the operating system until it is certain.
    """
    bits, digits = BITS, 40
    while True:
        p, error = probability(digits)
        unit = Fraction(1, 1 << bits)
        if error < 1:  # e^x - 1 <= 2x there
            if (word + 1) * unit <= p * (1 - 2 * error):
                return True
            if word * unit >= p * (1 + 2 * error):
                return False
        bits, digits = bits + 64, digits + 20
        word = word << 64 | int.from_bytes(os.urandom(8))
