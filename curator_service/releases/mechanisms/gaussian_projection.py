"""Z = sqrt(d/r) X P + Gaussian noise: fewer columns than features, averaged over a secret projection."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import sqrt
from typing import ClassVar

from blindopt.arrays import Matrix
from blindopt.wire import NoiseLaw, Status
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy import entropy, noise
from curator_service.privacy.calibration import projected_gaussian_sd
from curator_service.privacy.noise import OnProgress, ignore_progress
from curator_service.releases.mechanisms.mechanism import Assessment, Mechanism, largest_move
from curator_service.releases.mechanisms.row_noise import PublicGrid

PROJECTED_FEATURES_MIN = 13
"""With fewer features plain noise gave better distances in every case compared, whatever r and epsilon."""


@dataclass(frozen=True, slots=True)
class GaussianProjection(Mechanism):
    """Projects each row at random to r < d columns, then adds N(0, sd^2) to each.

    P (d, r) has orthonormal columns, uniform (Haar), from the operating system's entropy: drawn after the dataset is
    fixed, once for each release, and dropped. Claims (epsilon, delta)-DP for datasets that differ in one row, moved by
    v of Euclidean norm at most ``sensitivity`` in scaled units. Argument (Theorem A of docs/privacy.md): Z is
    post-processing of (P, Z). P does not depend on the data, so the delta of that pair is the mean over P of the delta
    of the Gaussian mechanism whose mean moves by sqrt(d/r) |v P|; |v P|^2 / |v|^2 is Beta(r/2, (d-r)/2), whatever the
    direction of v. The noise is calibrated to that mean, with room for rounding errors. Rounding Z to a
    public grid is post-processing. The claim does not rest on the secrecy of P. Claims neither zCDP nor any composition
    finer than (epsilon, delta), and nothing about y or about how many rows there are.
    """

    epsilon: Decimal
    delta: float
    sensitivity: float
    r: int
    rounding: float = 0.0
    """How much further than ``sensitivity`` scaling in doubles may move a row; 2^51 times it bounds a row's norm."""

    name: ClassVar[str] = "gaussian_projection"
    version: ClassVar[int] = 2
    status: ClassVar[Status] = "sound"
    claim: ClassVar[str] = (
        "(epsilon, delta)-differential privacy of each record's features, for a move of at most the sensitivity in "
        "scaled units (Gaussian mechanism, averaged over a random orthonormal projection)."
    )

    def columns(self, d: int) -> int:
        return self.r

    def slack(self, d: int) -> float:
        """Bound on how much further rounding errors of X P may move a row of Z.

        A sum of d products errs by at most (d + 2) 2^-53 |x| |p| in any order, with p a column of sqrt(d/r) P, of norm
        sqrt(d/r): over r columns and two rows 2 (d + 2) 2^-53 |x| sqrt(d), and |x| <= 2^51 ``rounding``.
        """
        return self.rounding * (d + 2) * sqrt(d) / 2

    def sd(self, d: int) -> float:
        """Noise per coordinate of Z, in scaled units. ValueError unless r < d."""
        moved = largest_move(self.sensitivity, self.rounding)
        return projected_gaussian_sd(self.epsilon, self.delta, moved, d, self.r, self.slack(d))

    def noise(self, d: int) -> NoiseLaw:
        return NoiseLaw(family="gaussian_projection", sd=self.sd(d))

    def draw(self, rows: ScaledRows, out: Matrix, on_progress: OnProgress = ignore_progress) -> Assessment:
        """Fill ``out`` (n, r). The projection is dropped on return."""
        return self.project(rows, entropy.orthonormal(rows.d, self.r), out, on_progress)

    def project(
        self, rows: ScaledRows, columns: Matrix, out: Matrix, on_progress: OnProgress = ignore_progress
    ) -> Assessment:
        """Fill ``out`` (n, r) with noisy rows, projected to orthonormal ``columns`` (d, r), a piece at a time."""
        law, secret = noise.GaussianLaw(self.r, self.sd(rows.d)), sqrt(rows.d / self.r) * columns

        def projected() -> Iterator[tuple[slice, Matrix]]:
            for index, block in rows.blocks():
                yield index, block @ secret

        noise.apply(law, projected(), out, on_progress, rows.n, finish=PublicGrid.of(law.sd).round)
        return Assessment()
