"""Signed checkpoints of logs: signed by the party that keeps a log, countersigned by the party that checked it.

Formats of C2SP: signed-note (text, a blank line, signature lines), tlog-checkpoint (origin, size, root)
and tlog-cosignature (another party signs a checkpoint after a consistency check, with the time).
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from blindopt.audit.merkle_log import Head
from blindopt.errors import LogBroken
from blindopt.values import value

_ED25519, _COSIGNATURE = b"\x01", b"\x04"
_CHANGE = b"\xffblindopt-key-change"
CHANGES_MAX = 16
"""How often a party may change its key: each note that it signs carries all of these changes."""
_NAME = re.compile(r"[!-*,-~]{1,200}")  # printable, without space and plus
_LINE = re.compile(r"\u2014 ([!-*,-~]{1,200}) ([A-Za-z0-9+/]+={0,2})")
NOTE_MAX = 10_000

# The y coordinates of Ed25519's points of small order. Under such a key one signature is valid for many messages,
# so it proves nothing.
_P = 2**255 - 19
_EIGHTH = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD83D3D706A17C7
_SMALL_ORDER = {0, 1, _P - 1, _EIGHTH, _P - _EIGHTH}


def _decode(encoded: str) -> bytes:
    """Decode base64 in its canonical spelling. Raises ValueError for any other text."""
    raw = base64.b64decode(encoded, validate=True)
    if base64.b64encode(raw).decode() != encoded:
        raise ValueError("base64 with non-zero padding bits")
    return raw


class ForgedChange(LogBroken):
    """A note names a key that followed another, which did not sign that."""


@value
class Checkpoint:
    """The origin (which log), size and root that a note states."""

    origin: str
    head: Head

    @property
    def text(self) -> str:
        """The signed text: three lines."""
        root = base64.b64encode(bytes.fromhex(self.head.root)).decode()
        return f"{self.origin}\n{self.head.size}\n{root}\n"


class Receipt(NamedTuple):
    """The bytes of an exchange at a position, and the curator's signed note of that position."""

    seq: int
    body: bytes
    note: str


class Countersignature(NamedTuple):
    """The note of a checkpoint of this size that both parties signed."""

    size: int
    note: str


