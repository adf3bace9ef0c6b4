"""Products of vectors and matrices by one thread, at the speed of BLAS.

BLAS gives the products of even a 100 x 100 matrix to several threads. Rounds take microseconds: on a machine that has
other work, waiting for a second thread cost milliseconds each. So the work is cut into blocks that BLAS does alone.
What comes out does not depend on the number of threads.
"""

from functools import lru_cache

import numpy as np
from scipy.linalg.blas import dger

from shared.matrix import Matrix, Vector

ALONE = 8_000
"""Numbers of a matrix that BLAS does not share out: its own limits start at 8,192."""


def add_outer(matrix: Matrix, left: Vector, right: Vector, factor: float) -> None:
    """``matrix`` (a, b) += factor * left (a,) right (b,)^T, in place; the matrix is contiguous."""
    # BLAS reads columns first: it is given the transposed matrix, which it may overwrite.
    turned = matrix.T
    for rows in _blocks(*matrix.shape):
        dger(factor, right, left[rows], a=turned[:, rows], overwrite_a=True)


def left_product(vector: Vector, matrix: Matrix) -> Vector:
    """``vector`` (a,) times ``matrix`` (a, b)."""
    blocks = _blocks(*matrix.shape)
    found: Vector = vector[blocks[0]] @ matrix[blocks[0]]
    for rows in blocks[1:]:
        found += vector[rows] @ matrix[rows]
    return found


def right_product(matrix: Matrix, vector: Vector) -> Vector:
    """``matrix`` (a, b) times ``vector`` (b,)."""
    found: Vector = np.empty(len(matrix))
    for rows in _blocks(*matrix.shape):
        np.dot(matrix[rows], vector, out=found[rows])
    return found


@lru_cache(maxsize=64)
def _blocks(a: int, b: int) -> tuple[slice, ...]:
    rows = max(1, ALONE // b)
    return (slice(0, a),) if rows >= a else tuple(slice(i, i + rows) for i in range(0, a, rows))
