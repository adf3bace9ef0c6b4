"""Products of vectors and matrices by one thread, at the speed of BLAS.

BLAS gives the products of even a 100 x 100 matrix to several threads. Rounds take microseconds: on a machine that has
other work, waiting for a second thread cost milliseconds each. So the work is cut into blocks that BLAS does alone.
What comes out does not depend on the number of threads.
"""

from functools import lru_cache

import numpy as np
from scipy.linalg.blas import dger
from scipy.linalg.lapack import dpotrf, dtrtri

from blindopt.arrays import Matrix, Vector
from blindopt.errors import NumericalFailure

ALONE = 8_000
"""Numbers of a matrix that BLAS does not share out: its own limits start at 8,192."""

BLOCK = 48
"""Rows of a square block: BLAS multiplies two of them alone (up to 262,144 products), LAPACK factors one alone."""


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


def product(left: Matrix, right: Matrix) -> Matrix:
    """``left`` (a, b) times ``right`` (b, c)."""
    found: Matrix = np.zeros((len(left), right.shape[1]))
    for i in _steps(len(left)):
        for j in _steps(right.shape[1]):
            for k in _steps(len(right)):
                found[i, j] += left[i, k] @ right[k, j]
    return found


def inverse_factor(gram: Matrix) -> Matrix:
    """The lower triangular W (n, n) with W gram W^T = 1: the inverse of the Cholesky factor, by blocks.

    Raises NumericalFailure if ``gram`` is not positive definite.
    """
    rest, inverse = gram.copy(), np.zeros_like(gram)
    steps = _steps(len(gram))
    for at, k in enumerate(steps):
        factor, info = dpotrf(rest[k, k], lower=1)
        if info != 0 or not np.isfinite(factor.diagonal()).all():
            raise NumericalFailure("a covariance cannot be factored: it is not positive definite in doubles")
        inverse[k, k] = dtrtri(factor, lower=1)[0]
        turned = inverse[k, k].T.copy()
        for i in steps[at + 1 :]:
            rest[i, k] = rest[i, k] @ turned
        for place, i in enumerate(steps[at + 1 :], at + 1):
            for j in steps[at + 1 : place + 1]:
                rest[i, j] -= rest[i, k] @ rest[j, k].T.copy()
    for at, i in enumerate(steps):
        for first, j in enumerate(steps[:at]):
            for k in steps[first:at]:
                inverse[i, j] -= rest[i, k] @ inverse[k, j]
            inverse[i, j] = inverse[i, i] @ inverse[i, j]
    return inverse


def gram_of_lower(lower: Matrix) -> Matrix:
    """W^T W of a lower triangular W (n, n)."""
    turned, found = lower.T.copy(), np.zeros_like(lower)
    steps = _steps(len(lower))
    for first, i in enumerate(steps):
        for j in steps[: first + 1]:
            for k in steps[first:]:
                found[i, j] += turned[i, k] @ lower[k, j]
            found[j, i] = found[i, j].T
    return found


def _steps(length: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK)]


@lru_cache(maxsize=64)
def _blocks(a: int, b: int) -> tuple[slice, ...]:
    rows = max(1, ALONE // b)
    return (slice(0, a),) if rows >= a else tuple(slice(i, i + rows) for i in range(0, a, rows))
