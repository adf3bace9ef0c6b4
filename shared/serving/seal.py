"""Secrets at rest: encrypted with a key that lives in a file outside the database."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from shared.errors import StateConflict


class Seal:
    """Authenticated encryption under the key in ``path``, made with mode 0600 at first use.

    Who reads the database alone learns nothing; who has both has all.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            _make_key(path)
        try:
            self._fernet = Fernet(path.read_bytes())
        except ValueError:
            raise StateConflict(f"{path} is not a key: put back the one that was there") from None

    def close(self, clear: bytes) -> bytes:
        """Encrypt."""
        return self._fernet.encrypt(clear)

    def open(self, sealed: bytes) -> bytes:
        """Decrypt; StateConflict if the key file is not the one that sealed it."""
        try:
            return self._fernet.decrypt(sealed)
        except InvalidToken:
            raise StateConflict("a stored secret cannot be opened: the key file was replaced") from None


def _make_key(path: Path) -> None:
    """Write a key whole or not at all, and never over another one."""
    with tempfile.NamedTemporaryFile(dir=path.parent) as file:  # created with mode 0600
        file.write(Fernet.generate_key())
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first: its key counts
            os.link(file.name, path)
