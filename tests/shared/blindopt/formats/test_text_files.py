"""Files of text are UTF-8, and may begin with a byte order mark; a secret is written whole or not at all."""

import codecs
import os

import pytest

from blindopt.errors import Invalid, StateConflict
from blindopt.formats.text_files import read_text_file, save_secret

NAMES = "Müller, Żółć, 山田, محمد, \U0001f600 \u2014"


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_a_text_is_read_without_the_mark(mark, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(mark + NAMES.encode())
    assert read_text_file(file) == read_text_file(str(file)) == NAMES


@pytest.mark.parametrize("encoding", ["utf-16", "cp1252"])
def test_another_encoding_is_refused_in_words(encoding, tmp_path):
    file = tmp_path / "file"
    file.write_bytes("Müller".encode(encoding))
    with pytest.raises(Invalid, match="is not text in UTF-8: save it in that encoding"):
        read_text_file(file)


def test_a_secret_that_cannot_be_written_leaves_no_file_in_the_way(tmp_path, monkeypatch):
    file = tmp_path / "secret"
    with pytest.raises(UnicodeEncodeError):
        save_secret(file, "\ud800")
    assert not file.exists()

    def full(descriptor, mode):
        os.close(descriptor)
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", full)
        with pytest.raises(OSError, match="no space"):
            save_secret(file, NAMES)
    assert not file.exists()
    save_secret(file, NAMES)
    assert file.read_bytes() == NAMES.encode()
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(StateConflict, match="is not written over"):
        save_secret(file, NAMES)
