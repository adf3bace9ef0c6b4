"""Digests for the log of texts that might be guessed."""

from blindopt.audit.merkle_log import sha256


def salted_digest(text: str | None, salt: str) -> str | None:
    """The digest of a text for the log, salted so that a text cannot be guessed from it; None for None.

    >>> salted_digest(None, "salt"), salted_digest("a", "salt") == salted_digest("a", "other salt")
    (None, False)
    """
    return None if text is None else sha256(f"{salt}{text}".encode())
