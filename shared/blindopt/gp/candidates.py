"""Candidates in the form in which covariances with them are computed: centred, scaled, and of full column rank."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from blindopt.arrays import Mask, Matrix, Rows, Vector
from blindopt.errors import NumericalFailure
from blindopt.gp.kernels import Kernel

Precision = type[np.float64] | type[np.float32]
_BLOCK_NUMBERS = 1 << 15  # numbers that are read together
_PRODUCT_MAX = 1e3  # squared norm up to which |a|^2 + |b|^2 - 2 a.b keeps 12 digits of what an exponent needs
_RANK_TOL = 1e-10  # squared singular values below this share of the largest may be zero
_FLAT_TOL = 1e-12  # a column may be dropped if no entry is above this share of the largest
_CONSTANT = 1e-12  # share of its largest size below which the standard deviation of a column is rounding
_SAMPLE = 1 << 10  # rows that show, nearly always, that all columns are spanned


class Span(NamedTuple):
    """What posteriors of the same candidates share: it says how coordinates are computed."""

    centre: Vector
    """(r,), about the mean."""
    basis: Matrix | None
    """Orthonormal (r, q); without one, all r columns are kept."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """How candidates (m, r) become coordinates (m, q) in units of the lengthscale, the same for all candidates.

    Centring and rotating keep all distances, so dropping the directions that the candidates do not span loses nothing.
    """

    span: Span
    factor: float | Vector
    scales: Vector | None = None
    """By which coordinates are multiplied before they are centred."""

    @classmethod
    def of(cls, candidates: Matrix, kernel: Kernel, span: Span | None, scales: Vector | None = None) -> "Scaling":
        """The one of ``candidates`` (n, r) whose coordinates are multiplied by ``scales`` (r,).

        ``span`` is that of the candidates before; None: columns are of different sizes, which would hide it.
        """
        if span is None or (scales is not None and span.basis is not None):  # what is spanned is not orthonormal
            return cls(span_of(candidates, scales), 1.0 / kernel.lengthscale, scales)
        return cls(span, (1.0 if scales is None else scales) / kernel.lengthscale)

    @property
    def rank(self) -> int:
        """q: coordinates of a candidate."""
        centre, basis = self.span
        return len(centre) if basis is None else basis.shape[1]

    def __call__(self, candidates: Matrix) -> Matrix:
        """Coordinates (m, q) of some candidates (m, r)."""
        centre, basis = self.span
        coordinates: Matrix = (candidates if self.scales is None else candidates * self.scales) - centre
        if basis is not None:
            coordinates = coordinates @ basis
        coordinates *= self.factor
        return coordinates


class Candidates:
    """Candidates Z (n, r) as ``extended`` (n, q + 2) numbers of ``dtype``, where q <= r is their rank after centring.

    ``extended`` holds the q coordinates of ``scaling``, their squared norm, and a one. The squared distances of
    candidates from others are then the matrix product ``extended @ dual``. Where norms are too large for that, or the
    kernel is not smooth at zero, distances are computed from differences.

    Refined candidates, whose outcomes lie at places of less noise, have the kernel ``refined`` with the others.

    ``cov_rounding`` bounds the rounding error of a correlation, in units of the machine epsilon of ``dtype``; it and
    the way to compute follow from the ``largest`` squared norm. Raises NumericalFailure if a number is not finite.
    """

    def __init__(
        self, candidates: Matrix, kernel: Kernel, dtype: Precision, scaling: Scaling, refined: Kernel | None = None
    ) -> None:
        n, q = len(candidates), scaling.rank
        self._kernel, self._refined, self._scaling = kernel, refined, scaling
        self.width = q + 2
        self.extended: Matrix = np.empty((n, q + 2), dtype)
        largest, start = 0.0, 0
        with np.errstate(over="ignore", invalid="ignore"):
            for block in _blocks(candidates):
                coordinates, extended = scaling(block), self.extended[start : start + len(block)]
                squared_norms = np.einsum("ij,ij->i", coordinates, coordinates)
                extended[:, :q], extended[:, q], extended[:, q + 1] = coordinates, squared_norms, 1.0
                largest, start = max(largest, float(squared_norms.max())), start + len(block)
                if not np.isfinite(squared_norms.sum()) and not np.isfinite(extended[:, :q]).all():
                    raise NumericalFailure("the candidates are too far apart for the kernel's lengthscale")
        self.compare(largest)

    def compare(self, largest: float) -> None:
        """Compute covariances with candidates whose squared norms, and those of the own ones, are up to ``largest``."""
        self.largest = largest
        self.by_products, self.cov_rounding = precision_of(self._kernel, largest)

    def dual(self, rows: Rows) -> Matrix:
        """Columns (q + 2, m) whose inner products with ``extended`` are squared distances from candidates ``rows``."""
        return _dual(self.extended[rows])

    def dual_of(self, candidates: Matrix) -> Matrix:
        """Columns (q + 2, m), as of ``dual``, of other candidates (m, r)."""
        coordinates = self._scaling(candidates)
        squared_norms = np.einsum("ij,ij->i", coordinates, coordinates)
        extended = np.column_stack([coordinates, squared_norms, np.ones(len(coordinates))])
        return _dual(extended.astype(self.extended.dtype))

    def covariance(self, rows: slice, dual: Matrix, is_refined: Mask | None = None) -> Matrix:
        """Kernel of candidates ``rows`` with those of ``dual`` (q + 2, k): (m, k) numbers of ``dtype`` in C order.

        ``is_refined`` (k,) says with which of them the kernel ``refined`` holds, whose length-scale is the same.
        """
        if self.by_products:
            extended = self.extended[rows]
            # One column: a product with a vector takes half the time of one with a matrix.
            squared: Matrix = (extended @ dual[:, 0])[:, None] if dual.shape[1] == 1 else extended @ dual
            np.maximum(squared, 0.0, out=squared)
        else:
            from scipy.spatial.distance import cdist  # late, for a fast start of the services

            squared = cdist(self.extended[rows, :-2], -0.5 * dual[:-2].T, "sqeuclidean").astype(self.extended.dtype)
        if is_refined is not None and is_refined.any():
            assert self._refined is not None, "only a posterior with such a kernel refines a candidate"
            for kernel, columns in ((self._kernel, ~is_refined), (self._refined, is_refined)):
                of_kernel = squared[:, columns]
                kernel.correlate(of_kernel)
                squared[:, columns] = kernel.variance * of_kernel
            return squared
        self._kernel.correlate(squared)
        if self._kernel.variance != 1.0:
            squared *= self._kernel.variance
        return squared


def precision_of(kernel: Kernel, largest: float) -> tuple[bool, float]:
    """Whether products give covariances of candidates of such squared norms, and the bound on a rounding error."""
    by_products = kernel.smooth and largest <= _PRODUCT_MAX
    return by_products, largest if by_products else 8.0 * largest**0.5


def _dual(extended: Matrix) -> Matrix:
    rows = extended.T
    dual: Matrix = rows * -2.0
    dual[-2], dual[-1] = rows[-1], rows[-2]
    return dual


@np.errstate(over="ignore", invalid="ignore")
def span_of(candidates: Matrix, scales: Vector | None = None) -> Span:
    """The span of candidates (n, r), whose basis spans what they span after centring, in columns times ``scales`` (r,).

    It is None if they span all r columns, or if overflow hides whether they do. Raises NumericalFailure if a number is
    not finite.
    """
    n, r = candidates.shape
    sample = _scaled(np.asarray(candidates[:: max(1, n // _SAMPLE)]), scales)
    centre = sample.mean(axis=0)
    spread = sum(float(((block - centre) ** 2).sum()) for block in _blocks(candidates, scales))
    if not np.isfinite(spread):
        if not all(np.isfinite(block).all() for block in _blocks(candidates, scales)):
            raise NumericalFailure("the candidates hold a number that is not finite")
        return Span(np.array(_scaled(candidates[0], scales)), None)
    # Other rows only add to what a sample spans, and all eigenvalues together are at most the sum of the norms.
    if float(np.linalg.eigvalsh((sample - centre).T @ (sample - centre))[0]) > _RANK_TOL * spread:
        return Span(centre, None)
    total, gram = np.zeros(r), np.zeros((r, r))
    for block in _blocks(candidates, scales):
        shifted = block - centre
        total += np.ones(len(shifted)) @ shifted
        gram += shifted.T @ shifted
    centre = centre + total / n
    gram -= np.outer(total, total) / n
    values, vectors = np.linalg.eigh(gram)
    doubtful = values <= _RANK_TOL * values[-1]
    if not doubtful.any():
        return Span(centre, None)
    extent = np.zeros(r)
    for block in _blocks(candidates, scales):
        np.maximum(extent, np.abs((block - centre) @ vectors).max(axis=0), out=extent)
    return Span(centre, vectors[:, ~(doubtful & (extent <= _FLAT_TOL * extent.max()))])


def column_scales(candidates: Matrix) -> Vector:
    """What each column (r,) is multiplied by to have a standard deviation of 1; 0 where it is constant.

    A column is constant if its standard deviation is below 1e-12 of its largest size, by which it is divided first.
    Raises NumericalFailure if a number is not finite.
    """
    n, r = candidates.shape
    largest, mean, squares = np.zeros(r), np.zeros(r), np.zeros(r)
    for block in _blocks(candidates):
        np.maximum(largest, np.abs(block).max(axis=0), out=largest)
    if not np.isfinite(largest).all():
        raise NumericalFailure("the candidates hold a number that is not finite")
    sizes = np.where(largest > 0, largest, 1.0)
    for block in _blocks(candidates):
        mean += (block / sizes).sum(axis=0) / n
    for block in _blocks(candidates):
        squares += ((block / sizes - mean) ** 2).sum(axis=0) / n
    sd = np.sqrt(squares)
    with np.errstate(divide="ignore", over="ignore"):
        scales = 1.0 / sd / sizes
    return np.where((sd > _CONSTANT) & np.isfinite(scales), scales, 0.0)


def _blocks(candidates: Matrix, scales: Vector | None = None) -> Iterator[Matrix]:
    size = max(1, _BLOCK_NUMBERS // max(1, candidates.shape[1]))
    return (_scaled(np.asarray(candidates[at : at + size]), scales) for at in range(0, len(candidates), size))


def _scaled(block: Matrix, scales: Vector | None) -> Matrix:
    return block if scales is None else block * scales
