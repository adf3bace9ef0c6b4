"""Keys in files outside the database: one encrypts stored secrets, one signs the log."""

import hmac
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from cryptography.fernet import Fernet, InvalidToken

from blindopt.audit.checkpoints import Signer
from blindopt.audit.merkle_log import Json
from blindopt.errors import Invalid, StateConflict
from blindopt.formats.text_files import without_mark

WEBHOOK_KEY_MIN = 32


class Seal:
    """Authenticated encryption under a key, in a folder with the keys that were derived from an earlier one.

    The database alone reveals no sealed value; the database and the key reveal all of them.
    """

    def __init__(self, secret: bytes, folder: Path) -> None:
        self._fernet = Fernet(secret)
        self.secret, self._folder = secret, folder
        self._mac_key = hmac.digest(secret, b"blindopt rows", "sha256")

    def __repr__(self) -> str:
        return f"Seal({key_id(self.secret)})"

    @classmethod
    def of(cls, path: Path, logged_name: str | None = None, *, is_new: bool = True) -> Self:
        """The key in ``path``, which is created with mode 0600 at first use, or the new one beside it.

        ``logged_name``: the id of the key that the log names. Raises StateConflict if neither is it, and where there is
        none and the service is not new (``is_new``).
        """
        try:
            return cls(_current(path, Fernet.generate_key if is_new else None, key_id, logged_name), path.parent)
        except ValueError:
            raise StateConflict(f"{path} is not a key: put back the one that was there") from None

    def key_for(self, purpose: str) -> bytes:
        """A key of 32 bytes for one purpose, derived from the first key, and backed up and restored with it."""
        if (changed_key := self._folder / f"{purpose}.key").exists():  # since the key was changed
            return bytes.fromhex(changed_key.read_bytes().decode())
        return hmac.digest(self.secret, f"blindopt {purpose}".encode(), "sha256")

    def mac(self, *values: str | bytes | None) -> bytes:
        """The MAC of the values that decide in a row, which the database alone does not allow to make."""
        texts = [bytes(value).hex() if isinstance(value, bytes) else value for value in values]
        return hmac.digest(self._mac_key, json.dumps(texts).encode(), "sha256")

    def close(self, clear: bytes) -> bytes:
        return self._fernet.encrypt(clear)

    def open(self, sealed: bytes) -> bytes:
        """Decrypt ``sealed``. Raises StateConflict if it was sealed with another key."""
        try:
            return self._fernet.decrypt(sealed)
        except InvalidToken:
            raise StateConflict(
                "seal.key does not open what is sealed here: put back the key that belongs to this database"
            ) from None

    def check(self, values: Iterable[bytes]) -> None:
        """Raise StateConflict if it opens none of these. One that was changed since it was sealed stops nothing."""
        refusal = None
        for value in values:
            try:
                self.open(value)
            except StateConflict as error:
                refusal = error
            else:
                return
        if refusal is not None:
            raise refusal

    def open_labelled(self, label: bytes, sealed: str | None) -> bytes | None:
        """Decrypt a text from a browser without its ``label``; None for anything that was not sealed with it here."""
        try:
            clear = self.open((sealed or "").encode())
        except StateConflict:
            return None
        return clear.removeprefix(label) if clear.startswith(label) else None


def key_id(secret: bytes) -> str:
    """What the log names a seal key by: nothing follows from it about the key."""
    return hmac.digest(secret, b"blindopt key id", "sha256").hex()[:16]


def signer(path: Path, kind: str, changes: Sequence[Json] = (), *, is_new: bool = True) -> Signer:
    """The Ed25519 key in ``path`` (hex), which is created with mode 0600 at first use, or the new one beside it.

    ``changes``: what the log says about each change of this key. Raises StateConflict as ``Seal.of``.
    """

    def vkey(secret: bytes) -> str:
        return Signer.of(kind, bytes.fromhex(secret.decode())).verifier.vkey

    logged_name = str(changes[-1]["vkey"]) if changes else None
    try:
        secret = _current(path, (lambda: os.urandom(32).hex().encode()) if is_new else None, vkey, logged_name)
        return Signer.of(kind, bytes.fromhex(secret.decode()), tuple(str(change["line"]) for change in changes))
    except ValueError:
        raise StateConflict(f"{path} is not a key: put back the one that was there") from None


def webhook_key(path: Path, setting: str) -> bytes:
    """The key of a webhook, from the file that ``setting`` names. Raises StateConflict if it is too short."""
    try:
        key = without_mark(path.read_bytes()).strip()
    except Invalid as error:
        raise StateConflict(f"the key in {setting} cannot be read: {error}") from None
    if len(key) < WEBHOOK_KEY_MIN:
        raise StateConflict(f"the key in {setting} must have {WEBHOOK_KEY_MIN} characters or more")
    return key


def next_path(path: Path) -> Path:
    """Where a new key waits until the log names it."""
    return path.with_name(f"{path.name}.new")


def read_next(path: Path) -> bytes | None:
    try:
        return next_path(path).read_bytes()
    except FileNotFoundError:
        return None


def write_durably(path: Path, content: bytes) -> None:
    """Write a file that only this user can read, whole and durably, over the one that was there."""
    partial = path.with_name(f"{path.name}.part")
    with partial.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # otherwise a power cut may leave an empty file
    partial.replace(path)


def _current(
    path: Path, make: Callable[[], bytes] | None, name_of: Callable[[bytes], str], logged_name: str | None
) -> bytes:
    """The key that the log names: in ``path``, or beside it if a kill came before it was put there."""
    if make is None and not path.exists():  # another one would open nothing that was sealed, and sign another log
        raise StateConflict(f"{path} is missing, and the log has records: put back the key that was there")
    for secret in (_key_file(path, make), read_next(path)):
        if secret is not None and logged_name in (None, name_of(secret)):
            return secret
    raise StateConflict(f"{path} is not the key that the log names: put back the one that was there")


def _key_file(path: Path, make: Callable[[], bytes] | None) -> bytes:
    """Read a key. If there is none, and one may be made, write it first, atomically and never over another one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if make is not None and not path.exists():
        with tempfile.NamedTemporaryFile(dir=path.parent) as file:  # created with mode 0600
            file.write(make())
            file.flush()
            os.fsync(file.fileno())
            with suppress(FileExistsError):  # another process was first, and its key is used
                os.link(file.name, path)
    return path.read_bytes()
