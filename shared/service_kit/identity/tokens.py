"""Bearer tokens: `blindopt_<key id>.<secret>`, shown once, stored as a hash."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Literal

Role = Literal["owner", "measurer", "auditor", "modeler", "vendor", "viewer", "monitor", "link"]
_FORM = re.compile(r"blindopt_([0-9a-f]{16})\.([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request: a person or program and the token it sent, or a user of the console.

    ``id`` is ``usr_...``, or ``grt_...`` for the grant of a modeler, which opens one study. ``kid`` is the key id.
    """

    id: str
    kid: str
    role: Role
    name: str
    study_id: str | None = None

    @property
    def is_user(self) -> bool:
        """Whether it logged in with a password instead of a token. Its id is then also its key id."""
        return self.kid.startswith("usr_")

    @property
    def actor(self) -> str:
        return f"{self.role}:{self.kid}"


@dataclass(frozen=True, slots=True)
class Token:
    """A token in clear text. Its repr shows only the key id."""

    kid: str
    secret: str

    def __repr__(self) -> str:
        return f"Token({self.kid}.***)"

    @property
    def text(self) -> str:
        return f"blindopt_{self.kid}.{self.secret}"

    @property
    def secret_sha256(self) -> bytes:
        """SHA-256 of the secret. 32 random bytes need no slow hash."""
        return hashlib.sha256(self.secret.encode()).digest()

    def matches(self, secret_sha256: bytes) -> bool:
        """Compare with a stored hash, in constant time."""
        return hmac.compare_digest(self.secret_sha256, secret_sha256)


def mint() -> Token:
    """Create a token from the operating system's entropy."""
    return Token(kid=secrets.token_hex(8), secret=secrets.token_urlsafe(32))


def new_id(kind: str) -> str:
    """A new opaque id, ``<kind>_<16 hex digits>``."""
    return f"{kind}_{secrets.token_hex(8)}"


def parse(token_text: str) -> Token | None:
    """The token in a header value, or None if it does not have the form of a token."""
    match = _FORM.fullmatch(token_text)
    return Token(*match.groups()) if match else None
