"""Z = X + planar Laplace noise: private without a delta."""

from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from blindopt.arrays import Matrix
from blindopt.wire import NoiseLaw, Status
from curator_service.privacy import noise
from curator_service.release.mechanism import Assessment, Told, ignore
from curator_service.release.rotation import turn
from curator_service.scaling import ScaledRows


@dataclass(frozen=True, slots=True)
class PlanarLaplaceMechanism:
    """Adds to each row a vector u of density proportional to exp(-epsilon |u| / Delta), on a lattice.

    Claims epsilon-DP, with delta = 0, for datasets that differ in one row, moved by Euclidean norm at most
    ``sensitivity`` = Delta in scaled units. Argument: only that row's part of Z changes its law, and moving the centre
    of the density by w multiplies it by at most exp(epsilon |w| / Delta), by the triangle inequality (the K-norm
    mechanism of Hardt & Talwar 2010 with the Euclidean norm). The draw is exact on the lattice, and rounding to it is
    inside the sensitivity (``noise.planar`` has the argument). Each row is released by itself: no centring, no scaling
    by the data. Where ``rotate``, Z is turned at random after the noise: post-processing, of which nothing is
    claimed. Claims nothing about y, nor about how many rows there are.
    """

    epsilon: Decimal
    sensitivity: float
    rounding: float = 0.0
    """How much further than ``sensitivity`` scaling in doubles may move a row."""
    rotate: bool = False

    name: ClassVar[str] = "planar_laplace"
    version: ClassVar[int] = 1
    status: ClassVar[Status] = "sound"
    claim: ClassVar[str] = (
        "epsilon-differential privacy, without a delta, of each row's features, for a move of at most the sensitivity "
        "in scaled units (planar Laplace noise)."
    )

    def columns(self, d: int) -> int:
        """R = d."""
        return d

    def law(self, d: int) -> noise.PlanarLaplaceLaw:
        """What is added to each row. ValueError for too many features."""
        return noise.PlanarLaplaceLaw.of(self.sensitivity + self.rounding, self.epsilon, d)

    def noise(self, d: int) -> NoiseLaw:
        """The noise is public: the modeler needs it to read distances."""
        return NoiseLaw(family="planar_laplace", sd=self.law(d).sd)

    def assess(self, rows: ScaledRows) -> Assessment:
        """Nothing of it depends on the data."""
        return Assessment()

    def draw(self, rows: ScaledRows, out: Matrix, told: Told = ignore) -> Assessment:
        """Noise the rows, a piece at a time."""
        noise.apply(self.law(rows.d), rows.blocks(), out, told, rows.n, finish=turn(rows.d, self.rotate))
        return Assessment()
