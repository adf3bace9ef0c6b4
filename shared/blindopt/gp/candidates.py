"""Candidates in the form in which covariances with them are computed: centred, scaled, and of full column rank."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Rows, Vector
from blindopt.errors import NumericalFailure
from blindopt.gp.kernels import Kernel

T = TypeVar("T", bound=np.generic)
Precision = type[np.float64] | type[np.float32]
_BLOCK_NUMBERS = 1 << 15  # numbers that are read together
_PRODUCT_MAX = 1e3  # squared norm up to which |a|^2 + |b|^2 - 2 a.b keeps 12 digits of what an exponent needs
_RANK_TOL = 1e-10  # squared singular values below this share of the largest may be zero
_FLAT_TOL = 1e-12  # a column may be dropped if no entry is above this share of the largest
_SAMPLE = 1 << 10  # rows that show, nearly always, that all columns are spanned
ORDERED_MAX = 1 << 21
"""Candidates up to which they are sorted."""
_CELLS = 1 << 8  # of each of two columns, by which candidates are sorted
_SPREAD = np.array([sum((c >> bit & 1) << 2 * bit for bit in range(8)) for c in range(_CELLS)], dtype=np.uint16)


class Frame(NamedTuple):
    """What posteriors of the same candidates share: it says how coordinates are computed, and in which order."""

    centre: Vector
    """(r,), about the mean."""
    basis: Matrix | None
    """Orthonormal (r, q); without one, all r columns are kept."""
    order: Rows | None
    """All rows (n,), those with similar bounds beside each other; None where they are very many."""


@dataclass(frozen=True, slots=True)
class Lift:
    """How candidates (m, r) become coordinates (m, q) in units of the lengthscale, the same for all candidates.

    Centring and rotating keep all distances, so dropping the directions that the candidates do not span loses nothing.
    """

    frame: Frame
    factor: float | Vector
    scales: Vector | None = None
    """By which coordinates are multiplied before they are centred."""

    @classmethod
    def of(cls, candidates: Matrix, kernel: Kernel, frame: Frame, scales: Vector | None = None) -> "Lift":
        """The one of ``candidates`` (n, r) with this ``frame``, whose coordinates are multiplied by ``scales`` (r,)."""
        if scales is not None and frame[1] is not None:  # what is spanned is no longer orthonormal
            return cls(frame_of(candidates * scales), 1.0 / kernel.lengthscale, scales)
        return cls(frame, (1.0 if scales is None else scales) / kernel.lengthscale)

    @property
    def rank(self) -> int:
        """q: coordinates of a candidate."""
        centre, basis, _ = self.frame
        return len(centre) if basis is None else basis.shape[1]

    def __call__(self, candidates: Matrix) -> Matrix:
        """Coordinates (m, q) of some candidates (m, r)."""
        centre, basis, _ = self.frame
        coordinates: Matrix = (candidates if self.scales is None else candidates * self.scales) - centre
        if basis is not None:
            coordinates = coordinates @ basis
        coordinates *= self.factor
        return coordinates

    def units(self) -> Matrix | None:
        """What compiled loops compute coordinates with: scales, centre and factor (3, r). None with a basis."""
        centre, basis, _ = self.frame
        if basis is not None:
            return None
        units = np.ones((3, len(centre)))
        units[1], units[2] = centre, self.factor
        if self.scales is not None:
            units[0] = self.scales
        return units

    def write(self, candidates: Matrix, columns: Matrix) -> Vector:
        """Write the coordinates of some candidates (m, r) into ``columns`` (q, m); return their squared norms (m,)."""
        squared_norms: Vector
        if self.frame.basis is None and self.scales is None and columns.dtype == np.float64:
            np.subtract(candidates.T, self.frame.centre[:, None], out=columns)
            columns *= self.factor if isinstance(self.factor, float) else self.factor[:, None]
            squared_norms = np.einsum("ji,ji->i", columns, columns)
        else:
            coordinates = self(candidates)
            columns[:] = coordinates.T
            squared_norms = np.einsum("ij,ij->i", coordinates, coordinates)
        return squared_norms


class Candidates:
    """Candidates Z (n, r) as ``lifted`` (n, q + 2) numbers of ``dtype``, where q <= r is their rank after centring.

    ``lifted`` holds the q coordinates of ``lift``, their squared norm, and a one. The squared distances of candidates
    from others are then the matrix product ``lifted @ dual``. Where norms are too large for that, or the kernel is not
    smooth at zero, distances are computed from differences.

    ``cov_rounding`` bounds the rounding error of a correlation, in units of the machine epsilon of ``dtype``; it and
    the way to compute follow from the ``largest`` squared norm. With ``loops`` (compiled ones), ``lifted`` is
    ``column_major``, as they read it. Row i of the arrays is candidate ``order[i]`` (i without it): rows of methods are
    positions in the arrays. Raises NumericalFailure if a number is not finite.
    """

    def __init__(
        self,
        candidates: Matrix,
        kernel: Kernel,
        dtype: Precision,
        lift: Lift,
        *,
        loops: ModuleType | None = None,
        order: Rows | None = None,
    ) -> None:
        n, q, self.column_major = len(candidates), lift.rank, loops is not None
        self._kernel, self._lift = kernel, lift
        self.order = order
        self._positions: Rows | None = None if order is None else np.empty(n, dtype=np.intp)
        self.width = q + 2
        self.lifted: Matrix = empty_columns(n, q + 2, dtype) if self.column_major else np.empty((n, q + 2), dtype)
        units = lift.units()
        if loops is None or order is None or units is None or not _are_plain(candidates):
            self.compare(self._write(candidates))
        else:
            arguments = _read_only(candidates), _read_only(order), units, padded_columns(self.lifted), self._positions
            largest = loops.write_columns(*arguments)
            if not np.isfinite(largest):
                self._check(self.lifted[:, :q])
            self.compare(largest)

    def _write(self, candidates: Matrix) -> float:
        """Write ``lifted`` and the positions in plain numpy. Return the largest squared norm."""
        largest, start, q = 0.0, 0, self.width - 2
        with np.errstate(over="ignore", invalid="ignore"):
            for block in _blocks(candidates, self.order):
                part = self.lifted[start : start + len(block)].T
                squared_norms = self._lift.write(block, coordinates := part[:q])
                part[q], part[q + 1] = squared_norms, 1.0
                largest, start = max(largest, float(squared_norms.max())), start + len(block)
                if not np.isfinite(squared_norms.sum()):
                    self._check(coordinates)
        if self._positions is not None:
            self._positions[self.order] = np.arange(len(candidates))
        return largest

    @staticmethod
    def _check(coordinates: Matrix) -> None:
        if not np.isfinite(coordinates).all():
            raise NumericalFailure("the candidates are too far apart for the kernel's lengthscale")

    def positions(self, rows: Rows) -> Rows:
        """Where candidates ``rows`` are in the arrays."""
        return rows if self._positions is None else self._positions[rows]

    def ordered(self, values: Vector) -> Vector:
        """Values (n,) that are in the order of the arrays, in that of the candidates."""
        return values if self._positions is None else values[self._positions]

    def compare(self, largest: float) -> None:
        """Compute covariances with candidates whose squared norms, and those of the own ones, are up to ``largest``."""
        self.largest = largest
        self.by_products, self.cov_rounding = precision_of(self._kernel, largest)

    def dual(self, rows: Rows) -> Matrix:
        """Columns (q + 2, m) whose inner products with ``lifted`` are squared distances from candidates ``rows``."""
        return _dual(self.lifted[rows])

    def dual_of(self, candidates: Matrix) -> Matrix:
        """Columns (q + 2, m), as of ``dual``, of other candidates (m, r)."""
        coordinates = self._lift(candidates)
        squared_norms = np.einsum("ij,ij->i", coordinates, coordinates)
        lifted = np.column_stack([coordinates, squared_norms, np.ones(len(coordinates))])
        return _dual(lifted.astype(self.lifted.dtype))

    def covariance(self, rows: Rows | slice, dual: Matrix) -> Matrix:
        """Kernel of candidates ``rows`` with those of ``dual`` (q + 2, k): (m, k) numbers of ``dtype`` in C order."""
        if self.by_products:
            lifted = self.lifted[rows] if isinstance(rows, slice) else self.lifted.take(rows, axis=0)
            # One column: a product with a vector takes half the time of one with a matrix.
            squared: Matrix = (lifted @ dual[:, 0])[:, None] if dual.shape[1] == 1 else lifted @ dual
            np.maximum(squared, 0.0, out=squared)
        else:
            from scipy.spatial.distance import cdist  # late, for a fast start of the services

            squared = cdist(self.lifted[rows, :-2], -0.5 * dual[:-2].T, "sqeuclidean").astype(self.lifted.dtype)
        self._kernel.correlate(squared)
        if self._kernel.variance != 1.0:
            squared *= self._kernel.variance
        return squared


def precision_of(kernel: Kernel, largest: float) -> tuple[bool, float]:
    """Whether products give covariances of candidates of such squared norms, and the bound on a rounding error."""
    by_products = kernel.smooth and largest <= _PRODUCT_MAX
    return by_products, largest if by_products else 8.0 * largest**0.5


def _dual(lifted: Matrix) -> Matrix:
    rows = lifted.T
    dual: Matrix = rows * -2.0
    dual[-2], dual[-1] = rows[-1], rows[-2]
    return dual


@np.errstate(over="ignore", invalid="ignore")
def frame_of(candidates: Matrix) -> Frame:
    """The frame of candidates (n, r), whose basis spans what they span after centring.

    It is None if they span all r columns, or if overflow hides whether they do. Raises NumericalFailure if a number is
    not finite.
    """
    n, r = candidates.shape
    sample = np.asarray(candidates[:: max(1, n // _SAMPLE)])
    centre = sample.mean(axis=0)
    norms = _squared_norms(candidates, centre)
    if not np.isfinite(spread := float(norms.sum())):
        if not all(np.isfinite(block).all() for block in _blocks(candidates)):
            raise NumericalFailure("the candidates hold a number that is not finite")
        return Frame(np.array(candidates[0]), None, None)
    order = _sorted(candidates, norms) if n <= ORDERED_MAX else None
    # Other rows only add to what a sample spans, and all eigenvalues together are at most the sum of the norms.
    if float(np.linalg.eigvalsh((sample - centre).T @ (sample - centre))[0]) > _RANK_TOL * spread:
        return Frame(centre, None, order)
    total, gram = np.zeros(r), np.zeros((r, r))
    for block in _blocks(candidates):
        shifted = block - centre
        total += np.ones(len(shifted)) @ shifted
        gram += shifted.T @ shifted
    centre = centre + total / n
    gram -= np.outer(total, total) / n
    values, vectors = np.linalg.eigh(gram)
    doubtful = values <= _RANK_TOL * values[-1]
    if not doubtful.any():
        return Frame(centre, None, order)
    extent = np.zeros(r)
    for block in _blocks(candidates):
        np.maximum(extent, np.abs((block - centre) @ vectors).max(axis=0), out=extent)
    return Frame(centre, vectors[:, ~(doubtful & (extent <= _FLAT_TOL * extent.max()))], order)


def order_of(candidates: Matrix) -> Rows | None:
    """Rows (n,) in the order of ``Frame.order``."""
    norms = _squared_norms(candidates, np.asarray(candidates[:_SAMPLE]).mean(axis=0))
    return _sorted(candidates, norms) if np.isfinite(norms.sum()) else None


def _squared_norms(candidates: Matrix, centre: Vector) -> Vector:
    norms, ones, start = np.empty(len(candidates)), np.ones(candidates.shape[1]), 0
    for block in _blocks(candidates):
        shifted = block - centre
        shifted *= shifted
        np.matmul(shifted, ones, out=norms[start : start + len(block)])
        start += len(block)
    return norms


def _sorted(candidates: Matrix, norms: Vector) -> Rows:
    """Rows (n,), such that most that follow each other have similar bounds.

    In one or two columns those are neighbours (Morton order); in more, those as far from the centre: the far ones keep
    their variances, and the near ones are soon explained. It changes the time of a choice alone.
    """
    if candidates.shape[1] > 2:
        return np.argsort(-norms)
    cells = []
    for column in np.array(candidates.T):
        column -= column.min()
        column /= float(column.max()) or 1.0
        column *= _CELLS - 1
        cells.append(_SPREAD[column.astype(np.intp)])
    return np.argsort(cells[0] | cells[-1] << 1, kind="stable")


def empty_columns(n: int, width: int, dtype: type[np.floating]) -> Matrix:
    """Return an uninitialized (n, width) matrix of contiguous columns, padded apart in the cache."""
    length = -(-n // 512) * 512 + 136
    padded: Matrix = np.empty((width, length), dtype)
    return padded.T[:n]


def padded_columns(matrix: Matrix) -> Matrix:
    """Return the C-contiguous (width, n or more) array behind a matrix of ``empty_columns``, padding included."""
    base = matrix.base
    assert isinstance(base, np.ndarray)
    return base


def _are_plain(candidates: Matrix) -> bool:
    """Whether compiled loops can read them: for any other layout they would be compiled anew."""
    return candidates.flags.c_contiguous and candidates.flags.aligned and candidates.dtype == np.float64


def _read_only(array: NDArray[T]) -> NDArray[T]:
    """A view, for which loops are compiled once: an array that may be written has another type."""
    view = np.asarray(array).view()
    view.setflags(write=False)
    return view


def _blocks(candidates: Matrix, order: Rows | None = None) -> Iterator[Matrix]:
    size = max(1, _BLOCK_NUMBERS // max(1, candidates.shape[1]))
    for start in range(0, len(candidates), size):
        rows = slice(start, start + size)
        yield np.asarray(candidates[rows] if order is None else candidates.take(order[rows], axis=0))
