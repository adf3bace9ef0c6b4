"""Noise for each row by itself, then a secret rotation, and rounding to a public grid. No claim rests on these two."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np

from blindopt.arrays import Matrix
from blindopt.wire import NoiseLaw
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy import entropy, noise
from curator_service.privacy.noise import OnProgress, ignore_progress
from curator_service.privacy.noise.lattice import check_finite
from curator_service.releases.mechanisms.mechanism import Assessment, Mechanism

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


class RowMechanism(Mechanism):
    """Adds noise to each row; if ``rotate``, turns all rows alike.

    The rotation or reflection is fresh, secret and uniform. It preserves distances but for rounding, so a kernel of
    distances does not change.
    """

    __slots__ = ()

    family: ClassVar[Literal["gaussian", "planar_laplace"]]
    rotate: bool

    @abstractmethod
    def law(self, d: int) -> noise.GaussianLaw | noise.PlanarLaplaceLaw:
        """The law of the noise that is added to each row."""

    def noise(self, d: int) -> NoiseLaw:
        """The public law of the noise, which the modeler needs to estimate distances."""
        return NoiseLaw(family=self.family, sd=self.law(d).sd)

    def draw(self, rows: ScaledRows, out: Matrix, on_progress: OnProgress = ignore_progress) -> Assessment:
        """Fill ``out`` (n, d) with noisy rows, a piece at a time."""
        law = self.law(rows.d)
        grid, rotation = PublicGrid.of(law.sd), entropy.orthonormal(rows.d, rows.d) if self.rotate else None

        def finish(block: Matrix) -> Matrix:
            return grid.round(block if rotation is None else block @ rotation)

        noise.apply(law, rows.blocks(), out, on_progress, rows.n, finish=finish)
        return Assessment()
