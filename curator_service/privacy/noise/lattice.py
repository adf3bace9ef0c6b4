"""The lattice of every draw, and guards against inputs that OpenDP accepts.

OpenDP reads NaN as 0, builds a mechanism of scale 0, which releases the exact value, and trusts any sensitivity that it
is given. The checks in this module are for these cases.
"""

import math

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.errors import NumericalFailure

LATTICE_BITS = 40


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
