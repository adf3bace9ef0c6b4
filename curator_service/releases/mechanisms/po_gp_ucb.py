"""PO-GP-UCB's random projection, exactly as published, with a privacy theorem that is false."""

from dataclasses import dataclass
from decimal import Decimal
from math import log, sqrt
from typing import ClassVar

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.errors import ReleaseImpossible
from blindopt.wire import NoiseLaw, Status
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy import entropy
from curator_service.privacy.noise import OnProgress, ignore_progress
from curator_service.releases.mechanisms.mechanism import Assessment, Mechanism

# Below this share of the largest, a singular value is rounding error of the sums, not data.
_RANK_TOLERANCE = 1e-12
_LARGEST_R = 1_000_000


def omega(r: int, epsilon: float, delta: float) -> float:
    """Threshold of Algorithm 1, line 5: 16 sqrt(r ln(2/delta)) / epsilon * ln(16 r / delta).

    >>> round(omega(10, 1.0, 1e-5), 1)
    2932.3
    """
    return 16.0 * sqrt(r * log(2.0 / delta)) / epsilon * log(16.0 * r / delta)


def largest_r(sigma_min: float, epsilon: float, delta: float) -> int:
    """The paper's rule (section 3.4): the largest r with sigma_min >= omega, or 0 if there is none."""
    low, high = 0, 1
    while high < _LARGEST_R and sigma_min >= omega(high, epsilon, delta):
        low, high = high, 2 * high
    while high - low > 1:  # omega grows with r
        middle = (low + high) // 2
        low, high = (middle, high) if sigma_min >= omega(middle, epsilon, delta) else (low, middle)
    return low


@dataclass(frozen=True, slots=True, repr=False)
class Spectrum:
    """Column means (d,), and right singular vectors (d, d) with singular values (d,) of the centred X."""

    mean: Vector
    vectors: Matrix
    values: Vector

    @property
    def sigma_min(self) -> float:
        return float(self.values.min())


def spectrum(rows: ScaledRows) -> Spectrum:
    """One pass over the rows: means, and the d x d triangular factor R of the centred Gram matrix.

    X_c^T X_c = R^T R, merged block by block (means as in Chan et al. 1979) through QR, never through the
    Gram matrix itself: squaring would lose half of the digits of a small singular value.
    """
    mean, factor, seen = np.zeros(rows.d), np.zeros((0, rows.d)), 0
    for _, block in rows.blocks():
        m = len(block)
        centre = block.mean(axis=0)
        block -= centre
        shift = centre - mean
        step = shift * np.sqrt(seen * m / (seen + m))
        factor = np.asarray(np.linalg.qr(np.vstack([factor, block, step]), mode="r"))
        mean += shift * (m / (seen + m))
        seen += m
    _, values, vectors = np.linalg.svd(factor)
    # With fewer rows than features the factor has fewer rows: the missing singular values are 0.
    return Spectrum(mean, vectors.T, np.pad(values, (0, rows.d - len(values))))


def transform(of: Spectrum, projection: Matrix, threshold: float) -> Matrix:
    """The d x r matrix A with Z = (X - mean) A, for the secret ``projection`` M (d, r).

    Lines 6-10 of Algorithm 1: A = M / sqrt(r) where sigma_min >= omega; else
    A = V diag(sqrt(s^2 + omega^2) / s) V^T M / sqrt(r), which equals U sqrt(S^2 + omega^2) V^T M / sqrt(r).
    """
    scaled: Matrix = projection / sqrt(projection.shape[1])
    if of.sigma_min >= threshold:
        return scaled
    gain = np.hypot(of.values, threshold) / of.values
    lifted: Matrix = (of.vectors * gain) @ (of.vectors.T @ scaled)
    return lifted


@dataclass(frozen=True, slots=True)
class PoGpUcb(Mechanism):
    """Algorithm 1 of Kharkovskii et al. (2020): centre, project at random, lift small singular values.

    Theorem 1 there claims (epsilon, delta)-DP. It is false for n >= d+2 rows: Z is an affine function of
    the raw row, so d+1 known rows in general position reconstruct every other where r >= d, and the
    releases of almost any two neighbours are mutually singular (docs/privacy.md has the proof). Claims
    nothing. With ``sensitivity`` Delta other than 1, Algorithm 1 runs on X / Delta and Z is scaled back.
    """

    epsilon: Decimal
    delta: float
    sensitivity: float
    r: int

    name: ClassVar[str] = "po_gp_ucb"
    version: ClassVar[int] = 1
    status: ClassVar[Status] = "refuted"
    claim: ClassVar[str] = "As published, refuted: no differential privacy; d+1 known records reconstruct the others."

    def columns(self, d: int) -> int:
        return self.r

    def noise(self, d: int) -> NoiseLaw:
        return NoiseLaw(family="random_projection")

    @property
    def threshold(self) -> float:
        """The paper's omega times Delta, in scaled units."""
        return self.sensitivity * omega(self.r, float(self.epsilon), self.delta)

    def assess(self, rows: ScaledRows) -> Assessment:
        """Compute sigma_min, omega, the branch and the largest r that avoids the lift."""
        return self._assessment(self._spectrum(rows))

    def draw(self, rows: ScaledRows, out: Matrix, on_progress: OnProgress = ignore_progress) -> Assessment:
        """Fill ``out`` (n, r). The projection is dropped on return."""
        return self.project(rows, entropy.gaussian_matrix(rows.d, self.r), out, on_progress)

    def project(
        self, rows: ScaledRows, projection: Matrix, out: Matrix, on_progress: OnProgress = ignore_progress
    ) -> Assessment:
        """Fill ``out`` (n, r) by Algorithm 1 with ``projection`` (d, r), in two passes: the spectrum, then Z."""
        x_spectrum = self._spectrum(rows)
        matrix = transform(x_spectrum, projection, self.threshold)
        for index, block in rows.blocks():
            out[index] = (block - x_spectrum.mean) @ matrix
            on_progress(index.stop / rows.n)
        return self._assessment(x_spectrum)

    def _assessment(self, x_spectrum: Spectrum) -> Assessment:
        sigma_min = x_spectrum.sigma_min
        return Assessment(
            sigma_min=sigma_min,
            omega=self.threshold,
            branch="project" if sigma_min >= self.threshold else "lift",
            largest_r=largest_r(sigma_min / self.sensitivity, float(self.epsilon), self.delta),
        )

    def _spectrum(self, rows: ScaledRows) -> Spectrum:
        if rows.n <= rows.d:
            raise ReleaseImpossible(
                f"{rows.n} records are too few for {rows.d} features: Algorithm 1 needs more records than features"
            )
        x_spectrum = spectrum(rows)
        dependent = x_spectrum.values <= _RANK_TOLERANCE * x_spectrum.values.max()
        if dependent.any():
            # Columns that take part in a direction along which the data do not vary.
            weight = np.abs(x_spectrum.vectors[:, dependent]).max(axis=1)
            names = [f.column for f, w in zip(rows.features, weight, strict=True) if w > 1e-6]
            raise ReleaseImpossible(
                "the features are linearly dependent after centring, so Algorithm 1 has no singular vectors to "
                f"lift along: leave out one of {', '.join(names)}"
            )
        return x_spectrum
