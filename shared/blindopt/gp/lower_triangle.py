"""Products with a lower triangular matrix that read its zeros only near the diagonal.

Each entry is summed by ``einsum`` without BLAS in the order in which it sums the whole product, whose terms that are
left out are zeros at the end or at the beginning of a sum: so all bits are those of the whole product.
"""

import numpy as np

from blindopt.arrays import Matrix, Vector

_STEP = 256
"""Rows that are taken together: whole registers, however wide and however many a loop takes at once."""


def times_transposed(rows: Matrix, lower: Matrix) -> Matrix:
    """``rows`` (m, t) times the transposed ``lower`` (t, t)."""
    t = len(lower)
    if t <= _STEP:
        whole: Matrix = np.einsum("ij,kj->ik", rows, lower)
        return whole
    result: Matrix = np.empty((len(rows), t))
    for start in range(0, t, _STEP):
        stop = min(start + _STEP, t)
        result[:, start:stop] = np.einsum("ij,kj->ik", rows[:, :stop], lower[start:stop, :stop])
    return result


def combined_rows(weights: Vector, lower: Matrix) -> Vector:
    """The sum (t,) of the rows of ``lower`` (t, t), each times its weight (t,)."""
    t = len(lower)
    if t <= _STEP:
        whole: Vector = np.einsum("j,jk->k", weights, lower)
        return whole
    columns = [slice(start, min(start + _STEP, t)) for start in range(0, t, _STEP)]
    return np.concatenate([np.einsum("j,jk->k", weights[of.start :], lower[of.start :, of]) for of in columns])
