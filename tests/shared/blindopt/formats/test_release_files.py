"""Parts of a release are bytes of its npy file: together they are the file, and each change of it is noticed."""

from hashlib import sha256

import numpy as np
import pytest

from blindopt import wire
from blindopt.formats import npy_files, release_files
from blindopt.formats.release_files import parts_of, sections_of


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "z.npy"
    np.save(path, np.random.default_rng(0).normal(size=(40, 3)))
    return path


def test_parts_in_order_are_the_file_and_their_list_is_the_release(file):
    content, parts = file.read_bytes(), parts_of(file, 24 * 15)
    assert [(p.rows, p.bytes) for p in parts] == [(15, 128 + 24 * 15), (15, 24 * 15), (10, 24 * 10)]
    sections = sections_of(40, release_files.digest(file, parts), parts)
    assert b"".join(content[s.first : s.first + s.size] for s in sections) == content
    assert [s.rows for s in sections] == [range(15), range(15, 30), range(30, 40)]
    lines = "".join(f"{p.rows} {p.bytes} {p.sha256}\n" for p in parts)
    digest = sha256(lines.encode()).hexdigest()
    assert release_files.digest(file, parts) == digest == wire.digest_of_parts(parts)
    wire.PublishedCandidates(id="std_1", n=40, r=3, release_sha256=digest, parts=parts)
    for at in range(0, len(content), 37):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert release_files.digest(file, parts) != digest
        assert sum(not section.is_in(file) for section in sections) == 1
    for other in (content + b"0", content[:-1], content[:100]):
        file.write_bytes(other)
        assert release_files.digest(file, parts) != digest


def test_a_small_release_is_one_file(file):
    assert parts_of(file, 40 * 24) == []
    assert len(parts_of(file, 40 * 24 - 1)) == 2
    assert release_files.digest(file) == npy_files.digest(file) == sha256(file.read_bytes()).hexdigest()
    (whole,) = sections_of(40, release_files.digest(file), [])
    assert whole.is_in(file)
    assert whole.rows == range(40)


def test_there_are_1000_parts_at_most_and_each_has_a_row(tmp_path):
    path = tmp_path / "z.npy"
    np.save(path, np.zeros((2_500, 300)))
    assert {part.rows for part in parts_of(path, 1 << 10)} == {3, 1}
    assert len(parts_of(path, 1 << 10)) == 834
