"""Keys in files outside the database: one encrypts stored secrets, one signs the log."""

import hmac
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from blindopt.audit.checkpoints import Signer
from blindopt.errors import StateConflict

WEBHOOK_KEY_MIN = 32


class Seal:
    """Authenticated encryption under the key in ``path``, which is created with mode 0600 at first use.

    The database alone reveals no sealed value; the database and the key reveal all of them.
    """

    def __init__(self, path: Path) -> None:
        key = _key_file(path, Fernet.generate_key)
        try:
            self._fernet = Fernet(key)
        except ValueError:
            raise StateConflict(f"{path} is not a key: put back the one that was there") from None
        self._key = key

    def key_for(self, purpose: str) -> bytes:
        """A key of 32 bytes for one purpose, derived from this one, and so backed up and restored with it."""
        return hmac.digest(self._key, f"blindopt {purpose}".encode(), "sha256")

    def close(self, clear: bytes) -> bytes:
        """Encrypt and authenticate ``clear``."""
        return self._fernet.encrypt(clear)

    def open(self, sealed: bytes) -> bytes:
        """Decrypt ``sealed``. Raises StateConflict if it was sealed with another key."""
        try:
            return self._fernet.decrypt(sealed)
        except InvalidToken:
            raise StateConflict("a stored secret cannot be opened: the key file was replaced") from None

    def open_labelled(self, label: bytes, text: str | None) -> bytes | None:
        """Decrypt a text from a browser without its ``label``; None for anything that was not sealed with it here."""
        try:
            clear = self.open((text or "").encode())
        except StateConflict:
            return None
        return clear.removeprefix(label) if clear.startswith(label) else None


def signer(path: Path, kind: str) -> Signer:
    """The Ed25519 key in ``path`` (hex), which is created with mode 0600 at first use."""
    try:
        return Signer.of(kind, bytes.fromhex(_key_file(path, lambda: os.urandom(32).hex().encode()).decode()))
    except ValueError:
        raise StateConflict(f"{path} is not a key: put back the one that was there") from None


def webhook_key(path: Path, setting: str) -> bytes:
    """The key of a webhook, from the file that ``setting`` names. Raises StateConflict if it is too short."""
    key = path.read_bytes().strip()
    if len(key) < WEBHOOK_KEY_MIN:
        raise StateConflict(f"the key in {setting} must have {WEBHOOK_KEY_MIN} characters or more")
    return key


def _key_file(path: Path, make: Callable[[], bytes]) -> bytes:
    """Read a key. If there is none, write it first, atomically and never over another one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=path.parent) as file:  # created with mode 0600
            file.write(make())
            file.flush()
            os.fsync(file.fileno())
            with suppress(FileExistsError):  # another process was first, and its key is used
                os.link(file.name, path)
    return path.read_bytes()
