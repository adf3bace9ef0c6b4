"""The audit log as pure functions: canonical records, a Merkle tree, verification.

A log is a sequence of records. Each record is stored as the RFC 8785 bytes that were hashed; each is
a leaf of an RFC 6962 Merkle tree, whose frontier (the roots of its full subtrees, largest first) is
stored beside it. Each party keeps a log of its own; the exchanges under one grant are also a log that
both share, equal byte for byte (``blindopt.audit.reconciliation`` compares them).
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import rfc8785
from pydantic_core import from_json, to_json

from blindopt.errors import LogBroken
from blindopt.values import value

Json = dict[str, Any]
RECEIPT_HEADER = "Blindopt-Receipt"


@value
class Exchange:
    """One request and its reply, recorded alike by both parties.

    Digests are SHA-256 in hex over the exact bytes of the bodies (for candidates: the whole file, the
    value of its ETag). Replies that hold outcomes carry a random salt, so a digest reveals nothing.
    ``position`` is its index in the log that both share, one for each grant; None for a reply without a
    receipt.
    """

    study_id: str
    grant_id: str | None
    position: int | None
    request_id: str
    method: str
    path: str
    idempotency_key: str | None
    request_sha256: str
    status: int
    reply_sha256: str
    replayed: bool = False

    def as_json(self) -> Json:
        return {name: getattr(self, name) for name in self.__annotations__}

    @property
    def body(self) -> bytes:
        """The canonical bytes: a leaf of the shared log, equal on both sides."""
        seq, status = self.position, self.status
        is_index = seq is None or (type(seq) is int and 0 <= seq < 2**53)
        if type(status) is not int or not 0 <= status < 1_000 or not is_index:
            return canonical(self.as_json())  # of another party, and wrong
        position = "null" if seq is None else seq
        replayed = "true" if self.replayed else "false"
        return (  # as ``canonical`` writes it, in a fifth of the time
            f'{{"grant_id":{_quoted_or_null(self.grant_id)},"idempotency_key":{_quoted_or_null(self.idempotency_key)},'
            f'"method":{quoted(self.method)},"path":{quoted(self.path)},"position":{position},"replayed":{replayed},'
            f'"reply_sha256":{quoted(self.reply_sha256)},"request_id":{quoted(self.request_id)},'
            f'"request_sha256":{quoted(self.request_sha256)},"status":{status},'
            f'"study_id":{quoted(self.study_id)}}}'
        ).encode()


quoted: Callable[[str], str] = json.encoder.encode_basestring
"""A text as RFC 8785 writes it."""


def _quoted_or_null(text: str | None) -> str:
    return "null" if text is None else quoted(text)


def sha256(data: bytes) -> str:
    """SHA-256 of ``data`` in hex."""
    return hashlib.sha256(data).hexdigest()


def canonical(record: Json) -> bytes:
    """RFC 8785 bytes of a record. Raises on NaN, infinities and integers past 2^53."""
    # Without floats, large integers and non-ASCII keys, Python's own encoder writes the same, five times as fast.
    return _PLAIN.encode(record).encode() if _is_plain(record) else rfc8785.dumps(record)


_PLAIN = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


_LEAVES = {str, bool, type(None)}


def _is_plain(value: Json | list[Any], *, in_order: bool = False) -> bool:
    """Whether Python's encoder and RFC 8785 write ``value`` alike. A plain loop, for speed: it runs twice a record.

    ``in_order``: and whether the members of each object are sorted.
    """
    if type(value) is dict:
        are_plain, are_sorted = _of_names(tuple(value))
        if not are_plain or (in_order and not are_sorted):
            return False
        items: Iterable[Any] = value.values()
    else:
        items = value
    for item in items:
        kind = type(item)
        if kind in _LEAVES or (kind is int and -(2**53) < item < 2**53):
            continue
        if (kind is not dict and kind is not list) or not _is_plain(item, in_order=in_order):
            return False
    return True


_IN_ORDER: set[tuple[str, ...]] = set()
"""Names of objects that are ASCII texts and sorted. Few and short ones, because another party may have chosen them."""


def _of_names(names: tuple[Any, ...]) -> tuple[bool, bool]:
    """Whether the names of an object are ASCII texts, and are sorted. Most records have the names of earlier ones."""
    if names in _IN_ORDER:
        return True, True
    are_plain = all(type(name) is str and name.isascii() for name in names)
    are_sorted = are_plain and [*names] == sorted(names)
    if are_sorted and len(_IN_ORDER) < 256 and sum(map(len, names)) <= 500:
        _IN_ORDER.add(names)
    return are_plain, are_sorted


def leaf_hash(body: bytes) -> bytes:
    """RFC 6962 leaf: SHA-256(0x00 || body)."""
    return hashlib.sha256(b"\x00" + body).digest()


def _node_hash(first: bytes, second: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + first + second).digest()


def grow(peaks: bytes, size: int, leaf: bytes) -> bytes:
    """Return the frontier of a tree of ``size`` leaves after one more leaf; frontiers are roots of 32 bytes each."""
    node, end = leaf, len(peaks)
    while size & 1:  # each trailing 1 bit of the size is a full subtree that now gets its sibling
        end -= 32
        node = _node_hash(peaks[end : end + 32], node)
        size >>= 1
    return peaks[:end] + node


def root(peaks: bytes) -> bytes:
    """RFC 6962 tree head of the frontier; the empty tree is SHA-256 of nothing."""
    if not peaks:
        return hashlib.sha256(b"").digest()
    head = peaks[-32:]
    for start in range(len(peaks) - 64, -1, -32):
        head = _node_hash(peaks[start : start + 32], head)
    return head


@dataclass(unsafe_hash=True)  # a frozen one takes three times as long to make
class Entry:
    """A stored record: its sequence number, canonical bytes, leaf hash, and the frontier after it."""

    seq: int
    body: bytes
    leaf: bytes
    peaks: bytes

    @cached_property
    def record(self) -> Json:
        """The parsed body, cached because a verification reads it many times. Raises LogBroken for no JSON object."""
        try:
            record: Json = from_json(self.body, cache_strings="keys")  # in two fifths of the time of Python's own
        except ValueError:
            record = {}
        if not isinstance(record, dict) or not record:
            raise LogBroken(f"record {self.seq} is none: its body is not a JSON object")
        return record


def entry_after(last: Entry | None, body: bytes) -> Entry:
    """The entry with this body that follows the last one of a log; None: of an empty one."""
    seq, peaks = (0, b"") if last is None else (last.seq + 1, last.peaks)
    leaf = leaf_hash(body)
    return Entry(seq, body, leaf, grow(peaks, seq, leaf))


@value
class Head:
    """Size and root of a log."""

    size: int
    root: str


EMPTY = Head(0, root(b"").hex())


def verify(entries: Iterable[Entry], *, index: str = "seq", signed: Mapping[int, str] | None = None) -> Head:
    """Verify a whole log from its first record. Raises LogBroken that names the first wrong record and its fault.

    ``index`` is the member of a record that holds its index. ``signed`` holds signed roots by size:
    without it, a cut tail or a wholly rewritten history cannot be detected.
    """
    signed = signed or {}
    walk = LogWalk(index=index, signed=signed.get)
    for entry in entries:
        walk.take(entry)
    return walk.end(max(signed, default=0))


class LogWalk:
    """Verifies a log entry by entry, and holds no more of it than its frontier.

    ``signed`` returns the signed root of a size, or None. A walk may begin ``after`` records with the frontier
    ``peaks``, which the caller has checked.
    """

    def __init__(
        self, *, index: str, signed: Callable[[int], str | None] = lambda size: None, after: int = 0, peaks: bytes = b""
    ) -> None:
        self._index = index
        self._signed = signed
        self.peaks = peaks
        self.size = after

    def take(self, entry: Entry, expected: bytes | None = None) -> None:
        """Verify the next entry. Raises LogBroken.

        ``expected`` is the leaf of the canonical record that belongs here: if it is the entry's, it is not parsed.
        """
        if entry.seq != self.size or expected != entry.leaf or leaf_hash(entry.body) != expected:
            _check_entry(entry, self.size, self._index)
        self.peaks = grow(self.peaks, self.size, entry.leaf)
        if self.peaks != entry.peaks:
            raise LogBroken(f"record {self.size} was inserted or replaced: the tree before or at it differs")
        self.size += 1
        if (signed := self._signed(self.size)) is not None and signed != root(self.peaks).hex():
            at = self.size - 1
            raise LogBroken(
                f"a fork at or before record {at}: a signed checkpoint of size {self.size} is of another history"
            )

    def end(self, signed_size: int = 0) -> Head:
        """Return the head. Raises LogBroken if a checkpoint of ``signed_size`` records was signed, and it has fewer."""
        if signed_size > self.size:
            raise LogBroken(
                f"the tail was cut: the log ends after {self.size} records, a signed checkpoint has {signed_size}"
            )
        return Head(size=self.size, root=root(self.peaks).hex())


def _check_entry(entry: Entry, size: int, index: str) -> None:
    if entry.seq > size:
        raise LogBroken(f"record {size} is missing: the log continues at {entry.seq}")
    if leaf_hash(entry.body) != entry.leaf:
        raise LogBroken(f"record {size} was changed: its bytes do not match its hash")
    record = entry.record
    position = record.get(index)
    if entry.seq < size or (type(position) is int and position < size):
        raise LogBroken(f"record {size} was repeated: it is record {position} again")
    if type(position) is not int or position != size:
        raise LogBroken(f"record {size} was moved: it says it is {position}")
    if not _is_canonical(record, entry.body):
        raise LogBroken(f"record {size} is not in its canonical form: two readers could hash it differently")


def _is_canonical(record: Json, body: bytes) -> bool:
    try:
        # A record has its members in the order of its body; RFC 8785 sorts those that are ASCII as Python does.
        if _is_plain(record, in_order=True):
            return to_json(record) == body
        return canonical(record) == body
    except ValueError:  # a number or a text that has no canonical form
        return False


def exchange_leaf(body: bytes) -> bytes:
    """Return the leaf in the shared log of the exchange in a canonical record of an own log.

    Names are sorted and values are escaped, so the exchange lies between its name and the kind of the record.
    """
    start = body.rfind(b'"exchange":{') + len(b'"exchange":')
    return leaf_hash(body[start : body.rfind(b',"kind":"')])


Subtree = Callable[[int, int], bytes]
"""Tree head of leaves[start:end], where start is a multiple of a power of two that is at least end - start."""


def consistency(leaves: Sequence[bytes], first: int) -> list[bytes]:
    """Prove that the tree of all ``leaves`` extends the tree of its ``first`` leaves (RFC 6962, section 2.1.2).

    0 < first <= len(leaves). Reads all leaves; ``consistency_by`` does not have to.
    """

    def tree(start: int, end: int) -> bytes:
        peaks = b""
        for size, leaf in enumerate(leaves[start:end]):
            peaks = grow(peaks, size, leaf)
        return root(peaks)

    return consistency_by(tree, first, len(leaves))


def consistency_by(tree: Subtree, first: int, second: int) -> list[bytes]:
    """Make the same proof for a tree of ``second`` leaves from the heads of at most 2 log2(second) subtrees."""

    def sub(start: int, end: int, whole: bool) -> list[bytes]:
        if first == end:
            return [] if whole else [tree(start, end)]
        middle = start + (1 << (end - start - 1).bit_length() - 1)  # the largest power of two below the size
        if first <= middle:
            return [*sub(start, middle, whole), tree(middle, end)]
        return [*sub(middle, end, False), tree(start, middle)]

    return sub(0, second, True)


def is_consistent(first: Head, second: Head, proof: Sequence[bytes]) -> bool:
    """Whether ``proof`` shows that the log of ``second`` begins with that of ``first`` (RFC 9162, 2.1.4.2)."""
    if first.size == 0:
        return not proof
    if first.size >= second.size:
        return first == second and not proof
    path = list(proof)
    if first.size & (first.size - 1) == 0:
        path.insert(0, bytes.fromhex(first.root))
    if not path:
        return False
    fn, sn = first.size - 1, second.size - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    fr = sr = path[0]
    for node in path[1:]:
        if sn == 0:
            return False
        if fn & 1 or fn == sn:
            fr, sr = _node_hash(node, fr), _node_hash(node, sr)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            sr = _node_hash(sr, node)
        fn, sn = fn >> 1, sn >> 1
    return sn == 0 and (fr.hex(), sr.hex()) == (first.root, second.root)