@dataclass(frozen=True, slots=True)
class Verifier:
    """An Ed25519 public key with its name. ``vkey`` is its C2SP text: name+id+key."""

    name: str
    public: bytes

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.public) != 32:
            raise LogBroken("a verifier key needs a name without space or plus, and 32 bytes")
        if (int.from_bytes(self.public, "little") & (1 << 255) - 1) % _P in _SMALL_ORDER:
            raise LogBroken("this verifier key is weak: anybody can sign with it")

    @classmethod
    def parse(cls, vkey: str) -> Self:
        """Parse a ``vkey`` or a ``cosigner_vkey``. Raises LogBroken for any other text."""
        try:
            name, key_id, key = vkey.split("+", 2)
            raw = _decode(key)
            verifier = cls(name, raw[1:])
            if raw[:1] not in (_ED25519, _COSIGNATURE) or key_id != verifier.key_id(raw[:1]).hex():
                raise ValueError
        except ValueError:
            raise LogBroken("this is no Ed25519 verifier key") from None
        return verifier

    @property
    def vkey(self) -> str:
        """The key as one that signs notes: type 0x01."""
        return self._text(_ED25519)

    @property
    def cosigner_vkey(self) -> str:
        """The same key as one that countersigns (C2SP tlog-cosignature): type 0x04."""
        return self._text(_COSIGNATURE)

    def _text(self, algorithm: bytes) -> str:
        return f"{self.name}+{self.key_id(algorithm).hex()}+{base64.b64encode(algorithm + self.public).decode()}"

    def key_id(self, algorithm: bytes) -> bytes:
        """Return the four bytes that identify this key in a signature line."""
        return hashlib.sha256(self.name.encode() + b"\n" + algorithm + self.public).digest()[:4]

    def _is_valid(self, signature: bytes, message: bytes) -> bool:
        try:
            _public_key(self.public).verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def verify(self, note: str, log: str | None = None) -> Checkpoint:
        """Return the checkpoint of a note, which must be of ``log`` if one is named: ``log`` or a grant.

        Raises LogBroken unless this key signed it, or one that followed it.
        """
        checkpoint, signer = self.follow(note)
        if log is not None and checkpoint.origin != f"{signer.name}/{log}":
            raise LogBroken(f"the checkpoint is of another log: {checkpoint.origin} is not of this log")
        return checkpoint

    def verify_text(self, note: str) -> str:
        """Return the text of a note. Raises LogBroken unless this key signed it, or one that followed it."""
        return self._signed(note)[0]

    def follow(self, note: str) -> tuple[Checkpoint, "Verifier"]:
        """Return the checkpoint of a note, and the key that signed it: this one, or one that followed it.

        Raises LogBroken for any other, ForgedChange where this one did not name the key after it.
        """
        body, signer = self._signed(note)
        return _parse(body), signer

    def _signed(self, note: str) -> tuple[str, "Verifier"]:
        body, signature_lines = _split(note)
        for key in self._followed(signature_lines):
            for name, key_id, signature in signature_lines:
                is_own = (name, key_id) == (key.name, key.key_id(_ED25519))
                if is_own and key._is_valid(signature, body.encode()):
                    return body, key
        raise LogBroken(f"the note has no valid signature of {self.name}")

    def _followed(self, signature_lines: "_Lines") -> Iterator["Verifier"]:
        """Yield this key and those that followed it, as the changes in a note show."""
        key = self
        yield key
        changes = _changes(signature_lines)
        while (following := changes.pop(key, None)) is not None:
            key = following
            yield key

    def first(self, note: str) -> "Verifier":
        """Return the key that this one followed, over all changes in a note."""
        before, key = {new: old for old, new in _changes(_split(note)[1]).items()}, self
        while (earlier := before.pop(key, None)) is not None:
            key = earlier
        return key

    def verify_countersignature(self, note: str) -> tuple[Checkpoint, int]:
        """Return the checkpoint of a note and the countersignature's time (Unix seconds).

        Raises LogBroken unless this key countersigned the note, or one that followed it.
        """
        checkpoint, time, _ = self.countersigner(note)
        return checkpoint, time

    def countersigner(self, note: str) -> tuple[Checkpoint, int, "Verifier"]:
        """``verify_countersignature``, and the key that countersigned: this one, or one that followed it."""
        body, signature_lines = _split(note)
        for key in self._followed(signature_lines):
            for name, key_id, signature in signature_lines:
                if (name, key_id) == (key.name, key.key_id(_COSIGNATURE)):
                    time = int.from_bytes(signature[:8])
                    if key._is_valid(signature[8:], _cosigned(body, time)):
                        return _parse(body), time, key
        raise LogBroken(f"the note has no valid countersignature of {self.name}")


_public_key = lru_cache(maxsize=64)(Ed25519PublicKey.from_public_bytes)


class Signer:
    """A private key with its name. Its repr shows only the name."""

    def __init__(self, name: str, private: Ed25519PrivateKey, changes: tuple[str, ...] = ()) -> None:
        self.verifier = Verifier(name, private.public_key().public_bytes_raw())
        self.name = name
        """As in its verifier."""
        self._private = private
        self._key_ids = {algorithm: self.verifier.key_id(algorithm) for algorithm in (_ED25519, _COSIGNATURE)}
        self.changes = changes
        """A line for each change of the key before this one: each note of this one carries them."""

    def __repr__(self) -> str:
        return f"Signer({self.name})"

    @property
    def private_hex(self) -> bytes:
        return self._private.private_bytes_raw().hex().encode()

    @classmethod
    def of(cls, kind: str, private: bytes, changes: tuple[str, ...] = ()) -> Self:
        """Make a signer from 32 private bytes, named ``kind`` and a digest of the public key."""
        key = Ed25519PrivateKey.from_private_bytes(private)
        return cls(_name(kind, key.public_key().public_bytes_raw()), key, changes)

    @property
    def first(self) -> Verifier:
        """The first key of this party: it verifies every note of this one, and of those before."""
        return self.verifier.first("-\n\n" + "".join(self.changes)) if self.changes else self.verifier

    def change_to(self, following: Verifier) -> str:
        """Return the line by which this key names the one that signs from now on."""
        signature = self._private.sign(_change(self.verifier, following))
        raw = self.verifier.key_id(_CHANGE) + self.verifier.public + following.public + signature
        return f"\u2014 {self.name} {base64.b64encode(raw).decode()}\n"

    def mac(self, text: str) -> str:
        """Return 16 hex digits that only this signer can make of a text."""
        return hmac.digest(self._private.private_bytes_raw(), b"blindopt mac\n" + text.encode(), "sha256")[:8].hex()

    def sign(self, checkpoint: Checkpoint) -> str:
        return self.sign_text(checkpoint.text) + "".join(self.changes)

    def sign_text(self, body: str) -> str:
        """Return a text, which ends with a line end, as a signed note.

        One key signs checkpoints and other texts: a text of another kind must not have three lines, as they do.
        """
        return f"{body}\n{self._line(_ED25519, self._private.sign(body.encode()))}"

    def countersign(self, note: str, time: int) -> str:
        """Add a countersignature: at ``time`` (Unix seconds) the signer had checked that the log had only grown."""
        body, _ = _split(note)
        line = self._line(_COSIGNATURE, time.to_bytes(8) + self._private.sign(_cosigned(body, time)))
        return note + line + "".join(self.changes)

    def _line(self, algorithm: bytes, signature: bytes) -> str:
        encoded = base64.b64encode(self._key_ids[algorithm] + signature).decode()
        return f"\u2014 {self.name} {encoded}\n"


