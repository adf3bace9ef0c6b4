"""Estimates of distances between rows of X, from Z and its noise law."""

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
    """Estimate distances between rows of X from ``z`` (n, r): sqrt(max(|z_i - z_j|^2 - 2 r sd^2, 0)).

    The expected squared norm of the noise of a row is r sd^2. Where the law has no sd (random_projection: a map
    with E |z_i - z_j|^2 = |x_i - x_j|^2 where it does not lift) the estimate is |z_i - z_j|.
    """
    squared = _squared(z, pairs)
    if law.sd is not None:
        squared -= 2 * z.shape[1] * law.sd**2
    return np.sqrt(np.maximum(squared, 0.0))


def relative_errors(x: Matrix, z: Matrix, law: NoiseLaw, pairs: Pairs) -> Vector:
    """|estimated - true| / true distance, for those ``pairs`` of rows of ``x`` that differ."""
    true, estimated = np.sqrt(_squared(x, pairs)), read_distances(z, law, pairs)
    apart = true > 0
    return np.abs(estimated[apart] - true[apart]) / true[apart]


def _squared(rows: Matrix, pairs: Pairs) -> Vector:
    difference = rows[pairs[0]] - rows[pairs[1]]
    squared: Vector = np.einsum("ij,ij->i", difference, difference)
    return squared
