"""Z = X + Gaussian noise: the simplest release that is provably private."""

from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from blindopt.arrays import Matrix
from blindopt.wire import NoiseLaw, Status
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy import noise
from curator_service.privacy.calibration import gaussian_sd
from curator_service.privacy.noise import OnProgress, ignore_progress
from curator_service.releases.mechanisms.grid import PublicGrid
from curator_service.releases.mechanisms.mechanism import Assessment, Mechanism, largest_move
from curator_service.releases.mechanisms.row_noise import draw_rows


@dataclass(frozen=True, slots=True)
class GaussianMechanism(Mechanism):
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

    name: ClassVar[str] = "gaussian"
    version: ClassVar[int] = 2
    status: ClassVar[Status] = "sound"
    claim: ClassVar[str] = (
        "(epsilon, delta)-differential privacy of each row's features, or of all rows of a person, for moves of at "
        "most the sensitivity in scaled units (analytic Gaussian mechanism)."
    )

    def sd(self, d: int) -> float:
        """Noise per coordinate, in scaled units."""
        return gaussian_sd(self.epsilon, self.delta, largest_move(self.sensitivity, self.rounding), d, self.rows)

    def noise(self, d: int) -> NoiseLaw:
        """The public law of the noise, which the modeler needs to estimate distances."""
        return NoiseLaw(family="gaussian", sd=self.sd(d))

    def draw(self, rows: ScaledRows, out: Matrix, on_progress: OnProgress = ignore_progress) -> Assessment:
        """Fill ``out`` (n, d) with noisy rows, a piece at a time."""
        law = noise.GaussianLaw(rows.d, self.sd(rows.d))
        draw_rows(law, PublicGrid.of(law.sd), rows, out, on_progress, rotate=self.rotate)
        return Assessment()
