"""Passwords of people: argon2id, by the first choice that fits of RFC 9106 (section 4: 64 MiB, 3 passes, 4 lanes).

One check takes about 0.1 s and 64 MiB, so a service makes few at once (``console.sessions``).
"""

from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.profiles import RFC_9106_LOW_MEMORY

from blindopt.errors import Invalid

LENGTH_MIN = 12
LENGTH_MAX = 1_024
_HASHER = PasswordHasher.from_parameters(RFC_9106_LOW_MEMORY)


def hash_of(password: str) -> str:
    """The hash to store: parameters, salt and digest in one text. Raises Invalid for one too short or too long."""
    if not LENGTH_MIN <= len(password) <= LENGTH_MAX:
        raise Invalid(f"a password has {LENGTH_MIN} to {LENGTH_MAX} characters")
    return _HASHER.hash(password)


@cache
def _nobody() -> str:
    return _HASHER.hash("of nobody, so that an unknown name takes as long as a known one")


def matches(password: str, stored: str | None) -> bool:
    """Whether a password is the stored one. ``None``, for an unknown name, takes as long and is False."""
    try:
        _HASHER.verify(stored or _nobody(), password)
    except (VerificationError, InvalidHashError):
        return False
    return stored is not None


def is_dated(stored: str) -> bool:
    """Whether a hash was made with other parameters than today's."""
    return _HASHER.check_needs_rehash(stored)
