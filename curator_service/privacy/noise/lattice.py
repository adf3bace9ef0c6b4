"""The lattice of every draw, decisions without error, and guards against inputs that OpenDP accepts.

OpenDP reads NaN as 0, builds a mechanism of scale 0, which releases the exact value, and trusts any sensitivity that it
is given. The checks in this module are for these cases.
"""

import math
import os
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.errors import NumericalFailure

LATTICE_BITS = 40
EXP_ERROR = 2.0**-45
"""Bound on the relative error of exp in doubles, where 2^-50 would be ample."""
_BITS = 53


def lattice(sd: float) -> int:
    """The exponent k of the lattice 2^k that noise of standard deviation ``sd`` is drawn on."""
    if not 0 < sd < math.inf:
        raise ValueError("noise needs a positive, finite standard deviation")
    return math.floor(math.log2(sd)) - LATTICE_BITS


def check_finite(values: Vector | Matrix) -> None:
    """Raise NumericalFailure if a value is not finite."""
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
    bits, digits = _BITS, 40
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
