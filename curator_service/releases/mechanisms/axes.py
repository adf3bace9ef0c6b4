"""Z = X V plus noise for each row by itself: V (d, r) are the axes that hold most of the variance.

Of a public sample, or of the records: then from their Gram matrix with exact integer noise (docs/privacy.md, "Release
on axes").
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from math import sqrt
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.errors import Invalid, NumericalFailure, ReleaseImpossible
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy import noise
from curator_service.privacy.calibration import AXES_MAX, gaussian_sd, of_axes, on_axes
from curator_service.privacy.noise import OnProgress, gaussian, ignore_progress
from curator_service.privacy.noise.lattice import check_finite
from curator_service.privacy.search_noise import best_columns
from curator_service.releases.mechanisms.mechanism import Assessment, Drawn, Mechanism, largest_move
from curator_service.releases.mechanisms.row_noise import (
    GaussianMechanism,
    PlanarLaplaceMechanism,
    PublicGrid,
    RowMechanism,
)

COLUMNS = (2, 3, 4, 5, 7, 10, 14, AXES_MAX)
STRETCH = 2.0**-38
"""By which share more than a row computed columns of V may move: their largest singular value is at most 1 + this."""
SAMPLE_ROWS = 5_000
"""Rows of a public sample that its axes are computed from, at most."""
RECORDS = 2**24
"""Private axes are refused where the noise would not fit with so many records: more than a dataset has by default."""
_SHOWN = 350
_BLOCK = 4_096
"""Rows whose Gram matrix, in steps, is exact in doubles."""
_STEP_BITS, _STEP_BITS_MIN = 20, 8
_SCALE_MAX = 2.0**49
_PAID = Decimal("1e-9")
"""The share of epsilon and delta that pays for the lattice of the Gram matrix."""
Gram = NDArray[np.int64]


@dataclass(frozen=True, slots=True, repr=False)
class Axes(Mechanism):
    """Releases the rows of a study of ``d`` features on r axes, ``rows`` of them a person's.

    Claims (epsilon, delta)-DP for rows that move by at most the release's sensitivity in scaled units. Public axes: V
    is fixed, and a row moved by w moves X V by w V, no longer than w, so that the noise of ``on_axes`` in r dimensions
    keeps its promise. Private axes: V is post-processing of the noisy Gram matrix, and both losses add up.
    """

    spec: wire.AxesRelease
    d: int
    rounding: float = 0.0
    """How much further than the sensitivity scaling in doubles may move a row; 2^51 times it bounds a row's norm."""
    rows: int = 1
    axes: Matrix | None = None

    name: ClassVar[str] = "axes"
    version: ClassVar[int] = 1
    status: ClassVar[wire.Status] = "sound"
    claim: ClassVar[str] = (
        "(epsilon, delta)-differential privacy of each record's features, or of all records of a person, for moves of "
        "at most the sensitivity in scaled units: on the few axes that hold most of the variance of a public sample, "
        "or of the records, found with noise."
    )

    @property
    def sensitivity(self) -> float:
        return self.spec.sensitivity

    @property
    def delta(self) -> float | None:
        return self.spec.delta

    def columns(self, d: int) -> int:
        return self.spec.r or min(AXES_MAX, d)

    def noise(self, d: int) -> wire.NoiseLaw:
        return self.noise_of(self.columns(d))

    def noise_of(self, r: int) -> wire.NoiseLaw:
        return self.row_noise(r).noise(r)

    def row_noise(self, r: int) -> RowMechanism:
        """The noise on ``r`` axes, for rows moved by the sensitivity and all that rounding adds."""
        local = on_axes(self.spec, r, self.rows)
        epsilon, delta, moved = wire.amount(local.epsilon), local.delta, self.spec.sensitivity * (1 + 2 * STRETCH)
        rounding = self.rounding * (1 + 2 * STRETCH) + self.slack(r)
        if isinstance(local, wire.GaussianRelease):
            return GaussianMechanism(epsilon, local.delta, moved, rounding, rows=self.rows)
        return PlanarLaplaceMechanism(epsilon, moved, rounding, rows=self.rows, delta=delta)

    def slack(self, r: int) -> float:
        """Bound on how much further rounding errors of X V may move a row of Z: as ``GaussianProjection.slack``.

        A sum of d products errs by at most (d + 2) 2^-53 |x| in any order, for a column of norm 1: over r columns and
        two rows 2 (d + 2) 2^-53 |x| sqrt(r), and |x| <= 2^51 ``rounding``.
        """
        return self.rounding * (self.d + 2) * sqrt(r) / 2

    def along(self, axes: Matrix) -> "Axes":
        """The mechanism on ``axes`` (d, r). Raises NumericalFailure unless their columns are orthonormal."""
        error = float(np.linalg.norm(axes.T @ axes - np.eye(axes.shape[1])))
        if not error <= STRETCH / 2:  # what the product itself errs by is less than as much again
            raise NumericalFailure("the axes are not orthonormal: nothing was drawn")
        return replace(self, spec=self.spec.model_copy(update={"r": axes.shape[1]}), axes=axes)

    def of_sample(self, sample: ScaledRows, on_all: wire.NoiseLaw | None = None) -> "Axes":
        """The mechanism on axes of public rows: as many as let a search learn most, unless the draft has a number.

        ``on_all``: noise on all features, as a further choice: then there are as many axes as features.
        """
        rows = sample.sample(SAMPLE_ROWS)
        check_finite(rows)
        values = rows - rows.mean(axis=0)
        every = np.linalg.eigh(values.T @ values)[1][:, ::-1]
        shown = rows[:: -(-len(rows) // _SHOWN)]
        laws = {r: self.noise_of(r) for r in COLUMNS if r <= self.d} if self.spec.r is None else {}
        r = self.spec.r or best_columns(shown, every, laws | ({} if on_all is None else {self.d: on_all}))
        return self.along(np.ascontiguousarray(every[:, :r]))

    def prepare(self, rows: ScaledRows, on_progress: OnProgress = ignore_progress) -> "Axes":
        """The mechanism on its axes. Private ones are drawn: point of no return, as ``draw``."""
        if self.axes is not None:
            return self
        if self.spec.axes == "public":
            raise ReleaseImpossible("the public sample of the release is missing: name another one in a new draft")
        gram = PrivateGram.of(self, rows.n)
        return self._of_gram(gram, gram.noisy(gram.total(rows, on_progress)), rows.n)

    def _of_gram(self, gram: "PrivateGram", noisy: Matrix, n: int) -> "Axes":
        """The mechanism on the axes of a noisy Gram matrix, in squared steps: post-processing.

        Eigenvalues count as far as they exceed the spectral norm of the noise, sd sqrt(2 d). With fewer than two such
        axes all features get noise, with what the axes leave of epsilon and delta.
        """
        values, vectors = np.linalg.eigh(noisy)
        above = np.maximum(values[::-1] - gram.scale * sqrt(2 * self.d), 0.0)
        clear = int((above > 0).sum())
        r = self.spec.r
        if r is None:
            remainder = max(float(np.trace(noisy)) - float(above.sum()), 0.0) / max(self.d - clear, 1)
            variances = np.where(above > 0, above, remainder) * gram.step**2 / n
            laws = {r: self.noise_of(r) for r in (*(r for r in COLUMNS if r <= clear), self.d)}
            r = best_columns(variances, None, laws) if clear >= 2 else self.d
        if r == self.d:
            return self.along(np.eye(self.d))
        return self.along(np.ascontiguousarray(vectors[:, ::-1][:, :r]))

    def draw(self, rows: ScaledRows, out: Matrix, on_progress: OnProgress = ignore_progress) -> Assessment:
        """Fill ``out`` (n, r). Raises ReleaseImpossible without axes, see ``prepare``."""
        if (axes := self.axes) is None:
            raise ReleaseImpossible("the axes of the release are not known yet")
        law = self.row_noise(axes.shape[1]).law(axes.shape[1])

        def projected() -> Iterator[tuple[slice, Matrix]]:
            for index, block in rows.blocks():
                yield index, block @ axes

        noise.apply(law, projected(), out, on_progress, rows.n, finish=PublicGrid.of(law.sd).round)
        return Assessment()

    def release(self, rows: ScaledRows, new_file: Callable[[int, int], Matrix], on_progress: OnProgress) -> Drawn:
        """Find private axes first, for half of the time. Point of no return, as ``draw``."""
        if self.axes is not None:
            return Mechanism.release(self, rows, new_file, on_progress)
        ready = self.prepare(rows, lambda share: on_progress(share / 2))
        drawn = Mechanism.release(ready, rows, new_file, lambda share: on_progress((1 + share) / 2))
        return replace(drawn, mechanism=ready)


@dataclass(frozen=True, slots=True)
class PrivateGram:
    """The sum of x x' over the records, in squared ``step``, each x rounded to steps and shrunk to ``reach`` of them.

    With Gaussian noise of ``scale``: (epsilon, delta)-DP as ``of_axes`` says, for rows that move by the sensitivity.
    The vector of C_jj and sqrt(2) C_jl, j < l, moves by at most ``moves`` squared steps.
    """

    d: int
    radius: float
    step: float
    reach: float
    moves: float
    scale: float

    @classmethod
    def of(cls, axes: Axes, n: int) -> "PrivateGram":
        """The Gram matrix of ``n`` records. Raises Invalid for noise that integers do not hold."""
        spec, d = axes.spec, axes.d
        assert spec.radius is not None
        radius = min(spec.radius, 2.0**51 * axes.rounding) if axes.rounding else spec.radius
        epsilon, delta = of_axes(spec)
        moved = largest_move(spec.sensitivity, axes.rounding)
        for bits in range(min(_STEP_BITS, (61 - n.bit_length()) // 2), _STEP_BITS_MIN - 1, -1):
            step = radius / 2**bits
            # Rounding moves each end of a move by sqrt(d) / 2 steps at most, and errors of doubles by less than one.
            reach = 2**bits + sqrt(d) / 2 + 1
            steps = min(moved / step + sqrt(d) + 2, 2 * reach)
            moves = 2 * reach * steps * axes.rows * (1 + 2.0**-40)
            scale = gaussian_sd(epsilon * (1 - _PAID), delta * (1 - float(_PAID)), moves, d * (d + 1) // 2)
            # Discrete noise in all coordinates costs 2 eta more than continuous noise (docs/privacy.md).
            if 300 * d**2 / scale**2 <= float(_PAID * epsilon) and scale < _SCALE_MAX:
                break
        else:
            raise Invalid.at(
                "release.radius", "the noise of private axes does not fit: take more epsilon or less radius"
            )
        return cls(d, radius, step, reach, moves, scale)

    def total(self, rows: ScaledRows, on_progress: OnProgress = ignore_progress) -> Gram:
        """The Gram matrix of the records (d, d), exact."""
        total: Gram = np.zeros((self.d, self.d), dtype=np.int64)
        for index, block in rows.blocks(_BLOCK):
            check_finite(block)
            steps = self.steps(block)
            total += (steps.T @ steps).astype(np.int64)
            on_progress(index.stop / rows.n)
        return total

    def steps(self, block: Matrix) -> Matrix:
        """Rows (m, d) in whole steps, none longer than ``reach``."""
        length = np.linalg.norm(block, axis=1, keepdims=True)
        steps: Matrix = np.rint(block * (self.radius / np.maximum(length, self.radius)) / self.step)
        if (np.square(steps).sum(axis=1) > self.reach**2).any():
            raise NumericalFailure("a record is longer than its bound: nothing was drawn")
        return steps

    def noisy(self, total: Gram) -> Matrix:
        """The matrix with noise, one draw for both triangles: of ``scale`` on the diagonal, over sqrt(2) beside it."""
        diagonal, (above, beside) = np.arange(self.d), np.triu_indices(self.d, 1)
        noisy = total.astype(np.float64)
        noisy[diagonal, diagonal] = total[diagonal, diagonal] + gaussian.integers(self.d, self.scale)
        half = math.nextafter(self.scale / sqrt(2), math.inf) if len(above) else 1.0
        noisy[above, beside] = noisy[beside, above] = total[above, beside] + gaussian.integers(len(above), half)
        return noisy
