"""A modeler as a witness: its copy of the log that it shares with a curator, receipts, countersignatures.

Each reply of the curator carries a receipt: its position in the shared log, and a signed checkpoint up to there. The
copy is made from the exchanges that this side saw itself. Entries of lost replies are fetched, and are accepted only if
they record a request that this side made. Where the copy is stored is for ``Copy`` and ``CopyStore``.
"""

import secrets
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Protocol, TypeVar

from blindopt import wire
from blindopt.audit import merkle_log
from blindopt.audit.checkpoints import (
    Checkpoint,
    Countersignature,
    ForgedChange,
    Receipt,
    Signer,
    Verifier,
    parse_unverified,
)
from blindopt.audit.merkle_log import EMPTY, Entry, Exchange, Head
from blindopt.audit.verification import signer_of
from blindopt.client.study_client import StudyClient
from blindopt.errors import LogBroken, ProtocolViolated, Unreachable

R = TypeVar("R")
OTHERS_MAX = 100
"""The most entries of a grant and day that are accepted without a receipt and without an id of this side."""
_OTHERS = (
    f"the curator's shared log has more than {OTHERS_MAX} requests today that this side does not recognise as its own: "
    "a proxy replaces X-Request-ID, another program uses this grant, or the curator makes them up. Ask the owner; "
    "tomorrow this side accepts more"
)
_seen: dict[str, set[str]] = defaultdict(set)
"""By grant: ids of this side whose entries came without a receipt. Each stands for one entry."""


Row = TypeVar("Row", Entry, Receipt, Countersignature)


class Copy(ABC):
    """What this side has stored of one study, within one transaction. ``grant`` names a shared log.

    Entries, receipts and countersignatures are rows of a grant by their first field.
    """

    @abstractmethod
    def row(self, kind: type[Row], grant: str, number: int) -> Row | None:
        """The row of a kind with this number."""

    @abstractmethod
    def last(self, kind: type[Row], grant: str) -> Row | None:
        """The row of a kind with the highest number."""

    @abstractmethod
    def add(self, grant: str, row: Row) -> None:
        """Store a row."""

    @abstractmethod
    def key(self) -> str | None:
        """The curator's key that is pinned for the study."""

    @abstractmethod
    def keys(self) -> dict[str, str]:
        """The keys of curators that are pinned, by study."""

    @abstractmethod
    def pin(self, vkey: str) -> None:
        """Store the curator's first key. It never changes."""

    @abstractmethod
    def append(self, kind: str, *, details: dict[str, Any] | None = None, exchange: Exchange | None = None) -> None:
        """Add a record to this side's own log."""

    @abstractmethod
    def is_own_query(self, key: str, request_sha256: str | None) -> bool:
        """Whether this side sent a query under this key, with a body of this digest (None: of any)."""

    @abstractmethod
    def count_other(self, grant: str, now: datetime) -> bool:
        """Count an entry that may be of another program; whether it is one of the first ``OTHERS_MAX`` of the day."""

    def is_forgotten(self, grant: str, seq: int) -> bool:
        """Whether this side may have lost an exchange, because a backup was restored that ends before it."""
        return False

    def dispute(self, details: dict[str, Any]) -> None:
        """Record a violation of the protocol."""
        self.append("log.disputed", details=details)

    def size(self, grant: str) -> int:
        """The number of entries."""
        last = self.last(Entry, grant)
        return 0 if last is None else last.seq + 1

    def root_at(self, grant: str, size: int) -> str | None:
        """The root of the first ``size`` entries; None if there are fewer."""
        if size == 0:
            return EMPTY.root
        entry = self.row(Entry, grant, size - 1)
        return None if entry is None else merkle_log.root(entry.peaks).hex()

    def share(self, grant: str, body: bytes) -> Head:
        """Add an entry, and return the new head."""
        last = self.last(Entry, grant)
        entry = merkle_log.entry_after(last, body)
        self.add(grant, entry)
        return Head(entry.seq + 1, merkle_log.root(entry.peaks).hex())

    def last_receipt(self, grant: str) -> int:
        """The highest position with a receipt; -1 if there is none."""
        last = self.last(Receipt, grant)
        return -1 if last is None else last.seq


