"""An n x r float matrix as an npy file, and the digest that identifies it."""

import hashlib
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix
from blindopt.errors import NumericalFailure

MEDIA_TYPE = "application/x-npy"
_CHUNK = 256 << 10


def create(path: Path, n: int, r: int) -> Matrix:
    """Create an n x r float64 npy file, memory-mapped for writing.

    Reserves the space, so that a full disk raises OSError here and does not kill the process at a later write.
    """
    mapped: Matrix = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(n, r))
    with path.open("rb+") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return mapped


def write(file: BinaryIO, blocks: Iterable[Matrix]) -> None:
    """Write consecutive blocks (m, r), at least one, as an npy file; only one block is in memory at a time.

    The number of rows is written into the header at the end: numpy leaves room for it to grow.
    """
    n = r = 0
    for block in blocks:
        if n == 0:
            r = block.shape[1]
            _write_header(file, n, r)
        file.write(np.ascontiguousarray(block, dtype=np.float64).data)
        n += len(block)
    file.seek(0)
    _write_header(file, n, r)


def _write_header(file: BinaryIO, n: int, r: int) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (n, r)})


def load(path: Path) -> Matrix:
    """Load the matrix of ``path``, memory-mapped and read-only. Never unpickles.

    Raises NumericalFailure for anything that is not a two-dimensional float64 matrix.
    """
    try:
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # the header is text from the other party: it may be anything
        raise NumericalFailure("the candidates are not a readable npy matrix") from error
    if not isinstance(matrix, np.ndarray) or matrix.dtype != np.float64 or matrix.ndim != 2:
        raise NumericalFailure("the candidates are not a two-dimensional float64 matrix")
    return matrix


def forget_pages(matrix: Matrix) -> None:
    """Drop the pages of a memory-mapped matrix from memory, so that a pass over a large file does not hold all of it.

    Written values stay written, and later reads come from the file. Does nothing for any other array.
    """
    mapped = matrix.base
    if isinstance(mapped, mmap.mmap) and getattr(matrix, "mode", "c") != "c":  # a private copy would lose its changes
        mapped.madvise(mmap.MADV_DONTNEED)


def take(matrix: Matrix, rows: NDArray[np.int64]) -> Matrix:
    """Copy rows of a matrix, in any order. The rows of a matrix mapped by ``load`` are read from its file.

    Scattered reads through the mapping would bring nearly all pages of a large file into memory.
    """
    whole = isinstance(matrix, np.memmap) and isinstance(matrix.base, mmap.mmap) and matrix.flags.c_contiguous
    if not isinstance(matrix, np.memmap) or not whole or matrix.filename is None:
        return matrix[rows]
    taken = np.empty((len(rows), matrix.shape[1]))
    with Path(matrix.filename).open("rb", buffering=0) as file:
        for row, offset in zip(taken, matrix.offset + rows * matrix.strides[0], strict=True):
            if os.preadv(file.fileno(), [row], int(offset)) != row.nbytes:
                raise NumericalFailure("the file of a matrix ends before its time")
    return taken


def bytes_of(path: Path, rows: Iterable[int]) -> list[range]:
    """Where in the file of a matrix the bytes of these rows are."""
    matrix = load(path)
    assert isinstance(matrix, np.memmap)
    size, first = matrix.strides[0], matrix.offset
    return [range(first + size * row, first + size * (row + 1)) for row in rows]


def read(path: Path, first: int = 0, size: int | None = None, zeros: Sequence[range] = ()) -> Iterator[bytes]:
    """Yield the file's bytes: all, or up to ``size`` of them from number ``first`` on, with zeros at ``zeros``."""
    with path.open("rb") as file:
        file.seek(first)
        while chunk := bytearray(file.read(_CHUNK if size is None else min(_CHUNK, size))):
            for span in zeros:
                start, stop = max(span.start - first, 0), min(span.stop - first, len(chunk))
                if start < stop:
                    chunk[start:stop] = bytes(stop - start)
            yield bytes(chunk)
            first, size = first + len(chunk), None if size is None else size - len(chunk)


def digest(path: Path, first: int = 0, size: int | None = None, zeros: Sequence[range] = ()) -> str:
    """SHA-256, in hex, of the bytes that ``read`` yields."""
    sha = hashlib.sha256()
    for chunk in read(path, first, size, zeros):
        sha.update(chunk)
    return sha.hexdigest()
