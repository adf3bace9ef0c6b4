"""Z = X + planar Laplace noise: private without a delta, and with less noise where one is granted."""

from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from blindopt.wire import Status
from curator_service.privacy import noise
from curator_service.privacy.calibration import slope_of_row
from curator_service.releases.mechanisms.mechanism import largest_move
from curator_service.releases.mechanisms.row_noise import RowMechanism


@dataclass(frozen=True, slots=True)
class PlanarLaplaceMechanism(RowMechanism):
    """Adds to each row a vector u of density proportional to exp(-a |u| / Delta), on a lattice; a = epsilon, or more.

    Without a ``delta`` claims epsilon-DP, for datasets that differ in the rows of one person, at most ``rows`` = k of
    them, each moved by Euclidean norm at most ``sensitivity`` = Delta in scaled units. Argument for k = 1: only that
    row's part of Z changes its law, and moving the centre of the density by w multiplies it by at most
    exp(epsilon |w| / Delta), by the triangle inequality (the K-norm mechanism of Hardt & Talwar 2010 with the Euclidean
    norm). For k rows the noise of each is that of epsilon / k: it is independent, so the k losses add up to epsilon at
    most. With a ``delta`` the slope a is larger, and the claim is (epsilon, delta)-DP: the loss exceeds epsilon with so
    little weight (docs/privacy.md); each of k rows gets an equal share of both, and both add up. The draw is exact on
    the lattice, and rounding to it is inside the sensitivity (``noise.planar`` has the argument). Each row is released
    by itself: no centring, no scaling by the data. After the noise Z is rotated at random where ``rotate``, and rounded
    to a public grid: this is post-processing, and no privacy is claimed for it. Claims nothing about y, nor about how
    many rows there are.
    """

    epsilon: Decimal
    sensitivity: float
    rounding: float = 0.0
    """How much further than ``sensitivity`` scaling in doubles may move a row."""
    rotate: bool = False
    rows: int = 1
    """Rows of one person."""
    delta: float | None = None

    name = family = "planar_laplace"
    version: ClassVar[int] = 2
    status: ClassVar[Status] = "sound"
    claim: ClassVar[str] = (
        "epsilon-differential privacy of each row's features, or of all rows of a person, for moves of at most the "
        "sensitivity in scaled units (planar Laplace noise): without a delta, or with one and less noise."
    )

    def law(self, d: int) -> noise.PlanarLaplaceLaw:
        """The law of the noise that is added to each row. Raises ValueError for too many features."""
        slope = slope_of_row(self.epsilon, self.delta, d, self.rows)
        return noise.PlanarLaplaceLaw.of(largest_move(self.sensitivity, self.rounding), slope, d)
