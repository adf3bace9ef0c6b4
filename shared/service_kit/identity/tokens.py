"""Bearer tokens: `blindopt_<key id>.<secret>`, shown once, stored as a hash."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Literal

Role = Literal["owner", "measurer", "auditor", "modeler", "vendor", "viewer", "monitor"]
_FORM = re.compile(r"blindopt_([0-9a-f]{16})\.([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: a person or a program with up to two live tokens, and the one that it showed; or a console's user.

    ``id`` is ``usr_...``, or ``grt_...`` for the grant of a modeler, which opens one study.
    """

    id: str
    kid: str
    role: Role
    name: str
    study_id: str | None = None

    @property
    def is_user(self) -> bool:
        """Whether it came in with a password and not with a token: its id stands where the key id would."""
        return self.kid == self.id

    @property
    def actor(self) -> str:
        """How the log names it."""
        return f"{self.role}:{self.kid}"


@dataclass(frozen=True, slots=True)
class Token:
    """A token in clear. Its repr shows the key id alone."""

    kid: str
    secret: str

    def __repr__(self) -> str:
        return f"Token({self.kid}.***)"

    @property
    def text(self) -> str:
        """What the bearer sends."""
        return f"blindopt_{self.kid}.{self.secret}"

    @property
    def secret_sha256(self) -> bytes:
        """32 random bytes need no slow hash."""
        return hashlib.sha256(self.secret.encode()).digest()

    def matches(self, secret_sha256: bytes) -> bool:
        """Constant-time comparison with a stored hash."""
        return hmac.compare_digest(self.secret_sha256, secret_sha256)


def mint() -> Token:
    """A new token from the operating system's entropy."""
    return Token(kid=secrets.token_hex(8), secret=secrets.token_urlsafe(32))


def new_principal(kind: Literal["usr", "grt"]) -> str:
    """A fresh opaque id."""
    return f"{kind}_{secrets.token_hex(8)}"


def parse(text: str) -> Token | None:
    """The token of a header value, or None if it has not the form."""
    match = _FORM.fullmatch(text)
    return Token(*match.groups()) if match else None
