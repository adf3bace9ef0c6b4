"""What is in an uploaded file: gzip is unpacked, up to a limit."""

import gzip
import hashlib
import io
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from curator_service.datasets.findings import refuse, too_large

_MAGIC = b"\x1f\x8b"
_PARQUET = b"PAR1"
_CHUNK = 1 << 20


@contextmanager
def unpacked(file: BinaryIO, limit: int, folder: Path) -> Iterator[BinaryIO]:
    """The file itself, or the content of a gzip file, in a scratch file of ``folder``.

    Raises DatasetInvalid for content of more than ``limit`` bytes, before more of it is written, and for a broken file.
    """
    if not is_packed(file):
        yield file
        return
    with tempfile.TemporaryFile(dir=folder) as content:
        size = 0
        try:
            with gzip.GzipFile(fileobj=file, mode="rb") as packed:
                while chunk := packed.read(_CHUNK):
                    size += len(chunk)
                    if size > limit:
                        raise too_large(limit)
                    content.write(chunk)
        except (gzip.BadGzipFile, EOFError, zlib.error):
            raise refuse("the file is not a whole gzip file") from None
        content.seek(0)
        yield content


def is_packed(file: BinaryIO) -> bool:
    """Whether a file, which is then at its beginning, is packed with gzip."""
    file.seek(0)
    magic = file.read(len(_MAGIC))
    file.seek(0)
    return magic == _MAGIC


def is_parquet(filename: str, file: BinaryIO) -> bool:
    """Whether a file, which is at its beginning, or what is packed in it, begins as Parquet or has such a name."""
    opened = gzip.GzipFile(fileobj=file, mode="rb") if is_packed(file) else file
    try:
        magic = opened.read(len(_PARQUET))
    except (OSError, EOFError, zlib.error):  # a broken archive, which is refused when it is unpacked
        magic = b""
    file.seek(0, io.SEEK_END)  # nothing stays in its buffer, whose place another process may move
    file.seek(0)
    return magic == _PARQUET or filename.lower().removesuffix(".gz").endswith(".parquet")


def digest_of(file: BinaryIO) -> str:
    """SHA-256 of a file, which is then at its beginning again."""
    sha = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        sha.update(chunk)
    file.seek(0)
    return sha.hexdigest()
