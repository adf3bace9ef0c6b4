"""The rows of a run before its algorithm chooses."""

import numpy as np

from blindopt.arrays import Matrix, Rows
from blindopt.errors import NumericalFailure
from blindopt.gp.progress import NO_TICK, Tick

_BLOCK = 1 << 17  # numbers read at a time


def random_rows(n: int, count: int, seed: int, taken: Rows) -> Rows:
    """Uniform random rows without repetition, none of ``taken``; fewer than ``count`` if no more remain."""
    order = np.random.default_rng([seed, 0]).permutation(n)
    return (order[~np.isin(order, taken)] if len(taken) else order)[:count]


def maximin(
    candidates: Matrix, count: int, seed: int, taken: Rows, tick: Tick = NO_TICK, *, block: int = _BLOCK
) -> Rows:
    """Rows far from each other: a random first row, then each time the row farthest from those chosen.

    Greedy farthest points: the smallest distance within the design is at least half the largest that any design of
    that size has (Gonzalez 1985). Of equals the first row is taken. None of ``taken``. O(n r) a row, with a
    ``tick`` for each, in parts of ``block`` numbers.
    """
    n, r = candidates.shape
    first = random_rows(n, 1, seed, taken)
    count = min(count, n - len(np.unique(taken)))
    if not count:
        return first[:0]
    rows, size = [int(first[0])], max(1, block // max(1, r))
    nearest = np.full(n, np.inf)  # squared distance to the nearest chosen row; -1 for rows that may not be chosen
    nearest[taken] = -1.0
    while True:
        tick()
        nearest[rows[-1]] = -1.0
        if len(rows) == count:
            return np.array(rows, dtype=np.intp)
        chosen = np.asarray(candidates[rows[-1]])
        for start in range(0, n, size):
            with np.errstate(over="ignore", invalid="ignore"):
                difference = np.asarray(candidates[start : start + size]) - chosen
                squared = np.einsum("ij,ij->i", difference, difference)
            if not np.isfinite(squared).all():
                raise NumericalFailure("the candidates hold a number that is not finite, or lie too far apart")
            part = nearest[start : start + size]
            np.minimum(part, squared, out=part)
        rows.append(int(nearest.argmax()))