def _cosigned(body: str, time: int) -> bytes:
    return f"cosignature/v1\ntime {time}\n{body}".encode()


_Lines = tuple[tuple[str, bytes, bytes], ...]


def _name(kind: str, public: bytes) -> str:
    return f"{kind}.{hashlib.sha256(public).hexdigest()[:16]}"


def _change(old: Verifier, new: Verifier) -> bytes:
    return f"blindopt key change\n{old.vkey}\n{new.vkey}\nthe second key signs from now on\n".encode()


def _changes(signature_lines: _Lines) -> dict[Verifier, Verifier]:
    """Return the changes of keys in a note's lines, by the old key, which has signed each. Raises ForgedChange."""
    changes: dict[Verifier, Verifier] = {}
    for name, key_id, raw in signature_lines:
        if len(raw) == 128 and len(changes) < 2 * CHANGES_MAX:
            old, new = Verifier(name, raw[:32]), Verifier(_name(name.partition(".")[0], raw[32:64]), raw[32:64])
            if key_id != old.key_id(_CHANGE):
                continue
            if not old._is_valid(raw[64:], _change(old, new)):
                raise ForgedChange(f"a change of the key {old.name} is not signed by it")
            changes.setdefault(old, new)
    return changes


@lru_cache(maxsize=16)  # a receipt is read for its position, and again to be verified
def _split(note: str) -> tuple[str, _Lines]:
    """Split a note into its text and signatures (name, key id, bytes). Raises LogBroken for any other text."""
    body, blank, signatures = note.rpartition("\n\n")
    if not blank or len(note) > NOTE_MAX or not signatures.endswith("\n"):
        raise LogBroken("this is no signed note")
    signature_lines = []
    for line in signatures.removesuffix("\n").split("\n"):
        match = _LINE.fullmatch(line)
        try:
            raw = _decode(match[2]) if match else b""
        except ValueError:
            raw = b""
        if match is None or len(raw) < 5:
            raise LogBroken("a signature line of the note cannot be read")
        signature_lines.append((match[1], raw[:4], raw[4:]))
    return body + "\n", tuple(signature_lines)


def parse_unverified(note: str) -> Checkpoint:
    """Return the checkpoint of a note without checking its signatures. Raises LogBroken for any other text."""
    return _parse(_split(note)[0])


def _parse(body: str) -> Checkpoint:
    body_lines = body.removesuffix("\n").split("\n")
    try:
        origin, size, root = body_lines  # extension lines are refused: neither party writes them
        decoded = _decode(root)
        if not re.fullmatch(r"0|[1-9][0-9]{0,17}", size) or len(decoded) != 32 or not origin:
            raise ValueError
    except ValueError:
        raise LogBroken("the note is no checkpoint: origin, size and root are needed") from None
    return Checkpoint(origin, Head(int(size), decoded.hex()))