class CopyStore(Protocol):
    """Where a copy is stored: transactions, one at a time for writing."""

    def read(self) -> AbstractContextManager[Copy]:
        """Begin a transaction that reads."""

    def write(self, work: Callable[[Copy], R]) -> R:
        """Run ``work`` in one transaction, which an error undoes."""


class Witness:
    """Keeps the shared log of one study's grant. A caller that catches a ProtocolViolated calls ``dispute``."""

    def __init__(self, store: CopyStore, study_id: str, signer: Signer, clock: Callable[[], datetime]) -> None:
        self._store, self._study_id, self._signer, self._clock = store, study_id, signer, clock
        self._grant: str | None = None
        self._fresh: set[str] = set()
        self._note: str | None = None
        """The last checkpoint that the curator signed, right or wrong."""

    def trust(self, study: wire.StudyView, expected: str | None, note: str | None = None) -> None:
        """Pin the curator's key at first sight, where it has signed the ``note`` of the study's receipt.

        Raises ProtocolViolated if it is not the pinned or the expected key, and none that followed it, Unreachable if
        it did not sign the note.
        """
        key = study.log_key
        if expected is not None and not _leads(expected, key, note):
            raise ProtocolViolated("the curator's log key is not the one that the run was given")
        try:
            Verifier.parse(key)
        except LogBroken as error:
            raise ProtocolViolated(f"the curator's log key cannot be read: {error}") from None

        if self._grant not in (None, study.grant_id):
            raise ProtocolViolated("the curator's receipt is of another grant than its study names")
        self._grant = study.grant_id

        def work(copy: Copy) -> None:
            pinned = copy.key()
            if pinned is None:
                if note is not None:
                    _verify(note, Verifier.parse(key))
                copy.pin(expected or key)
            elif not _leads(pinned, key, note):
                raise ProtocolViolated("the curator's log key is not the one that it had before")
            self._advance(copy, study.grant_id, copy.key())

        self._store.write(work)

    def id_of(self, method: str, path: str, key: str | None) -> str:
        """Return an id for a request. It carries a MAC, by which an entry of a lost reply is known as this side's."""
        return self._id_from(secrets.token_hex(8), method, path, key)

    def _id_from(self, number: str, method: str, path: str, key: str | None) -> str:
        return number + self._signer.mac(f"{number} {method} {path} {key}")

    def record(self, exchange: Exchange, note: str | None) -> None:
        """Record an exchange with its receipt, in a transaction of its own. Raises as ``record_in``."""
        self._store.write(lambda copy: self.record_in(copy, exchange, note))

    def record_in(self, copy: Copy, exchange: Exchange, note: str | None) -> None:
        """Record an exchange with its receipt, in the caller's transaction.

        Raises ProtocolViolated if the receipt contradicts what the curator signed, Unreachable if it did not sign it.
        """
        copy.append("exchange", exchange=exchange)
        if note is None or exchange.position is None or exchange.grant_id is None:
            return
        self._note = note
        grant, seq = exchange.grant_id, exchange.position
        if self._grant not in (None, grant):
            raise ProtocolViolated("the curator's receipt is of another grant's log")
        self._grant = grant
        body, vkey = exchange.body, copy.key()
        if exchange.status >= 400:  # the request may name another study than the grant's
            vkey = signer_of(note, grant, copy.keys().values()) or vkey
        if vkey is not None and copy.last_receipt(grant) < seq == copy.size(grant):
            copy.add(grant, Receipt(seq, body, note))
            self._share(copy, grant, Receipt(seq, body, note), vkey)
            return
        earlier = copy.row(Receipt, grant, seq)
        if any(row is not None and row.body != body for row in (earlier, copy.row(Entry, grant, seq))):
            raise ProtocolViolated(f"the curator gave place {seq} of the shared log twice")
        if earlier is None:
            self._check_receipt(copy, grant, Receipt(seq, body, note), vkey)
            copy.add(grant, Receipt(seq, body, note))
            self._advance(copy, grant, vkey)

    def _check_receipt(self, copy: Copy, grant: str, receipt: Receipt, vkey: str | None) -> None:
        """Check a receipt against the curator's key, and against the copy as far as that reaches.

        Before the first reply that is no refusal nobody knows the key: then against the receipts before it.
        """
        size, seq = copy.size(grant), receipt.seq
        if vkey is None:
            rows = [copy.row(Receipt, grant, number) for number in range(seq)]
            head, peaks = parse_unverified(receipt.note).head, b""
            for number, row in enumerate([*rows, receipt]):
                if row is None:  # a reply was lost
                    return
                peaks = merkle_log.grow(peaks, number, merkle_log.leaf_hash(row.body))
            root: str | None = merkle_log.root(peaks).hex()
        elif seq == size:  # ``_advance`` checks it
            return
        else:
            head = _checkpoint(receipt.note, vkey, grant).head
            root = copy.root_at(grant, seq + 1) if seq < size else head.root
        if head.root != root:
            raise ProtocolViolated(f"the curator's receipt at place {seq} shows another history")

    def _advance(self, copy: Copy, grant: str, vkey: str | None) -> None:
        """Add the exchanges without a gap to the copy, and check each receipt against it."""
        if vkey is None:  # no key before the first reply
            return
        size = copy.size(grant)
        while (receipt := copy.row(Receipt, grant, size)) is not None:
            self._share(copy, grant, receipt, vkey)
            size += 1

    @staticmethod
    def _share(copy: Copy, grant: str, receipt: Receipt, vkey: str) -> None:
        """Add the exchange at the end of the copy, and check its receipt against that."""
        if _checkpoint(receipt.note, vkey, grant).head != copy.share(grant, receipt.body):
            raise ProtocolViolated(f"the curator's receipt at place {receipt.seq} shows another history")

    def settle(self, curator: StudyClient, grant: str) -> None:
        """Bring the copy up to the curator's checkpoint, check it, and countersign.

        Raises ProtocolViolated for a history that is not ours, Unreachable and Remote as any request; Unreachable also
        for more entries of others than a day's: tomorrow's call goes on from there.
        """
        with self._store.read() as copy:
            last_receipt = copy.last_receipt(grant)
        note = self._note = curator.checkpoint().note
        with self._store.read() as copy:
            vkey, have = copy.key(), copy.size(grant)
        if vkey is None:
            return
        checkpoint = _checkpoint(note, vkey, grant)
        size = checkpoint.head.size
        if size <= last_receipt:
            raise ProtocolViolated(
                f"the curator's checkpoint of size {size} leaves out place {last_receipt}, which it gave"
            )
        while have < size:
            entries = curator.shared_entries(have - 1)
            before = have
            have = self._store.write(partial(self.add_entries, grant=grant, entries=entries))
            _seen[grant] |= self._fresh
            if entries and have <= entries[-1].seq:
                raise Unreachable(_OTHERS)
            if have <= before:
                raise ProtocolViolated("the curator's shared log is shorter than its checkpoint")
        with self._store.read() as copy:
            root = copy.root_at(grant, size)
            signed = copy.row(Countersignature, grant, size)
        if root != checkpoint.head.root:
            raise ProtocolViolated("the curator's checkpoint shows another history")
        if not size:
            return
        if signed is None:
            signed = self._countersign(grant, checkpoint.head, note)
        # Sent again if it was signed before: the curator may not have received it.
        countersigning = wire.Countersigning(note=signed.note, key=self._signer.verifier.cosigner_vkey)
        curator.countersign(countersigning, key=f"{grant}:{size}")

    def _countersign(self, grant: str, head: Head, note: str) -> Countersignature:
        """Sign a checkpoint, and record the signature before it is sent to the curator."""
        signed = Countersignature(head.size, self._signer.countersign(note, int(self._clock().timestamp())))

        def work(copy: Copy) -> Countersignature:
            if (earlier := copy.row(Countersignature, grant, head.size)) is not None:  # another run signed it
                return earlier
            copy.add(grant, signed)
            details = {"grant_id": grant, "size": head.size, "root": head.root}
            copy.append("checkpoint.countersigned", details=details)
            return signed

        return self._store.write(work)

    def add_entries(self, copy: Copy, grant: str, entries: list[wire.AuditEntry]) -> int:
        """Add entries that the curator sent to the copy, after checks; return its size then.

        It ends at an entry that is not accepted today.
        """
        size, self._fresh = copy.size(grant), set()
        for entry in entries:
            if entry.seq < size:
                continue
            body = entry.body.encode()
            receipt = copy.row(Receipt, grant, entry.seq)
            if entry.seq != size or (receipt is not None and receipt.body != body):
                raise ProtocolViolated(f"place {size} of the curator's shared log is not what this side saw")
            if receipt is None and not self._accepts(copy, grant, size, body):
                break
            head = copy.share(grant, body)
            if receipt is not None and _checkpoint(receipt.note, copy.key() or "", grant).head != head:
                raise ProtocolViolated(f"the curator's receipt at place {size} shows another history")
            size += 1
        return size

    def _accepts(self, copy: Copy, grant: str, seq: int, body: bytes) -> bool:
        """Whether an entry without a receipt is of this side by its id, or one of a few others.

        Raises ProtocolViolated for one that can be no request of this side.
        """
        try:
            exchange = Exchange(**merkle_log.Entry(seq, body, b"", b"").record)
            if exchange.body != body or type(exchange.status) is not int:
                raise ValueError
            if (exchange.grant_id, exchange.position) != (grant, seq):
                raise ValueError
            if exchange.study_id != self._study_id and exchange.status < 400:  # a mistyped study is refused
                raise ValueError
        except (TypeError, ValueError, LogBroken):
            raise ProtocolViolated(f"place {seq} of the curator's shared log is no exchange of this grant") from None
        key = exchange.idempotency_key
        # A request that was cut off, as by a crash of this side, is recorded with the digest of the part that arrived.
        body_sha256 = exchange.request_sha256 if exchange.status < 400 else None
        is_read = exchange.method == "GET"
        if not is_read and not (key is not None and copy.is_own_query(key, body_sha256)):
            if copy.is_forgotten(grant, seq):
                return True
            raise ProtocolViolated(
                f"place {seq} of the curator's shared log holds a query that this side never sent: another program or "
                "log file uses this grant, or used it before (then ask the owner for a new one), or the log was changed"
            )
        request_id = exchange.request_id
        is_own = request_id == self._id_from(request_id[:16], exchange.method, exchange.path, key)
        if is_own and request_id not in _seen[grant] | self._fresh:
            self._fresh.add(request_id)
            return True
        return copy.count_other(grant, self._clock())

    def dispute(self, fault: str) -> None:
        """Record a violation of the protocol, with the last checkpoint that the curator signed."""
        details = {"study_id": self._study_id, "grant_id": self._grant, "what": fault, "note": self._note}
        self._store.write(lambda copy: copy.dispute(details))


_verifier = lru_cache(maxsize=64)(Verifier.parse)


def _leads(pinned: str, key: str, note: str | None) -> bool:
    """Whether the curator's key is the pinned one, or followed it, as a note that it signed shows."""
    if pinned == key:
        return True
    try:
        return note is not None and Verifier.parse(pinned).follow(note)[1] == Verifier.parse(key)
    except LogBroken:
        return False


def _checkpoint(note: str, vkey: str, grant: str) -> Checkpoint:
    """Return the checkpoint of a curator's note about a grant's log.

    Raises ProtocolViolated if it is of another log, or names a key that the one before did not; Unreachable for a note
    that the curator did not sign: it proves nothing against it.
    """
    verifier = _verifier(vkey)
    checkpoint, signer = _verify(note, verifier)
    if checkpoint.origin != f"{signer.name}/{grant}":
        raise ProtocolViolated("the curator's checkpoint is of another log")
    return checkpoint


def _verify(note: str, verifier: Verifier) -> tuple[Checkpoint, Verifier]:
    try:
        return verifier.follow(note)
    except ForgedChange as error:
        raise ProtocolViolated(str(error)) from None
    except LogBroken as error:
        raise Unreachable(f"the curator's checkpoint does not verify: {error}") from None
