"""Candidates on the disk: read whole once, and again if the file has changed."""

import os
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import pytest

from blindopt.client.downloads import unfinished
from blindopt.formats import npy_files
from modeler_service.runs.candidates import DigestCache, is_stored, keep_candidates
from tests.interventions import act_before


@pytest.fixture
def reads():
    """Names of the files that were read."""
    return []


@pytest.fixture
def cache(reads):
    return DigestCache(lambda path, parts: reads.append(path.name) or npy_files.digest(path), size=3)


def test_a_file_is_read_once_and_again_only_on_request_or_after_a_change(tmp_path, cache, reads):
    content = b"x" * 100_000
    path, digest = tmp_path / "z.npy", sha256(content).hexdigest()
    path.write_bytes(content)
    assert [cache.of(path) for _ in range(5)] == [digest] * 5
    assert len(reads) == 1
    assert cache.of(path, reread=True) == digest
    assert len(reads) == 2
    status = path.stat()
    with path.open("r+b") as file:  # a flipped byte, and the time of the last change put back
        file.write(b"y")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert cache.of(path) == sha256(b"y" + content[1:]).hexdigest()
    other = tmp_path / "other"
    other.write_bytes(content)
    other.replace(path)  # another file under the name, as a download puts there
    assert cache.of(path) == digest
    assert len(reads) == 4


def test_a_release_is_stored_if_its_file_has_its_digest(tmp_path):
    path, digest = tmp_path / "z.npy", sha256(b"z").hexdigest()
    assert not is_stored(path, digest)
    path.write_bytes(b"z")
    assert is_stored(path, digest)
    assert not is_stored(path, "0" * 64)
    path.write_bytes(b"y")
    assert not is_stored(path, digest)
    assert not is_stored(path, digest, reread=True)


def test_the_cache_is_bounded(tmp_path, cache, reads):
    for number in range(10):
        (tmp_path / str(number)).write_bytes(bytes([number]))
        cache.of(tmp_path / str(number))
    for number in (7, 8, 9):
        cache.of(tmp_path / str(number))
    assert len(reads) == 10
    cache.of(tmp_path / "6")
    assert reads[10:] == ["6"]


def test_what_interrupted_fetches_left_goes_with_its_release_unless_somebody_fetches_to_it(tmp_path):
    kept, other = "0" * 64, "1" * 64
    for name in (f"{kept}.npy", f"{kept}.npy.part", f"{other}.npy", f"{other}.npy.00000000.part"):
        (tmp_path / name).touch()
    with (
        unfinished(tmp_path / f"{other}.npy", resumed=True) as partial,
        unfinished(tmp_path / f"{other}.npy", resumed=True) as second,
    ):
        assert partial != second
        keep_candidates(tmp_path, {kept})
        assert set(tmp_path.iterdir()) == {partial, second, tmp_path / f"{kept}.npy", tmp_path / f"{kept}.npy.part"}
    keep_candidates(tmp_path, {kept})
    assert {path.name for path in tmp_path.iterdir()} == {f"{kept}.npy", f"{kept}.npy.part"}


def test_what_second_fetches_left_goes_also_of_a_release_that_stays(tmp_path):
    """Nobody goes on with it: a fetch that is killed again and again would fill the disk."""
    kept = "0" * 64
    for name in (f"{kept}.npy.0123abcd.part", f"{kept}.npy.part"):
        (tmp_path / name).touch()
    keep_candidates(tmp_path, {kept})
    assert [path.name for path in tmp_path.iterdir()] == [f"{kept}.npy.part"]


def test_files_of_others_in_a_folder_that_is_shared_stay(tmp_path):
    names = {"data.npy", "z.npy.part", "film.part", f"{'0' * 64}.npy.bak", f"{'0' * 63}.npy", f"x{'0' * 64}.npy"}
    for name in (*names, f"{'0' * 64}.npy"):
        (tmp_path / name).touch()
    keep_candidates(tmp_path, set())
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_fetch_that_begins_while_its_file_is_deleted_has_another(tmp_path, monkeypatch):
    target, begun, fetches = tmp_path / f"{'0' * 64}.npy", ExitStack(), []
    (tmp_path / f"{target.name}.part").touch()

    def begin(*_, **__):
        if not fetches:
            fetches.append(begun.enter_context(unfinished(target, resumed=True)))

    with monkeypatch.context() as patch:
        act_before(patch, Path, "unlink", begin)
        keep_candidates(tmp_path, set())
        assert fetches[0].exists()
    begun.close()
    assert not fetches[0].exists()
