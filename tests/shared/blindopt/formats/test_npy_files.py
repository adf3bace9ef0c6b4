"""A release as a file: what comes back, what is refused, what it is called."""

import hashlib
import io
import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from blindopt import wire
from blindopt.errors import NumericalFailure
from blindopt.formats import npy_files


@settings(max_examples=50, deadline=None, derandomize=True)
@given(values=hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=8)))
def test_a_matrix_comes_back_bit_for_bit(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("matrix") / "z.npy"
    written = npy_files.create(path, *values.shape)
    written[:] = values
    written.flush()
    assert npy_files.load(path).tobytes() == values.tobytes()
    assert np.load(io.BytesIO(path.read_bytes()), allow_pickle=False).tobytes() == values.tobytes()


def test_the_space_of_a_new_matrix_is_reserved(tmp_path):
    """On a full disk, a page that is first written through the mapping would kill the process."""
    npy_files.create(tmp_path / "z.npy", 100_000, 3)
    assert (tmp_path / "z.npy").stat().st_blocks * 512 >= 8 * 300_000


def test_a_loaded_matrix_cannot_be_written_to(tmp_path):
    npy_files.create(tmp_path / "z.npy", 2, 2)[:] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        npy_files.load(tmp_path / "z.npy")[0, 0] = 2.0


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000])
def test_the_digest_is_the_sha256_of_the_whole_file(tmp_path, size):
    content = np.random.default_rng(size).bytes(size)
    (tmp_path / "file").write_bytes(content)
    assert npy_files.digest(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.zeros((2, 2)))
    return buffer.getvalue()


GOOD = npy(np.arange(12.0).reshape(4, 3))
REFUSED = {
    "an empty file": b"",
    "text": b"1.0,2.0\n",
    "half a magic number": GOOD[:4],
    "half a header": GOOD[:40],
    "a cut tail": GOOD[:-1],
    "one dimension": npy(np.zeros(3)),
    "three dimensions": npy(np.zeros((2, 2, 2))),
    "single precision": npy(np.zeros((2, 2), np.float32)),
    "integers": npy(np.zeros((2, 2), np.int64)),
    "complex": npy(np.zeros((2, 2), np.complex128)),
    "another byte order": npy(np.zeros((2, 2), ">f8")),
    "an archive": npz(),
    "a header that is no literal": GOOD.replace(b"{'descr'", b"{f('des'"),
    "a header of open brackets": GOOD[:10] + b"(" * 118 + GOOD[128:],
    "a header that never ends": GOOD[:10] + b"{'descr': '<f8', " + b" " * 100 + b"\n" + GOOD[128:],
    "more rows than bytes": GOOD.replace(b"(4, 3)", b"(9, 3)"),
    "a shape beyond memory": GOOD.replace(b"(4, 3), ", b"(4," + b"9" * 4 + b")"),
}


@pytest.mark.parametrize("content", list(REFUSED.values()), ids=list(REFUSED))
def test_what_is_not_a_matrix_of_doubles_is_refused(tmp_path, content):
    (tmp_path / "z.npy").write_bytes(content)
    with pytest.raises(NumericalFailure):
        npy_files.load(tmp_path / "z.npy")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(NumericalFailure):
        npy_files.load(tmp_path / "none.npy")


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (Path(self.mark),)


@pytest.mark.parametrize("wrap", [False, True], ids=["a bare pickle", "an array of objects"])
def test_loading_never_runs_what_the_file_holds(tmp_path, wrap):
    mark, path = tmp_path / "mark", tmp_path / "z.npy"
    bomb = Bomb(str(mark))
    content = npy(np.array([[bomb]], dtype=object)) if wrap else pickle.dumps(bomb)
    path.write_bytes(content)
    with pytest.raises(NumericalFailure):
        npy_files.load(path)
    assert not mark.exists()


def test_a_damaged_header_is_refused_or_read_but_never_a_surprise(tmp_path):
    """2,000 files with up to three random bytes of the header changed: a hostile curator may send any."""
    rng = np.random.default_rng(0)
    path = tmp_path / "z.npy"
    for _ in range(2_000):
        damaged = bytearray(GOOD)
        for index in rng.integers(0, 128, size=rng.integers(1, 4)):
            damaged[index] = rng.integers(256)
        path.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy evaluates the header as a literal, which may warn
            try:
                loaded = npy_files.load(path)
            except NumericalFailure:
                continue
        assert loaded.dtype == np.float64
        assert loaded.ndim == 2


def resident_kib() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile"))


def test_forgotten_pages_keep_what_was_written_and_take_no_memory(tmp_path):
    mapped = npy_files.create(tmp_path / "z.npy", 1 << 16, 64)  # 32 MiB
    mapped[:] = 1.5
    full = resident_kib()
    npy_files.forget_pages(mapped)
    assert resident_kib() < full - 30_000
    mapped[7, 7] = 2.5
    npy_files.forget_pages(mapped)
    assert (mapped[7, 7], mapped[-1, -1], mapped.sum()) == (2.5, 1.5, mapped.size * 1.5 + 1)
    del mapped
    assert npy_files.load(tmp_path / "z.npy")[7, 7] == 2.5


def test_forgetting_pages_does_nothing_to_other_arrays(tmp_path):
    plain = np.ones((3, 2))
    npy_files.forget_pages(plain)
    assert (plain == 1).all()
    np.save(tmp_path / "a.npy", plain)
    private = np.load(tmp_path / "a.npy", mmap_mode="c")
    private[0, 0] = 7.0
    npy_files.forget_pages(private)
    assert private[0, 0] == 7.0


@pytest.mark.parametrize("sizes", [[1], [9, 1], [3, 0, 5], [99_999, 1, 7]], ids=str)
def test_blocks_are_written_as_one_matrix(tmp_path, sizes):
    """The number of rows in the header gains digits while blocks are written."""
    values = np.random.default_rng(0).normal(size=(sum(sizes), 3))
    blocks = np.split(np.asfortranarray(values), np.cumsum(sizes)[:-1])
    with (tmp_path / "x.npy").open("wb") as file:
        npy_files.write(file, iter(blocks))
    assert npy_files.load(tmp_path / "x.npy").tobytes() == values.tobytes()
    assert (tmp_path / "x.npy").stat().st_size - values.nbytes <= wire.NPY_HEADER_MAX


def test_rows_are_taken_alike_from_a_file_and_from_memory(tmp_path):
    """In any order, and more than once; a part of a mapped matrix is not taken for the whole."""
    values = np.random.default_rng(0).normal(size=(50, 3))
    np.save(tmp_path / "x.npy", values)
    rows = np.array([49, 0, 7, 7, 31])
    mapped = npy_files.load(tmp_path / "x.npy")
    for whole, part in ((values, values[10:]), (mapped, mapped[10:])):
        np.testing.assert_array_equal(npy_files.take(whole, rows), values[rows])
        np.testing.assert_array_equal(npy_files.take(part, rows[1:]), values[10:][rows[1:]])
    np.save(tmp_path / "turned.npy", np.asfortranarray(values))
    np.testing.assert_array_equal(npy_files.take(npy_files.load(tmp_path / "turned.npy"), rows), values[rows])
    os.truncate(tmp_path / "x.npy", (tmp_path / "x.npy").stat().st_size - 1)
    with pytest.raises(NumericalFailure, match="before its time"):
        npy_files.take(mapped, rows)
