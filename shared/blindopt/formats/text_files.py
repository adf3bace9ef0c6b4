"""Files of text: UTF-8 in every locale. What is read may begin with a byte order mark, as Windows writes it."""

import codecs
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blindopt.errors import Invalid, StateConflict


@contextmanager
def file_errors(path: str | Path, verb: str = "read") -> Iterator[None]:
    """Raise Invalid, which names the file and what must be mended, where the system refuses to open or write it."""
    try:
        yield
    except OSError as error:
        raise Invalid(f"{path} cannot be {verb}: {(error.strerror or type(error).__name__).lower()}") from None


def read_text_file(path: str | Path) -> str:
    """Return the text of a file, without a byte order mark. Raises Invalid for one that is not UTF-8, and OSError."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise Invalid(f"{path} is not text in UTF-8: save it in that encoding") from None


def without_mark(content: bytes) -> bytes:
    """What stands in a file after a byte order mark of UTF-8. Raises Invalid for one of UTF-16."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise Invalid("it is text in UTF-16: save it in UTF-8")
    return content.removeprefix(codecs.BOM_UTF8)


def save_secret(path: str | Path, text: str) -> None:
    """Write a new file that only this user can read (mode 0600). Raises StateConflict where there is one already."""
    content = text.encode()
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        raise StateConflict(f"{path} exists: name another file, a secret is not written over") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except BaseException:  # a file that is not whole would be in the way of the next attempt
        Path(path).unlink(missing_ok=True)
        raise
