"""The public grid that every sound release is rounded to, after the noise and after a rotation."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from blindopt.arrays import Matrix
from curator_service.privacy.noise.lattice import check_finite

GRID_BITS = 16
"""A step of the grid is more than 2^-17 and at most 2^-16 standard deviations of the noise."""


@dataclass(frozen=True, slots=True)
class PublicGrid:
    """The multiples of 2^``exponent``, which depends on the public noise law alone: rounding is post-processing.

    Noise is drawn on a lattice of some 2^-40 standard deviations, and a rotation in doubles keeps the rows so close to
    the turned lattice that its axes could be computed from their low bits. A step that is 2^23 times as wide or more
    leaves no trace of that lattice, and Z is on the same grid whether it was turned or not. Every multiple is a double,
    since the step is a power of two. Rounding errs by a uniform number of standard deviation at most
    2^-16 / sqrt(12) = 4.4e-6 of the noise's.
    """

    exponent: int

    @classmethod
    def of(cls, sd: float) -> Self:
        """The grid for noise of standard deviation ``sd``. Raises ValueError unless it is positive and finite."""
        if not 0 < sd < math.inf:
            raise ValueError("a grid needs a positive, finite standard deviation")
        return cls(math.frexp(sd)[1] - 1 - GRID_BITS)

    def round(self, block: Matrix) -> Matrix:
        """The nearest points of the grid to ``block`` (m, r). Raises NumericalFailure for a number that is not finite.

        A number of 2^52 steps or more is a multiple of the step already. There is no negative zero.
        """
        steps = np.rint(np.ldexp(block, -self.exponent))
        check_finite(steps)
        rounded: Matrix = np.ldexp(steps, self.exponent) + 0.0
        return rounded
