"""Secrets other than noise, such as the projection and the row order, from the operating system's entropy.

There is no state, so forks are safe. A failing source raises; there is no fallback.
"""

import os
import random
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix


def choose_rows(n: int, count: int) -> NDArray[np.int64]:
    """Choose ``count`` of n rows uniformly, in random order, in memory for ``count`` alone."""
    return np.array(random.SystemRandom().sample(range(n), min(n, count)), dtype=np.int64)


def gaussian_matrix(d: int, r: int) -> Matrix:
    """A d x r matrix of independent N(0, 1) entries: a random sign times a half-normal quantile.

    The magnitude is the quantile at 1/2 + u/2 for 63 random bits, so that both tails are alike.
    Not for privacy noise, which ``noise`` draws.
    """
    from scipy.special import ndtri

    words = np.frombuffer(os.urandom(8 * d * r), dtype=np.uint64)
    sign = np.where(words >> np.uint64(63), 1.0, -1.0)
    # The lower tail keeps full precision: -ndtri of (0, 1/2] instead of ndtri of [1/2, 1).
    half = ((words & np.uint64((1 << 63) - 1)).astype(np.float64) + 0.5) * 2.0**-64
    matrix: Matrix = (sign * -ndtri(half)).reshape(d, r)
    return matrix


def uniform_matrix(n: int, d: int) -> Matrix:
    """An n x d matrix of independent multiples of 2^-53, uniform in [0, 1). Not for privacy noise."""
    words = np.frombuffer(os.urandom(8 * n * d), dtype=np.uint64)
    matrix: Matrix = ((words >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(n, d)
    return matrix


def sample(n: int, k: int) -> NDArray[np.int64]:
    """Choose ``k`` of n rows uniformly, in ascending order."""
    return np.array(sorted(random.SystemRandom().sample(range(n), k)), dtype=np.int64)


def permutation(n: int) -> NDArray[np.int64]:
    """Draw a uniform random order of n rows."""
    order = array("q", range(n))  # a list of Python's integers takes five times the memory
    random.SystemRandom().shuffle(order)  # uses os.urandom and has no seed
    return np.array(order, dtype=np.int64)


SHUFFLED_ROWS = 1 << 20
"""About how many rows are shuffled in memory at a time."""


def shuffled(values: NDArray[np.int64], folder: Path, in_memory: int = SHUFFLED_ROWS) -> NDArray[np.int64]:
    """``values`` (n,) in a uniform random order, shuffled ``in_memory`` at a time, or a hundredth of them.

    A larger result is in a file. The files are in ``folder``, and have no name there, so that nothing of them is left.
    """
    if len(values) <= in_memory:
        return values[permutation(len(values))]
    with ExitStack() as stack:

        def new_file() -> IO[bytes]:
            return stack.enter_context(TemporaryFile(dir=folder))

        file, rows = new_file(), max(in_memory, len(values) >> 7)  # no more open files than 257
        for piece in shuffled_pieces(values, rows, new_file):
            file.write(piece.tobytes())
        file.flush()
        mapped: NDArray[np.int64] = np.memmap(file, dtype=np.int64, mode="r", shape=(len(values),))
        return mapped


def shuffled_pieces(
    values: NDArray[np.int64], rows: int, new_file: Callable[[], IO[bytes]]
) -> Iterator[NDArray[np.int64]]:
    """``values`` (n,) in a uniform random order, in pieces of about ``rows``, in two passes over files.

    The first gives each value a uniform bucket of its own, and writes it there; the second shuffles each bucket. That
    is the order of independent uniform keys, of which the bucket is the first digits: all n! orders are equally likely.
    """
    buckets = 1 << max(0, (len(values) - 1).bit_length() - rows.bit_length() + 1)
    if buckets > 1 << 16:
        raise ValueError(f"{len(values)} rows are too many to shuffle {rows} at a time")
    files = [new_file() for _ in range(buckets)]
    for start in range(0, len(values), rows):
        block = values[start : start + rows]
        bucket = np.frombuffer(os.urandom(2 * len(block)), dtype=np.uint16) & np.uint16(buckets - 1)
        sizes = np.bincount(bucket, minlength=buckets)
        for file, piece in zip(files, np.split(block[np.argsort(bucket)], np.cumsum(sizes)[:-1]), strict=True):
            file.write(piece.tobytes())
    for file in files:
        file.seek(0)
        piece = np.frombuffer(file.read(), dtype=np.int64)
        yield piece[permutation(len(piece))]


CONDITION_MAX = 1e4
"""``orthonormal`` draws a Gaussian matrix again if its condition number is larger."""


def orthonormal(d: int, r: int) -> Matrix:
    """A d x r matrix with orthonormal columns, r <= d, from the Haar (uniform) law.

    G = P R of a Gaussian G, with the signs that make the diagonal of R positive: P is then uniform and independent
    of R (Mezzadri 2007, section 5). So drawing again where R, and with it G, is badly conditioned does not change the
    law of P, and keeps the rounding errors of the factorization small. Square, it is a random rotation or reflection.
    """
    while True:
        columns, triangle = np.linalg.qr(gaussian_matrix(d, r))
        if np.linalg.cond(triangle) <= CONDITION_MAX:
            matrix: Matrix = columns * np.where(np.diag(triangle) < 0, -1.0, 1.0)
            return matrix
