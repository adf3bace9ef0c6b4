"""Digests for the log of texts that might be guessed."""

import hashlib
from pathlib import Path

from blindopt.audit.merkle_log import sha256

DIGEST_BYTES = 16
"""Of the keyed digest of a person or a record."""


def salted_digest(text: str | None, salt: str) -> str | None:
    """The digest of a text for the log, salted so that a text cannot be guessed from it; None for None.

    >>> salted_digest(None, "salt"), salted_digest("a", "salt") == salted_digest("a", "other salt")
    (None, False)
    """
    return None if text is None else sha256(f"{salt}{text}".encode())


def salted_file_digest(path: Path, salt: str) -> str:
    """The digest of a file for the log, salted so that its content cannot be guessed from it. Raises OSError."""
    digest = hashlib.sha256(salt.encode())
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
