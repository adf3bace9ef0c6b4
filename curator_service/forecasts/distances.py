"""How well distances between rows can be read from Z by who knows its noise law."""

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Vector
from blindopt.wire import NoiseLaw

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]


def draw_pairs(n: int, count: int, rng: np.random.Generator) -> Pairs:
    """``count`` uniform random pairs of different rows of n >= 2."""
    first = rng.integers(n, size=count)
    return first, (first + rng.integers(1, n, size=count)) % n


def read_distances(z: Matrix, law: NoiseLaw, pairs: Pairs) -> Vector:
    """Distances between rows of X, read from ``z`` (n, r): sqrt(|z_i - z_j|^2 - 2 r sd^2), or 0 where there is no root.

    The noise of each row has r sd^2 of expected squared norm. A law without sd (random_projection: a map
    with E |z_i - z_j|^2 = |x_i - x_j|^2 where it does not lift) is read as it is.
    """
    squared = _squared(z, pairs)
    if law.sd is not None:
        squared -= 2 * z.shape[1] * law.sd**2
    return np.sqrt(np.maximum(squared, 0.0))


def relative_errors(x: Matrix, z: Matrix, law: NoiseLaw, pairs: Pairs) -> Vector:
    """|distance read from ``z`` - true distance| / true distance, for those ``pairs`` of ``x`` that differ."""
    true, told = np.sqrt(_squared(x, pairs)), read_distances(z, law, pairs)
    apart = true > 0
    return np.abs(told[apart] - true[apart]) / true[apart]


def _squared(rows: Matrix, pairs: Pairs) -> Vector:
    difference = rows[pairs[0]] - rows[pairs[1]]
    squared: Vector = np.einsum("ij,ij->i", difference, difference)
    return squared
