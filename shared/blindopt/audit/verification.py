"""Verify one party's records by themselves, record by record: logs, signatures, and that its logs agree.

What a log of a million records needs is held in arrays, some 100 bytes a record.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from blindopt.audit.checkpoints import Checkpoint, Signer, Verifier, parse_unverified
from blindopt.audit.merkle_log import EMPTY, Entry, Head, Json, LogWalk, exchange_leaf, grow, leaf_hash, root
from blindopt.audit.numbered_digests import NumberedDigests
from blindopt.errors import LogBroken

_LAST_ARCHIVED = re.compile(r"blindopt last archived exchange\n(.+)\n(\d{1,18})\n([0-9a-f]{64})\n([0-9a-f]*)\n")


def last_archived(signer: Signer, grant: str, position: int, leaf: str, peaks: str) -> str:
    """The signed note of a grant's last archived exchange: its hash, and the frontier of the shared log after it."""
    return signer.sign_text(f"blindopt last archived exchange\n{grant}\n{position}\n{leaf}\n{peaks}\n")


class Records(Protocol):
    """One party's own log, its copies of the shared logs, and every signature that it holds."""

    @property
    def service(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def keys(self) -> dict[str, str]: ...

    def log(self, grant: str | None, after: int = -1) -> Iterator[Entry]:
        """Stream the own log, or the one shared with a grant, in order; entries ``after`` a position."""

    def grants(self) -> set[str]:
        """Return the grants that have a shared log or a signed note."""

    def of_kind(self, kind: str, grant: str | None) -> Iterator[str]:
        """Stream the notes of one kind about one log."""


def verify_export(export: Records, *, key: str | None = None) -> Head:
    """Verify one party's export by itself and return the head of its own log. Raises LogBroken.

    ``key`` is the party's verifier key from another source. Without it, a party that rewrites its whole
    history can sign the new one with a new key.
    """
    verification = Verification(export, key=key)
    for _ in verification.records():
        pass
    return verification.head


class Verification:
    """One verification of a party's records.

    With ``since``, a checkpoint that the party signed earlier, records before it are not verified again, and neither
    are the exchanges in them; nor are those in archived segments. With ``only_own``, the shared logs are not verified,
    records are those whose hashes are in the signed log, canonical or not, and a curator's plain exchanges are neither
    parsed nor yielded.
    """

    def __init__(
        self, export: Records, *, key: str | None = None, since: str | None = None, only_own: bool = False
    ) -> None:
        if key is not None and not leads(export, key):
            raise LogBroken(f"the export is signed with {export.key}, not with the key that was given")
        self._own = first_key(export)
        if export.service != f"blindopt-{self._own.name.partition('.')[0]}":
            raise LogBroken(f"the export is of {export.service} and signed by {self._own.name}")
        self._export, self._only_own = export, only_own
        self._exchanges: defaultdict[str, _Exchanges] = defaultdict(_Exchanges)
        self._countersigned: set[str] = set()  # studies, whose key the modeler has from then on
        begins = map(self._checkpoint, (since, next(export.of_kind("archived", None), None)))
        self._since = max(begins, key=lambda head: head.size)
        self._head = self._since
        self._walk: LogWalk | None = None
        self.pending = 0
        """The number of exchanges with a receipt that are not in a modeler's copy of a shared log yet."""

    @property
    def head(self) -> Head:
        """Head of the own log: of what was verified so far, without a root before the end."""
        return self._head if self._walk is None else Head(self._walk.size, "")

    @property
    def since(self) -> int:
        """The number of records that are not verified again."""
        return self._since.size

    def _checkpoint(self, note: str | None) -> Head:
        if note is None:
            return EMPTY
        return self._own.verify(note, "log").head

    def records(self) -> Iterator[Json]:
        """Verify and yield each record of the own log, then verify the shared logs. Raises LogBroken."""
        for vkey in self._export.keys.values():
            Verifier.parse(vkey)
        signed = [self._own.verify(note, "log") for note in self._export.of_kind("checkpoint", None)]
        roots = _Roots()
        roots.add_all(signed)
        heads = {checkpoint.head.size: checkpoint.head.root for checkpoint in signed}
        walk = self._walk = self._begin(None, self.since, heads.get)
        skips = self._only_own and self._export.service == "blindopt-curator"
        for entry in self._export.log(None, self.since - 1):
            walk.take(entry, entry.leaf if self._only_own else None)
            if skips and _is_plain_exchange(entry):
                continue
            if not self._only_own:
                self._note(entry)
            yield entry.record
        self._head, self._walk = walk.end(roots.last), None
        _check_covered(signed, self.head.size)
        broken = dict(self._archived_faults())
        for grant in () if self._only_own else sorted(self._exchanges.keys() | self._export.grants()):
            exchanges = self._exchanges.get(grant, _Exchanges())
            if self.since and not exchanges.leaves:
                continue  # nothing of it is in the records that were verified
            try:
                self._verify_shared(grant, exchanges)
            except LogBroken as error:
                broken.setdefault(grant, f"shared log {grant}: {error}")
        for grant, fault in broken.items():
            raise LogBroken(fault, about=grant, others=list(broken))

    def _archived_faults(self) -> Iterator[tuple[str, str]]:
        """Yield each grant whose last archived exchange, which stays in the shared log, was changed or is missing."""
        key, has_archived = Verifier.parse(self._export.key), any(self._export.of_kind("archived", None))
        for grant in sorted(self._export.grants()) if has_archived else ():
            for note in self._export.of_kind("archived", grant):
                match = _LAST_ARCHIVED.fullmatch(key.verify_text(note))
                if match is None or match[1] != grant:
                    raise LogBroken("a note of the last archived exchange is of another log")
                _, position, leaf, peaks = match.groups()
                entry = next(self._export.log(grant, int(position) - 1), None)
                hashes = [] if entry is None else [leaf_hash(entry.body), entry.leaf, entry.peaks]
                if entry is None or [entry.seq, *map(bytes.hex, hashes)] != [int(position), leaf, leaf, peaks]:
                    fault = f"place {position}, its last archived one, was changed or is missing"
                    yield grant, f"shared log {grant}: {fault}"

    def _begin(self, grant: str | None, size: int, signed: Callable[[int], str | None]) -> LogWalk:
        peaks = b""
        if size:
            last = next(self._export.log(grant, size - 2), None)
            peaks = b"" if last is None else last.peaks
            if last is None or last.seq != size - 1 or len(peaks) != 32 * size.bit_count():
                raise LogBroken(f"record {size - 1} is missing or was changed")
            if grant is None and root(peaks).hex() != self._since.root:
                raise LogBroken(f"the first {size} records are not those of the checkpoint that you named")
        index = "seq" if grant is None else "position"
        return LogWalk(index=index, signed=signed, after=size, peaks=peaks)

    def _note(self, entry: Entry) -> None:
        """Take from a verified record what the shared logs must agree with."""
        record = entry.record
        exchange = record.get("exchange")
        if isinstance(exchange, dict) and type(position := exchange.get("position")) is int:
            if position < 0:
                raise LogBroken(f"record {entry.seq} names place {position} of a shared log: places begin at 0")
            exchanges, study = self._exchanges[str(exchange.get("grant_id"))], str(exchange.get("study_id"))
            exchanges.add(position, exchange_leaf(entry.body), exchange)
            if study in self._countersigned:
                exchanges.signer_of = study
        if record.get("kind") == "checkpoint.countersigned" and isinstance(details := record.get("details"), dict):
            exchanges = self._exchanges[str(details.get("grant_id"))]
            exchanges.countersigned.append((details.get("size"), details.get("root")))
            self._countersigned.add(exchanges.study or "")

    def _verify_shared(self, grant: str, recorded: "_Exchanges") -> None:
        """Verify the shared log of a grant against its signatures, and the party's own exchanges by position.

        A modeler's copy ends before the first exchange whose reply was lost, until it is fetched; exchanges that its
        own log records beyond that are pending.
        """
        export, own = self._export, self._own
        is_curators = export.service == "blindopt-curator"
        first = next((position for position, _ in recorded.leaves), 0) if self.since else 0
        study = self._study(grant, recorded)
        curator = own if is_curators else self._curator(grant, study, recorded)
        witness = _key(export.keys.get(grant)) if is_curators else own
        whole: list[Checkpoint] = []
        receipts, complete = _Roots(), _Roots()
        if curator is not None:
            whole = [curator.verify(note, grant) for note in export.of_kind("checkpoint", grant)]
        elif next(export.log(grant), None) is not None:
            raise LogBroken("the key of the curator, whose receipts made it, is missing")
        notes = (
            note for note in export.of_kind("receipt", grant) if not first or parse_unverified(note).head.size > first
        )
        receipts.add_all(_receipt(note, grant, curator) for note in notes)
        countersignatures = list(export.of_kind("countersignature", grant))
        if witness is None and countersignatures:
            raise LogBroken("the key of the modeler that countersigned it is missing")
        witnessed = [witness.verify_countersignature(note)[0] for note in countersignatures] if witness else []
        if curator is not None:
            witnessed += [curator.verify(note, grant) for note in countersignatures]
        complete.add_all((*whole, *witnessed))
        for size, digest in complete.by_size:
            _check_same(size, receipts.by_size.get(size) or digest, digest)
        walk, fault = self._begin(grant, first, complete.over(receipts).get), None
        for entry in export.log(grant, first - 1):
            own_leaf = recorded.leaves.get(entry.seq)
            walk.take(entry, own_leaf)
            if fault is None and not (own_leaf == entry.leaf or (own_leaf is None and not is_curators)):
                fault = f"place {entry.seq} is not what the party's own log has"
            if fault is None and own_leaf is None and not recorded.fits(entry.record, grant):
                fault = f"place {entry.seq} is of another grant or study"
        size = walk.size
        most = next((number + 1 for number, _ in reversed(recorded.leaves)), 0)
        signed = complete.last
        for number, _ in reversed(receipts.by_size):
            if number <= max(signed, size) or recorded.leaves.get(number - 1) is None:  # else its reply is pending
                signed = max(signed, number)
                break
        walk.end(signed)
        peaks, end = walk.peaks, size
        while (leaf := recorded.leaves.get(end)) is not None:
            peaks, end = grow(peaks, end, leaf), end + 1
            is_pending = not is_curators and (curator is None or recorded.refused.get(end - 1, study) != study)
            if is_pending and receipts.get(end) != root(peaks).hex():
                raise LogBroken(f"the receipt of place {end - 1} is missing, or shows another history")
            if not is_pending:
                raise LogBroken(f"the tail was cut: the log ends after {size} records, the party's own log has {most}")
        if most > size and is_curators:
            raise LogBroken(f"the tail was cut: the log ends after {size} records, the party's own log has {most}")
        self.pending += sum(position >= size for position, _ in recorded.leaves)
        if is_curators:
            _check_covered(whole, size)
        if recorded.repeated() is not None:
            fault = f"the party's own log has place {recorded.repeated()} twice"
        if recorded.stray is not None:
            fault = f"place {recorded.stray} is of another grant or study"
        if fault is not None:
            raise LogBroken(fault)
        if not is_curators:
            for position, _ in recorded.leaves:
                if receipts.by_size.get(position + 1) is None:
                    raise LogBroken(f"the receipt of place {position} is missing")
        heads = {(checkpoint.head.size, checkpoint.head.root) for checkpoint in witnessed}
        for countersigned in recorded.countersigned:
            if countersigned not in heads:
                raise LogBroken(f"the countersignature of size {countersigned[0]} is missing")

    def _curator(self, grant: str, study: str, recorded: "_Exchanges") -> Verifier | None:
        """Return the key of a grant's study; where every request was refused, the one that signed a receipt.

        None: of a curator that has answered nothing but refusals, nobody knows the key.
        """
        keys = self._export.keys
        if study:
            return _key(keys.get(study))
        signers = (signer_of(note, grant, keys.values()) for note in self._export.of_kind("receipt", grant))
        return _key(next((signer for signer in signers if signer is not None), keys.get(recorded.signer_of)))

    def _study(self, grant: str, recorded: "_Exchanges") -> str:
        """Return the study of a grant: that of the first exchange which was not refused."""
        shared = (entry.record for entry in self._export.log(grant))
        taken = (str(exchange.get("study_id")) for exchange in shared if not is_refused(exchange))
        return next(taken, recorded.study or "")


_DETAILS_WITHIN = 120
"""Names in a record are sorted: its details follow its actor."""
_AFTER_KIND = len('2026-01-31T12:00:00.000000Z","v":1}')


def _is_plain_exchange(entry: Entry) -> bool:
    """Whether a canonical record is of the kind ``exchange`` and has no details, by its first and its last bytes."""
    body, kind = entry.body, b',"kind":"exchange","seq":%d,"time":"' % entry.seq
    is_exchange = body[-_AFTER_KIND - len(kind) : -_AFTER_KIND] == kind and body.endswith(b'","v":1}')
    return is_exchange and b',"details":{' not in body[:_DETAILS_WITHIN]


@dataclass(slots=True)
class _Exchanges:
    """The exchanges under one grant that a party's own log has."""

    leaves: NumberedDigests = field(default_factory=NumberedDigests)
    """By position."""
    study: str | None = None
    """Of the first that was not refused: a refused request may name another study than the grant's, by mistake."""
    refused: dict[int, str] = field(default_factory=dict)
    """The studies that refused requests named, by position, since the last one that was not refused."""
    signer_of: str = ""
    """The study that was named last of those with a known key: a receipt that it had not signed was not recorded."""
    stray: int | None = None
    """Position of the first about another study."""
    countersigned: list[tuple[object, object]] = field(default_factory=list)
    """Size and root of each checkpoint that was countersigned."""

    def add(self, position: int, leaf: bytes, exchange: Json) -> None:
        self.leaves.add(position, leaf)
        if is_refused(exchange):
            self.refused[position] = str(exchange.get("study_id"))
        else:
            self.refused.clear()
            study = str(exchange.get("study_id"))
            self.study = self.study or study
            if self.study != study and self.stray is None:
                self.stray = position

    def fits(self, exchange: Json, grant: str) -> bool:
        """Whether an exchange that the own log lacks is of the same grant and study."""
        if not is_refused(exchange):
            self.study = self.study or str(exchange.get("study_id"))
        is_of_study = is_refused(exchange) or exchange.get("study_id") == self.study
        return exchange.get("grant_id") == grant and is_of_study

    def repeated(self) -> int | None:
        """Return the first position that was added twice, or None."""
        last = None
        for position, _ in self.leaves:
            if position == last:
                return position
            last = position
        return None


def _check_covered(signed: list[Checkpoint], size: int) -> None:
    """Raise LogBroken unless a checkpoint covers the whole log: otherwise its last lines could be missing."""
    if size not in {checkpoint.head.size for checkpoint in signed}:
        raise LogBroken(f"the log has {size} records and no signed checkpoint of them: lines of the export are missing")


def is_refused(exchange: Json) -> bool:
    """Whether an exchange ended with an error."""
    return isinstance(status := exchange.get("status"), int) and status >= 400


def signer_of(note: str, grant: str, vkeys: Iterable[str]) -> str | None:
    """The key among ``vkeys`` that signed a note about a grant's log, or that the signer followed; None: no key."""
    for vkey in dict.fromkeys(vkeys):
        with suppress(LogBroken):
            Verifier.parse(vkey).verify(note, grant)
            return vkey
    return None


def _key(vkey: str | None) -> Verifier | None:
    return None if vkey is None else Verifier.parse(vkey)


def first_key(export: Records) -> Verifier:
    """Return the first key of an export's party, which verifies notes of all its keys."""
    own = Verifier.parse(export.key)
    return next((own.first(note) for note in export.of_kind("checkpoint", None)), own)


def leads(export: Records, vkey: str) -> bool:
    """Whether a key is that of an export, or one that it followed, as its checkpoint shows."""
    if vkey == export.key:
        return True
    try:
        signed = (Verifier.parse(vkey).follow(note)[1] for note in export.of_kind("checkpoint", None))
        return next(signed, None) == Verifier.parse(export.key)
    except LogBroken:
        return False


def _receipt(note: str, grant: str, curator: Verifier | None) -> Checkpoint:
    """Return the checkpoint of a receipt; where nobody knows the curator's key, its signature is not checked."""
    if curator is not None:
        return curator.verify(note, grant)
    checkpoint = parse_unverified(note)
    if not checkpoint.origin.endswith(f"/{grant}"):
        raise LogBroken(f"the checkpoint is of another log: {checkpoint.origin} is not of this log")
    return checkpoint


class _Roots:
    """Signed roots of one log, by size."""

    def __init__(self) -> None:
        self.by_size = NumberedDigests()
        self._below: _Roots | None = None

    def add_all(self, signed: Iterable[Checkpoint]) -> None:
        """Take signed checkpoints. Raises LogBroken for two roots of one size."""
        for checkpoint in signed:
            if checkpoint.head.size:
                self.by_size.add(checkpoint.head.size, bytes.fromhex(checkpoint.head.root))
        last: tuple[int, bytes] | None = None
        for size, digest in self.by_size:
            if last is not None and last[0] == size:
                _check_same(size, last[1], digest)
            last = size, digest

    def over(self, below: "_Roots") -> "_Roots":
        """Return these roots, which look up other sizes in ``below``."""
        self._below = below
        return self

    def get(self, size: int) -> str | None:
        digest = self.by_size.get(size)
        if digest is None and self._below is not None:
            return self._below.get(size)
        return None if digest is None else digest.hex()

    @property
    def last(self) -> int:
        return next((size for size, _ in reversed(self.by_size)), 0)


def _check_same(size: int, first: bytes, second: bytes) -> None:
    """Raise LogBroken if a size has two roots: their signer forked the log."""
    if first != second:
        raise LogBroken(f"a fork: two signed checkpoints of size {size} are of two histories")
