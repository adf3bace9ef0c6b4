"""Z = X + noise for each row by itself, Gaussian or planar Laplace: releases that are provably private.

Or Z = sqrt(d/r) X P + Gaussian noise: fewer columns than features, averaged over a secret projection. A secret rotation
and rounding to a public grid come after the noise. No claim rests on these two.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import sqrt
from typing import ClassVar, Literal, Self

import numpy as np

from blindopt.arrays import Matrix
from blindopt.wire import NoiseLaw, Status
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy import entropy, noise
from curator_service.privacy.calibration import gaussian_sd, projected_gaussian_sd, slope_of_row
from curator_service.privacy.noise import OnProgress, ignore_progress
from curator_service.privacy.noise.lattice import check_finite
from curator_service.releases.mechanisms.mechanism import Assessment, Mechanism, largest_move

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

    rotate: bool

    @abstractmethod
    def law(self, d: int) -> noise.GaussianLaw | noise.PlanarLaplaceLaw:
        """The law of the noise that is added to each row."""

    def noise(self, d: int) -> NoiseLaw:
        law = self.law(d)
        return NoiseLaw(family=law.family, sd=law.sd)

    def draw(self, rows: ScaledRows, out: Matrix, on_progress: OnProgress = ignore_progress) -> Assessment:
        law = self.law(rows.d)
        grid, rotation = PublicGrid.of(law.sd), entropy.orthonormal(rows.d, rows.d) if self.rotate else None

        def finish(block: Matrix) -> Matrix:
            return grid.round(block if rotation is None else block @ rotation)

        noise.apply(law, rows.blocks(), out, on_progress, rows.n, finish=finish)
        return Assessment()


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

    name = "gaussian"
    version: ClassVar[int] = 2
    status: ClassVar[Status] = "sound"
    claim: ClassVar[str] = (
        "(epsilon, delta)-differential privacy of each record's features, or of all records of a person, for moves of "
        "at most the sensitivity in scaled units (analytic Gaussian mechanism)."
    )

    def sd(self, d: int) -> float:
        return gaussian_sd(self.epsilon, self.delta, largest_move(self.sensitivity, self.rounding), d, self.rows)

    def law(self, d: int) -> noise.GaussianLaw:
        return noise.GaussianLaw(d, self.sd(d))


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

    With ``promise`` one_feature all norms are sums of the coordinates' sizes, so that the noise of a coordinate is
    independent Laplace noise; never with a ``delta``, which gains nothing there.
    """

    epsilon: Decimal
    sensitivity: float
    rounding: float = 0.0
    """How much further than ``sensitivity`` scaling in doubles may move a row."""
    rotate: bool = False
    rows: int = 1
    """Rows of one person."""
    delta: float | None = None
    promise: Literal["euclidean", "one_feature"] = "euclidean"

    name = "planar_laplace"
    version: ClassVar[int] = 2
    status: ClassVar[Status] = "sound"
    claim: ClassVar[str] = (
        "epsilon-differential privacy of each record's features, or of all records of a person, for moves of at most "
        "the sensitivity in scaled units (planar Laplace noise): without a delta, or with one and less noise. Or of "
        "one feature at a time, without a delta (Laplace noise in each)."
    )

    def law(self, d: int) -> noise.PlanarLaplaceLaw:
        """The law of the noise that is added to each row. Raises ValueError for too many features."""
        slope = slope_of_row(self.epsilon, self.delta, d, self.rows)
        moved, is_sum = largest_move(self.sensitivity, self.rounding), self.promise == "one_feature"
        return noise.PlanarLaplaceLaw.of(moved, slope, d, per_coordinate=is_sum)


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
