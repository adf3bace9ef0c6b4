"""Passwords of people: argon2id, by the first choice that fits of RFC 9106 (section 4: 64 MiB, 3 passes, 4 lanes).

One check takes about 0.1 s and 64 MiB, so a service makes few at once (``console.sessions``). Tests choose the cost
"minimal" (8 KiB, one pass), which protects no stored password.
"""

from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.profiles import CHEAPEST, RFC_9106_LOW_MEMORY

from blindopt.errors import Invalid
from service_kit.settings import PasswordCost

LENGTH_MIN = 12
LENGTH_MAX = 1_024


@cache
def _hasher(cost: PasswordCost) -> PasswordHasher:
    return PasswordHasher.from_parameters({"standard": RFC_9106_LOW_MEMORY, "minimal": CHEAPEST}[cost])


def hash_of(password: str, cost: PasswordCost = "standard") -> str:
    """The hash to store: parameters, salt and digest in one text. Raises Invalid for one too short or too long."""
    if not LENGTH_MIN <= len(password) <= LENGTH_MAX:
        raise Invalid(f"a password has {LENGTH_MIN} to {LENGTH_MAX} characters")
    return _hasher(cost).hash(password)


@cache
def _nobody(cost: PasswordCost) -> str:
    return _hasher(cost).hash("of nobody, so that an unknown name takes as long as a known one")


def matches(password: str, stored: str | None, cost: PasswordCost = "standard") -> bool:
    """Whether a password is the stored one. ``None``, for an unknown name, takes as long and is False."""
    try:
        _hasher(cost).verify(stored or _nobody(cost), password)
    except (VerificationError, InvalidHashError):
        return False
    return stored is not None


def is_dated(stored: str, cost: PasswordCost = "standard") -> bool:
    """Whether a hash was made with other parameters than today's."""
    return _hasher(cost).check_needs_rehash(stored)
