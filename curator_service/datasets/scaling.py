"""The map from raw records to scaled units, by public bounds alone and never by the data."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix
from blindopt.formats.npy_files import take
from blindopt.wire import Feature

BLOCK_ROWS = 16_384


def rounding_of(features: list[Feature], promise: str = "euclidean") -> float:
    """Bound on how much rounding adds to the distance of two scaled rows, in scaled units and the norm of a promise.

    Subtraction and division each err by at most 2^-53 of a result that is at most the larger distance of a bound from
    the computed midpoint over its scale, for each of the two rows: 2^-51 of it together, to first order. What is left
    (products of two such errors, and the rounding of this bound itself) is less than 2^-20 of it.
    """
    halves = [
        max(f.upper - middle, middle - f.lower) / f.unit for f in features for middle in [(f.lower + f.upper) / 2]
    ]
    size = sum(halves) if promise == "one_feature" else sqrt(sum(half**2 for half in halves))
    return 2.0**-51 * (1 + 2.0**-20) * size


@dataclass(frozen=True, slots=True, repr=False)
class ScaledRows:
    """The features of a dataset in scaled units, in a given row order, a block at a time.

    Row j of this view is row ``order[j]`` of ``values`` (n, columns): each feature is clipped to its
    public bounds and becomes (value - midpoint) / scale. Clipping moves two rows no further apart, so
    what a mechanism claims for scaled rows holds for raw ones.
    """

    values: Matrix
    columns: list[int]
    """The features' columns in ``values``."""
    features: list[Feature]
    order: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"ScaledRows({self.n} x {self.d})"

    @property
    def n(self) -> int:
        return len(self.order)

    @property
    def d(self) -> int:
        return len(self.columns)

    def thinned(self, count: int) -> "ScaledRows":
        """At most ``count`` rows, evenly spaced in the order."""
        return replace(self, order=self.order[np.linspace(0, self.n - 1, min(self.n, count)).astype(np.int64)])

    def sample(self, count: int) -> Matrix:
        """At most ``count`` rows, evenly spaced in the order, in scaled units."""
        return np.vstack([block for _, block in self.thinned(count).blocks()])

    def blocks(self, size: int = BLOCK_ROWS) -> Iterator[tuple[slice, Matrix]]:
        """Yield consecutive blocks as new arrays (``size``, d), each with its slice of the row order."""
        lower = np.array([f.lower for f in self.features])
        upper = np.array([f.upper for f in self.features])
        unit = np.array([f.unit for f in self.features])
        for start in range(0, self.n, size):
            index = slice(start, min(start + size, self.n))
            raw = take(self.values, self.order[index])[:, self.columns]
            yield index, (np.clip(raw, lower, upper) - (lower + upper) / 2) / unit
