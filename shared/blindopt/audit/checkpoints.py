"""Signed notes: the heads of logs, signed by who keeps the log and countersigned by who watched it.

Formats of C2SP: signed-note (text, a blank line, signature lines), tlog-checkpoint (origin, size, root)
and tlog-cosignature (another party signs a checkpoint that it found consistent, with the time).
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from blindopt.audit.merkle_log import Head
from blindopt.errors import LogBroken

_ED25519, _COSIGNATURE = b"\x01", b"\x04"
_NAME = re.compile(r"[!-*,-~]{1,200}")  # printable, without space and plus
_LINE = re.compile(r"\u2014 ([!-*,-~]{1,200}) ([A-Za-z0-9+/]+={0,2})")
NOTE_MAX = 4_000

# The y of Ed25519's points of small order. Under such a key one signature fits many messages: what it "signs"
# can be denied.
_P = 2**255 - 19
_EIGHTH = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD83D3D706A17C7
_SMALL_ORDER = {0, 1, _P - 1, _EIGHTH, _P - _EIGHTH}


def _decoded(text: str) -> bytes:
    """The bytes of a base64 text in its one spelling. Raises ValueError."""
    raw = base64.b64decode(text, validate=True)
    if base64.b64encode(raw).decode() != text:
        raise ValueError("a base64 text with stray bits")
    return raw


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a note about a log says: which log (its origin), how long it is, its root."""

    origin: str
    head: Head

    @property
    def text(self) -> str:
        """The three lines that are signed."""
        root = base64.b64encode(bytes.fromhex(self.head.root)).decode()
        return f"{self.origin}\n{self.head.size}\n{root}\n"


@dataclass(frozen=True, slots=True)
class Verifier:
    """A public key with its name. ``vkey`` is its C2SP text: name+id+key."""

    name: str
    public: bytes

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.public) != 32:
            raise LogBroken("a verifier key needs a name without space or plus, and 32 bytes")
        if (int.from_bytes(self.public, "little") & (1 << 255) - 1) % _P in _SMALL_ORDER:
            raise LogBroken("this verifier key is weak: anybody can sign with it")

    @classmethod
    def parse(cls, vkey: str) -> Self:
        """The key of a ``vkey``. Raises LogBroken for anything else."""
        try:
            name, told, key = vkey.split("+", 2)
            raw = _decoded(key)
            verifier = cls(name, raw[1:])
            if raw[:1] != _ED25519 or told != verifier.identity(_ED25519).hex():
                raise ValueError
        except ValueError:
            raise LogBroken("this is no Ed25519 verifier key") from None
        return verifier

    @property
    def vkey(self) -> str:
        return f"{self.name}+{self.identity(_ED25519).hex()}+{base64.b64encode(_ED25519 + self.public).decode()}"

    def identity(self, algorithm: bytes) -> bytes:
        """The four bytes that name this key in a signature line."""
        return hashlib.sha256(self.name.encode() + b"\n" + algorithm + self.public).digest()[:4]

    def _accepts(self, signature: bytes, message: bytes) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def signed(self, note: str) -> Checkpoint:
        """The checkpoint of a note that this key signed. Raises LogBroken."""
        text, lines = _split(note)
        for name, identity, signature in lines:
            named = (name, identity) == (self.name, self.identity(_ED25519))
            if named and self._accepts(signature, text.encode()):
                return _checkpoint(text)
        raise LogBroken(f"the note has no valid signature of {self.name}")

    def countersigned(self, note: str) -> tuple[Checkpoint, int]:
        """The checkpoint of a note that this key countersigned, and when (Unix seconds). Raises LogBroken."""
        text, lines = _split(note)
        for name, identity, signature in lines:
            if (name, identity) == (self.name, self.identity(_COSIGNATURE)):
                time = int.from_bytes(signature[:8])
                if self._accepts(signature[8:], _cosigned(text, time)):
                    return _checkpoint(text), time
        raise LogBroken(f"the note has no valid countersignature of {self.name}")


class Signer:
    """A private key with its name. Its repr shows the name alone."""

    def __init__(self, name: str, private: Ed25519PrivateKey) -> None:
        self.verifier = Verifier(name, private.public_key().public_bytes_raw())
        self._private = private

    def __repr__(self) -> str:
        return f"Signer({self.name})"

    @property
    def name(self) -> str:
        """The name of the key."""
        return self.verifier.name

    @classmethod
    def of(cls, kind: str, private: bytes) -> Self:
        """The key of 32 private bytes, named ``kind`` and a digest of its public half."""
        key = Ed25519PrivateKey.from_private_bytes(private)
        digest = hashlib.sha256(key.public_key().public_bytes_raw()).hexdigest()[:16]
        return cls(f"{kind}.{digest}", key)

    def sign(self, checkpoint: Checkpoint) -> str:
        """A signed note."""
        text = checkpoint.text
        return f"{text}\n{self._line(_ED25519, self._private.sign(text.encode()))}"

    def countersign(self, note: str, time: int) -> str:
        """``note`` with a line that says: at ``time`` (Unix seconds) I knew this log, and it had only grown."""
        text, _ = _split(note)
        return note + self._line(_COSIGNATURE, time.to_bytes(8) + self._private.sign(_cosigned(text, time)))

    def _line(self, algorithm: bytes, signature: bytes) -> str:
        told = base64.b64encode(self.verifier.identity(algorithm) + signature).decode()
        return f"\u2014 {self.name} {told}\n"


def _cosigned(text: str, time: int) -> bytes:
    return f"cosignature/v1\ntime {time}\n{text}".encode()


def _split(note: str) -> tuple[str, list[tuple[str, bytes, bytes]]]:
    """Text and signatures (name, key id, bytes). LogBroken for a text that is no note."""
    text, blank, told = note.rpartition("\n\n")
    if not blank or len(note) > NOTE_MAX or not told.endswith("\n"):
        raise LogBroken("this is no signed note")
    lines = []
    for line in told.removesuffix("\n").split("\n"):
        match = _LINE.fullmatch(line)
        try:
            raw = _decoded(match[2]) if match else b""
        except ValueError:
            raw = b""
        if match is None or len(raw) < 5:
            raise LogBroken("a signature line of the note cannot be read")
        lines.append((match[1], raw[:4], raw[4:]))
    return text + "\n", lines


def unverified(note: str) -> Checkpoint:
    """What a note says, before anybody checked who signed it. LogBroken for a text that is no note."""
    return _checkpoint(_split(note)[0])


def _checkpoint(text: str) -> Checkpoint:
    lines = text.removesuffix("\n").split("\n")
    try:
        origin, size, root = lines  # no extension lines: we write none
        decoded = _decoded(root)
        if not re.fullmatch(r"0|[1-9][0-9]{0,17}", size) or len(decoded) != 32 or not origin:
            raise ValueError
    except ValueError:
        raise LogBroken("the note is no checkpoint: origin, size and root are needed") from None
    return Checkpoint(origin, Head(int(size), decoded.hex()))
