"""Candidates on the disk: read whole once, and again where the file is not what it was."""

import os
from hashlib import sha256

import pytest

from blindopt.formats import npy_files
from modeler_service.runs import candidates


@pytest.fixture
def reads(monkeypatch):
    found, digest = [], npy_files.digest
    monkeypatch.setattr(npy_files, "digest", lambda path: found.append(path.name) or digest(path))
    return found


def test_a_file_is_read_once_and_again_only_when_it_is_asked_for_or_was_changed(tmp_path, reads):
    content = b"x" * 100_000
    path, told = tmp_path / "z.npy", sha256(content).hexdigest()
    assert not candidates.is_here(path, told)
    path.write_bytes(content)
    assert [candidates.is_here(path, told) for _ in range(5)] == [True] * 5
    assert len(reads) == 1
    assert not candidates.is_here(path, "0" * 64)
    assert candidates.is_here(path, told, anew=True)
    assert len(reads) == 2
    at = path.stat()
    with path.open("r+b") as file:  # a flipped byte, and the time of the last change put back
        file.write(b"y")
    os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))
    assert not candidates.is_here(path, told)
    other = tmp_path / "other"
    other.write_bytes(content)
    other.replace(path)  # another file under the name, as a download puts there
    assert candidates.is_here(path, told)
    assert len(reads) == 4


def test_what_is_remembered_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(candidates.Digests, "_MOST", 3)
    digests = candidates.Digests()
    for number in range(10):
        (tmp_path / str(number)).write_bytes(bytes([number]))
        digests.of(tmp_path / str(number))
    assert len(digests._known) == 3
