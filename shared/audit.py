"""The audit log as pure functions: canonical records, a Merkle tree, verification, reconciliation.

A log is a sequence of records. Each record is stored as the RFC 8785 bytes that were hashed; each is
a leaf of an RFC 6962 Merkle tree, whose frontier (the roots of its full subtrees, largest first) is
stored beside it. Two parties keep a log each; ``reconcile`` compares what both tell of the exchanges
between them.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import rfc8785

from shared.errors import LogBroken

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its reply, told alike by both parties.

    Digests are SHA-256 in hex over the exact bytes of the bodies (for candidates: the whole file, the
    value of its ETag). Replies that hold outcomes carry a random salt, so a digest reveals nothing.
    """

    study_id: str
    request_id: str
    method: str
    path: str
    idempotency_key: str | None
    request_sha256: str
    status: int
    reply_sha256: str
    replayed: bool = False

    def as_json(self) -> Json:
        return asdict(self)


def sha256(data: bytes) -> str:
    """SHA-256 of ``data`` in hex."""
    return hashlib.sha256(data).hexdigest()


def canonical(record: Json) -> bytes:
    """RFC 8785 bytes of a record. Raises on NaN, infinities and integers past 2^53."""
    return rfc8785.dumps(record)


def leaf_hash(body: bytes) -> bytes:
    """RFC 6962 leaf: SHA-256(0x00 || body)."""
    return hashlib.sha256(b"\x00" + body).digest()


def _node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def grow(peaks: Sequence[bytes], size: int, leaf: bytes) -> list[bytes]:
    """The frontier of a tree of ``size`` leaves after one more leaf."""
    grown = [*peaks, leaf]
    while size & 1:  # each trailing one bit of the size is a full subtree that now finds its pair
        right, left = grown.pop(), grown.pop()
        grown.append(_node_hash(left, right))
        size >>= 1
    return grown


def root(peaks: Sequence[bytes]) -> bytes:
    """RFC 6962 tree head of the frontier; the empty tree is SHA-256 of nothing."""
    if not peaks:
        return hashlib.sha256(b"").digest()
    head = peaks[-1]
    for peak in reversed(peaks[:-1]):
        head = _node_hash(peak, head)
    return head


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored record: its place, its canonical bytes, its leaf hash, the frontier after it."""

    seq: int
    body: bytes
    leaf: bytes
    peaks: bytes

    @property
    def record(self) -> Json:
        """The parsed body. Raises LogBroken if it is no record."""
        try:
            record: Json = json.loads(self.body)
        except ValueError:
            record = {}
        if not isinstance(record, dict) or "seq" not in record:
            raise LogBroken(f"record {self.seq} is none: its body is not a JSON object with a seq")
        return record


@dataclass(frozen=True, slots=True)
class Head:
    """Size and root of a log."""

    size: int
    root: str


def verify(entries: Iterable[Entry]) -> Head:
    """Walk a whole log from its first record. Raises LogBroken at the first that is wrong.

    A cut tail cannot show here: compare the head with one that the other party has seen.
    """
    peaks: list[bytes] = []
    size = 0
    for entry in entries:
        if entry.seq != size:
            raise LogBroken(f"record {size} is missing: the log continues at {entry.seq}")
        if leaf_hash(entry.body) != entry.leaf:
            raise LogBroken(f"record {size} was changed: its bytes do not match its hash")
        if entry.record.get("seq") != size:
            raise LogBroken(f"record {size} was moved: it says it is {entry.record.get('seq')}")
        peaks = grow(peaks, size, entry.leaf)
        if b"".join(peaks) != entry.peaks:
            raise LogBroken(f"record {size} was replaced: the tree before or at it differs")
        size += 1
    return Head(size=size, root=root(peaks).hex())


@dataclass(frozen=True, slots=True)
class Difference:
    """One exchange that the two logs do not tell alike."""

    request_id: str
    what: str


def exchanges(records: Iterable[Json], study_id: str) -> list[Exchange]:
    """The exchanges of one study, in the order of the log. LogBroken for one that is not whole."""
    told = (record["exchange"] for record in records if record.get("exchange"))
    try:
        return [Exchange(**item) for item in told if item["study_id"] == study_id]
    except (TypeError, KeyError):
        raise LogBroken("a record tells an exchange that is not whole") from None


def reconcile(curator: Sequence[Exchange], modeler: Sequence[Exchange]) -> list[Difference]:
    """Compare two parties' tellings of one study; empty when they tell the same.

    An exchange is told alike when every field is equal; repeats are counted. A reply lost on the way is
    told by the curator alone. What is left under one request id on both sides is told differently.
    """
    unmatched = Counter(modeler)
    left: list[Exchange] = []
    for exchange in curator:
        if unmatched[exchange]:
            unmatched[exchange] -= 1
        else:
            left.append(exchange)
    others: dict[str, list[Exchange]] = {}
    for exchange in unmatched.elements():
        others.setdefault(exchange.request_id, []).append(exchange)
    differences = []
    for exchange in left:
        if same := others.get(exchange.request_id):
            told, other = asdict(exchange), asdict(same.pop(0))
            fields = ", ".join(name for name in told if told[name] != other[name])
            differences.append(Difference(exchange.request_id, f"differs in {fields}"))
        else:
            differences.append(Difference(exchange.request_id, "only the curator has it"))
    differences += [Difference(e.request_id, "only the modeler has it") for same in others.values() for e in same]
    return differences + _out_of_order(curator, modeler)


def _out_of_order(curator: Sequence[Exchange], modeler: Sequence[Exchange]) -> list[Difference]:
    """Answers of one run that the two logs tell in different order."""
    places = {exchange: place for place, exchange in enumerate(modeler)}
    once = {e for e, n in Counter(curator).items() if n == 1} & {e for e, n in Counter(modeler).items() if n == 1}
    by_run: dict[str, list[tuple[int, Exchange]]] = {}
    for exchange in curator:
        run = (exchange.idempotency_key or "").partition(":")[0]
        if run and exchange in once:
            by_run.setdefault(run, []).append((places[exchange], exchange))
    return [
        Difference(exchange.request_id, "the logs disagree on its order")
        for told in by_run.values()
        for (before, _), (place, exchange) in pairwise(told)
        if before > place
    ]
