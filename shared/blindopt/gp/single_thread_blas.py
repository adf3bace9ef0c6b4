"""Products of vectors and matrices by one thread, at the speed of BLAS.

BLAS gives the products of even a 100 x 100 matrix to several threads. A product takes microseconds, but on a busy
machine waiting for a second thread takes milliseconds. So the work is cut into blocks that are too small for BLAS to
share. Results do not depend on the number of threads.
"""

from functools import lru_cache

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.errors import NumericalFailure

ALONE = 8_000
"""Numbers of a matrix that BLAS multiplies in one thread: its own limits start at 8,192."""

BLOCK = 48
"""Rows of a square block that BLAS multiplies and LAPACK factors in one thread."""
_PRODUCTS = 262_144  # of numbers, that BLAS makes in one thread


def add_outer(matrix: Matrix, column: Vector, row: Vector, factor: float) -> None:
    """Add factor * column (a,) row (b,)^T to the contiguous ``matrix`` (a, b), in place."""
    from scipy.linalg.blas import dger  # late, for a fast start of the services

    # BLAS is column-major, so it gets the transposed matrix, which it may overwrite.
    transposed = matrix.T
    for rows in _blocks(*matrix.shape):
        dger(factor, row, column[rows], a=transposed[:, rows], overwrite_a=True)


def left_product(vector: Vector, matrix: Matrix) -> Vector:
    """``vector`` (a,) times ``matrix`` (a, b)."""
    blocks = _blocks(*matrix.shape)
    total: Vector = vector[blocks[0]] @ matrix[blocks[0]]
    for rows in blocks[1:]:
        total += vector[rows] @ matrix[rows]
    return total


def right_product(matrix: Matrix, vector: Vector) -> Vector:
    """``matrix`` (a, b) times ``vector`` (b,)."""
    result: Vector = np.empty(len(matrix))
    for rows in _blocks(*matrix.shape):
        np.dot(matrix[rows], vector, out=result[rows])
    return result


def product(first: Matrix, second: Matrix) -> Matrix:
    """``first`` (a, b) times ``second`` (b, c)."""
    result: Matrix = np.zeros((len(first), second.shape[1]))
    rows, inner = _steps(len(first)), _steps(len(second))
    # Whole blocks, so that the last bits are those of products of square ones.
    width = _PRODUCTS // max(1, min(len(first), BLOCK) * min(len(second), BLOCK)) // BLOCK * BLOCK
    for start in range(0, second.shape[1], width):
        j = slice(start, start + width)
        for i in rows:
            for k in inner:
                result[i, j] += first[i, k] @ second[k, j]
    return result


def inverse_factor(gram: Matrix) -> Matrix:
    """The inverse W (n, n) of the Cholesky factor of ``gram``: W gram W^T = I. Raises as ``factors``."""
    return factors(gram)[1]


def factors(gram: Matrix) -> tuple[Matrix, Matrix]:
    """The Cholesky factor of ``gram`` (n, n) and its inverse, by blocks.

    Raises NumericalFailure if ``gram`` is not positive definite.
    """
    factor, inverse = _factored(gram)
    steps = _steps(len(gram))
    if len(steps) == 1:
        return factor, inverse
    for index, i in enumerate(steps):
        for first, j in enumerate(steps[:index]):
            for k in steps[first:index]:
                inverse[i, j] -= factor[i, k] @ inverse[k, j]
            inverse[i, j] = inverse[i, i] @ inverse[i, j]
    return np.tril(factor), inverse


def whiten(gram: Matrix, columns: Matrix) -> tuple[float, Matrix]:
    """The logarithm of the determinant of ``gram`` (n, n), and L^-1 ``columns`` (n, m) for its Cholesky factor L.

    Takes half the time of ``factors``, and raises as that does.
    """
    factor, inverse = _factored(gram)
    white = columns.copy()
    for i in _steps(len(gram)):
        white[i] = inverse[i, i] @ (white[i] - factor[i, : i.start] @ white[: i.start])
    return 2.0 * float(np.log(np.einsum("ii->i", factor)).sum()), white


def _factored(gram: Matrix) -> tuple[Matrix, Matrix]:
    """A matrix whose lower triangle is the Cholesky factor, and the inverses of that one's blocks on the diagonal."""
    from scipy.linalg.lapack import dpotrf, dtrtri

    factor, inverse = gram.copy(), np.zeros_like(gram)
    steps = _steps(len(gram))
    for index, k in enumerate(steps):
        block, info = dpotrf(factor[k, k], lower=1)
        if info != 0 or not np.isfinite(block.diagonal()).all():
            raise NumericalFailure("a covariance cannot be factored: it is not positive definite in doubles")
        factor[k, k], inverse[k, k] = block, dtrtri(block, lower=1)[0]
        if k.stop == len(gram):
            break
        transposed, later = inverse[k, k].T.copy(), steps[index + 1 :]
        for i in later:
            factor[i, k] = factor[i, k] @ transposed
        below = [factor[j, k].T.copy() for j in later]
        for last, i in enumerate(later, 1):
            for j, columns in zip(later[:last], below, strict=False):
                factor[i, j] -= factor[i, k] @ columns
    return factor, inverse


def gram_of_lower(lower: Matrix) -> Matrix:
    """W^T W of a lower triangular W (n, n)."""
    if len(lower) <= BLOCK:
        single: Matrix = (lower.T.copy() @ lower).T
        return single
    transposed, gram = lower.T.copy(), np.zeros_like(lower)
    steps = _steps(len(lower))
    for first, i in enumerate(steps):
        for j in steps[: first + 1]:
            for k in steps[first:]:
                gram[i, j] += transposed[i, k] @ lower[k, j]
            gram[j, i] = gram[i, j].T
    return gram


def _steps(length: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK)]


@lru_cache(maxsize=64)
def _blocks(a: int, b: int) -> tuple[slice, ...]:
    rows = max(1, ALONE // max(1, b))
    return (slice(0, a),) if rows >= a else tuple(slice(i, i + rows) for i in range(0, a, rows))
