"""Z = X + Gaussian noise: the simplest release that is provably private."""

from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from blindopt.wire import Status
from curator_service.privacy import noise
from curator_service.privacy.calibration import gaussian_sd
from curator_service.releases.mechanisms.mechanism import largest_move
from curator_service.releases.mechanisms.row_noise import RowMechanism


@dataclass(frozen=True, slots=True)
class GaussianMechanism(RowMechanism):
    """Adds N(0, sd^2) to each of the d coordinates of each row; where ``rotate``, rotates the result at random.

    Claims (epsilon, delta)-DP for datasets that differ in the rows of one person, at most ``rows`` of them, each moved
    by Euclidean norm at most ``sensitivity`` in scaled units. Argument: only the coordinates of those rows change, by
    sqrt(``rows``) ``sensitivity`` together at most; the analytic Gaussian mechanism (Balle & Wang 2018, Theorem 8)
    gives the noise; rounding to the lattice is inside the sensitivity, and the discrete Gaussian is so close to
    the continuous one that delta holds all the same (docs/privacy.md). No centring and no scaling by the
    data. The rotation and the rounding to a public grid come after the noise and do not depend on the data: they are
    post-processing, and no privacy is claimed for them. Claims nothing about y, nor about how many rows there are.
    """

    epsilon: Decimal
    delta: float
    sensitivity: float
    rounding: float = 0.0
    """How much further than ``sensitivity`` scaling in doubles may move a row."""
    rotate: bool = False
    rows: int = 1
    """Rows of one person."""

    name = family = "gaussian"
    version: ClassVar[int] = 2
    status: ClassVar[Status] = "sound"
    claim: ClassVar[str] = (
        "(epsilon, delta)-differential privacy of each row's features, or of all rows of a person, for moves of at "
        "most the sensitivity in scaled units (analytic Gaussian mechanism)."
    )

    def sd(self, d: int) -> float:
        """Noise per coordinate, in scaled units."""
        return gaussian_sd(self.epsilon, self.delta, largest_move(self.sensitivity, self.rounding), d, self.rows)

    def law(self, d: int) -> noise.GaussianLaw:
        """The law of the noise that is added to each row."""
        return noise.GaussianLaw(d, self.sd(d))
