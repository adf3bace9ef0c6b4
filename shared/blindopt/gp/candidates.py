"""Candidates as the posterior reads them: centred, in units of the lengthscale, in as few columns as they span."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from blindopt.arrays import Matrix, Vector
from blindopt.errors import NumericalFailure
from blindopt.gp.kernels import Kernel

Precision = type[np.float64] | type[np.float32]
Frame = tuple[Vector, Matrix | None]
_BLOCK = 1 << 15  # numbers read together
_PRODUCT_MAX = 1e3  # squared norm up to which |a|^2 + |b|^2 - 2 a.b keeps 12 digits of what an exponent needs
_SPANNED = 1e-10  # squared singular values below this share of the largest may be none
_FLAT = 1e-12  # what a column may reach, as a share of the largest, and be dropped


class Points:
    """Candidates (n, r), kept as (n, q + 2) numbers of ``dtype``, q <= r their rank after centring.

    A rotation and a shift keep all distances, so dropping what the candidates do not span is lossless. Beside the
    q coordinates stand the squared norm and a one: a squared distance is then one inner product, and many are one
    matrix product. Where norms are too large for that, or the kernel is too sharp at zero, distances are
    taken from differences. ``frame`` is what an earlier one of the same candidates found, if there was one.
    Raises NumericalFailure where a number is not finite.
    """

    def __init__(
        self, candidates: Matrix, kernel: Kernel, dtype: Precision, *, apart: bool = False, frame: Frame | None = None
    ) -> None:
        n = len(candidates)
        self._kernel = kernel
        with np.errstate(over="ignore", invalid="ignore"):
            self.frame = frame_of(candidates) if frame is None else frame
            centre, basis = self.frame
            q = candidates.shape[1] if basis is None else basis.shape[1]
            self.columns = q + 2
            self.kept: Matrix = columns(n, q + 2, dtype) if apart else np.empty((n, q + 2), dtype)
            largest, place = 0.0, 0
            for block in _blocks(candidates):
                at, part = block - centre, self.kept[place : place + len(block)]
                if basis is not None:
                    at = at @ basis
                at *= 1.0 / kernel.lengthscale
                squares = np.einsum("ij,ij->i", at, at)
                part[:, :q], part[:, q], part[:, q + 1] = at, squares, 1.0
                largest, place = max(largest, float(squares.max())), place + len(block)
                if not np.isfinite(squares.sum()) and not np.isfinite(at).all():
                    raise NumericalFailure("the candidates are too far apart for the kernel's lengthscale")
        self.by_products = kernel.smooth and largest <= _PRODUCT_MAX
        # How many times rounding of one number an error of a covariance may be.
        self.strain = largest if self.by_products else 8.0 * largest**0.5

    def queries(self, rows: NDArray[np.intp]) -> Matrix:
        """Rows in the form that ``covariance`` takes as asked ones: (q + 2, m)."""
        asked = self.kept[rows].T.copy()
        asked[:-2] *= -2.0
        asked[-2:] = asked[-1], asked[-2].copy()
        return asked

    def covariance(self, rows: NDArray[np.intp] | slice, asked: Matrix) -> Matrix:
        """The kernel of candidates ``rows`` with asked ones, as (m, k) numbers of ``dtype`` in C order."""
        if self.by_products:
            kept = self.kept[rows] if isinstance(rows, slice) else self.kept.take(rows, axis=0)
            # One column: a product with a vector takes half the time of one with a matrix.
            squared: Matrix = (kept @ asked[:, 0])[:, None] if asked.shape[1] == 1 else kept @ asked
            np.maximum(squared, 0.0, out=squared)
        else:
            squared = cdist(self.kept[rows, :-2], -0.5 * asked[:-2].T, "sqeuclidean").astype(self.kept.dtype)
        self._kernel.correlate(squared)
        if self._kernel.variance != 1.0:
            squared *= self._kernel.variance
        return squared


def frame_of(candidates: Matrix) -> Frame:
    """The mean, and an orthonormal basis (r, q) of what the centred candidates span.

    None where they span all columns, or may: these are kept as they are.
    """
    n, r = candidates.shape
    start, total, gram = np.array(candidates[0]), np.zeros(r), np.zeros((r, r))
    for block in _blocks(candidates):
        shifted = block - start
        total += shifted.T @ np.ones(len(shifted))
        gram += shifted.T @ shifted
    if not (np.isfinite(gram).all() and np.isfinite(start).all()):
        if not all(np.isfinite(block).all() for block in _blocks(candidates)):
            raise NumericalFailure("the candidates hold a number that is not finite")
        return start, None
    centre = start + total / n
    values, vectors = np.linalg.eigh(gram - np.outer(total, total) / n)
    doubtful = values <= _SPANNED * values[-1]
    if not doubtful.any():
        return centre, None
    reached = np.zeros(r)
    for block in _blocks(candidates):
        np.maximum(reached, np.abs((block - centre) @ vectors).max(axis=0), out=reached)
    return centre, vectors[:, ~(doubtful & (reached <= _FLAT * reached.max()))]


def columns(n: int, width: int, dtype: type[np.floating]) -> Matrix:
    """An empty (n, width) matrix in which columns are contiguous, at distances that do not meet in the cache."""
    length = -(-n // 512) * 512 + 136
    whole: Matrix = np.empty((width, length), dtype)
    return whole.T[:n]


def by_columns(matrix: Matrix) -> Matrix:
    """What ``columns`` has made, by columns; what lies between them is in no loop's reach."""
    base = matrix.base
    assert isinstance(base, np.ndarray)
    return base


def _blocks(candidates: Matrix) -> Iterator[Matrix]:
    size = max(1, _BLOCK // max(1, candidates.shape[1]))
    for start in range(0, len(candidates), size):
        yield np.asarray(candidates[start : start + size])
