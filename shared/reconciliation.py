"""Two parties' exports, verified each by itself and compared with each other. Offline, pure."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.audit import Entry, Head, Json, root, verify
from shared.errors import LogBroken
from shared.notes import Checkpoint, Verifier
from shared.wire import AuditEntry

NO_PLACE = (401, 404, 413, 429, 500, 502, 503)
"""Refusals that come before a party writes anything: they have no place in the shared log."""


class Line(BaseModel):
    """A line of an export that is no entry: who wrote it, a signed note, or a key that was pinned."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    service: str | None = None
    key: str | None = Field(None, description="C2SP verifier key: of the service, or pinned for the subject.")
    subject: str | None = Field(None, description="The study or grant that a key was pinned for.")
    kind: str | None = Field(None, description="checkpoint, receipt or countersignature.")
    grant_id: str | None = None
    note: str | None = None


@dataclass(slots=True)
class Export:
    """What one party tells: its own log, the shared ones by grant, and every signature that it holds."""

    service: str
    key: str
    own: list[Entry] = field(default_factory=list)
    shared: dict[str, list[Entry]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    notes: list[tuple[str, str | None, str]] = field(default_factory=list)
    """(kind, grant or None for the own log, note)"""

    def exchanges(self, grant: str) -> list[Json]:
        """The exchanges of a shared log."""
        return [entry.record for entry in self.shared.get(grant, [])]

    def of_kind(self, kind: str, grant: str | None) -> Iterator[str]:
        """The notes of one kind about one log."""
        return (note for k, g, note in self.notes if (k, g) == (kind, grant))


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that the two parties do not tell alike."""

    where: str
    what: str


def write(export: Export) -> Iterator[str]:
    """The lines of an export, as ASCII: other texts hold line ends that some readers split at."""
    first = Line(service=export.service, key=export.key)
    rest = [Line(subject=subject, key=key) for subject, key in export.keys.items()]
    rest += [Line(kind=kind, grant_id=grant, note=note) for kind, grant, note in export.notes]
    for line in (first, *rest):
        yield json.dumps(line.model_dump(exclude_none=True)) + "\n"
    for grant, entries in ((None, export.own), *export.shared.items()):
        for entry in entries:
            told = {"seq": entry.seq, "body": entry.body.decode(errors="replace"), "grant_id": grant}
            yield json.dumps(told | {"leaf": entry.leaf.hex(), "peaks": entry.peaks.hex()}) + "\n"


def read(path: Path) -> Export:
    """An export from a file. Raises LogBroken for what is none."""
    lines = path.read_bytes().decode(errors="replace").removesuffix("\n").split("\n")
    export: Export | None = None
    for number, text in enumerate(lines, start=1):
        try:
            found = AuditEntry.model_validate_json(text) if '"seq"' in text else Line.model_validate_json(text)
        except ValidationError:
            raise LogBroken(f"{path} line {number} is not a line of an export") from None
        if export is None:
            if not isinstance(found, Line) or not found.service or not found.key:
                raise LogBroken(f"{path} is no export: its first line does not tell service and key")
            export = Export(found.service, found.key)
        elif isinstance(found, AuditEntry):
            entry = Entry(found.seq, found.body.encode(), bytes.fromhex(found.leaf), bytes.fromhex(found.peaks))
            (export.own if found.grant_id is None else export.shared.setdefault(found.grant_id, [])).append(entry)
        elif found.subject and found.key:
            export.keys[found.subject] = found.key
        elif found.kind and found.note:
            export.notes.append((found.kind, found.grant_id, found.note))
    if export is None:
        raise LogBroken(f"{path} is empty")
    return export


def verify_export(export: Export, *, key: str | None = None) -> Head:
    """Verify everything that one party tells, by itself; the head of its own log. Raises LogBroken.

    ``key`` is the party's verifier key, where it is known from elsewhere: without it, a party that writes
    its whole history anew signs it anew.
    """
    if key not in (None, export.key):
        raise LogBroken(f"the export is signed with {export.key}, not with the key that was given")
    own = Verifier.parse(export.key)
    signed = [own.signed(note) for note in export.of_kind("checkpoint", None)]
    head = verify(export.own, signed=_roots(signed, f"{own.name}/log"))
    told: dict[str, dict[int, Json]] = {}
    for entry in export.own:
        exchange = entry.record.get("exchange")
        if isinstance(exchange, dict) and isinstance(exchange.get("position"), int):
            told.setdefault(str(exchange.get("grant_id")), {})[exchange["position"]] = exchange
    for grant in export.shared.keys() | told.keys():
        _verify_shared(export, own, grant, told.get(grant, {}))
    return head


def _verify_shared(export: Export, own: Verifier, grant: str, told: dict[int, Json]) -> None:
    entries = export.shared.get(grant, [])
    waiting = _waiting(export, len(entries), told)
    try:
        verify(entries, place="position", signed=_signed(export, own, grant, waiting))
        for position, exchange in told.items():
            if position in waiting:
                continue
            if position >= len(entries) or entries[position].record != exchange:
                raise LogBroken(f"place {position} is not what the party's own log tells")
        if export.service == "blindopt-curator" and len(told) != len(entries):
            raise LogBroken("it has exchanges that the curator's own log does not tell")
    except LogBroken as error:
        raise LogBroken(f"shared log {grant}: {error}") from None


def _waiting(export: Export, size: int, told: dict[int, Json]) -> set[int]:
    """Places that a modeler's copy of ``size`` exchanges cannot have yet, though its own log tells them.

    The reply before them was lost on the way, and is fetched when the copy is next held against the
    curator's; or no key of the curator is pinned yet.
    """
    pinned = any(exchange.get("study_id") in export.keys for exchange in told.values())
    if export.service != "blindopt-modeler" or (pinned and size in told):
        return set()
    return {place for place in told if place >= size}


def _signed(export: Export, own: Verifier, grant: str, waiting: set[int]) -> dict[int, str]:
    """Roots of a shared log that somebody signed, as far as this party holds the signatures and the keys.

    The receipts of places that are ``waiting`` are left out: there is nothing yet to hold them against.
    """
    curator = own if export.service == "blindopt-curator" else _pinned(export, grant)
    found: list[Checkpoint] = []
    receipts: list[Checkpoint] = []
    if curator is not None:
        found += [curator.signed(n) for n in export.of_kind("checkpoint", grant)]
        receipts += [curator.signed(n) for n in export.of_kind("receipt", grant)]
    witness = own if export.service == "blindopt-modeler" else _key(export.keys.get(grant))
    if witness is not None:
        found += [witness.countersigned(n)[0] for n in export.of_kind("countersignature", grant)]
    roots = _roots([*found, *receipts], None if curator is None else f"{curator.name}/{grant}")
    others = {checkpoint.head.size for checkpoint in found}
    return {size: told for size, told in roots.items() if size in others or size - 1 not in waiting}


def _pinned(export: Export, grant: str) -> Verifier | None:
    studies = {str(entry.record.get("study_id")) for entry in export.shared.get(grant, [])[:1]}
    return next((_key(export.keys.get(study)) for study in studies), None)


def _key(vkey: str | None) -> Verifier | None:
    return None if vkey is None else Verifier.parse(vkey)


def _roots(signed: Iterable[Checkpoint], origin: str | None) -> dict[int, str]:
    """Roots by size; LogBroken for two of one size, which prove that their signer told two histories."""
    roots: dict[int, str] = {}
    for checkpoint in signed:
        if origin not in (None, checkpoint.origin):
            raise LogBroken(f"a checkpoint of {checkpoint.origin} is not of this log")
        size = checkpoint.head.size
        if roots.setdefault(size, checkpoint.head.root) != checkpoint.head.root:
            raise LogBroken(f"a fork: two signed checkpoints of size {size} tell two histories")
    return {size: told for size, told in roots.items() if size}


def reconcile(curator: Export, modeler: Export, study_id: str) -> tuple[int, list[Difference]]:
    """Compare what two verified exports tell of one study: exchanges compared, and the differences.

    Raises LogBroken where neither tells an exchange of it.
    """
    grants = [g for g in sorted(curator.shared.keys() | modeler.shared.keys()) if _is_of(study_id, g, curator, modeler)]
    differences: list[Difference] = []
    compared = 0
    for grant in grants:
        if grant not in modeler.shared:
            continue  # another modeler's
        ours, theirs = curator.exchanges(grant), modeler.exchanges(grant)
        compared += max(len(ours), len(theirs))
        differences += _compare(grant, ours, theirs)
        differences += _forks(grant, "curator", curator, modeler)
        differences += _forks(grant, "modeler", modeler, curator)
    without = [e.record["exchange"] for e in modeler.own if _has_no_receipt(e.record.get("exchange"), study_id)]
    if not grants and not without:
        raise LogBroken(f"neither log tells an exchange of {study_id}: is that the study's id?")
    differences += [
        Difference(f"request {exchange['request_id']}", "only the modeler tells it: it came without a receipt")
        for exchange in without
    ]
    return compared + len(without), differences


def _is_of(study_id: str, grant: str, *exports: Export) -> bool:
    return any(e.record.get("study_id") == study_id for export in exports for e in export.shared.get(grant, [])[:1])


def _has_no_receipt(exchange: Any, study_id: str) -> bool:
    if not isinstance(exchange, dict) or exchange.get("study_id") != study_id or exchange.get("position") is not None:
        return False
    return exchange.get("status") not in NO_PLACE and not str(exchange.get("path")).startswith("/v1/audit/")


def _compare(grant: str, curator: list[Json], modeler: list[Json]) -> Iterator[Difference]:
    for place in range(max(len(curator), len(modeler))):
        where = f"{grant} place {place}"
        if place >= len(curator):
            yield Difference(where, "only the modeler has it: the curator's tail is missing")
        elif place >= len(modeler):
            yield Difference(where, "only the curator has it: the modeler's tail is missing")
        elif curator[place] != modeler[place]:
            names = curator[place].keys() | modeler[place].keys()
            fields = [name for name in sorted(names) if curator[place].get(name) != modeler[place].get(name)]
            yield Difference(where, f"differs in {', '.join(fields)}")


def _forks(grant: str, who: str, party: Export, holder: Export) -> Iterator[Difference]:
    """Signatures of one party, held by the other, under a history that the party no longer tells."""
    verifier = Verifier.parse(party.key)
    held: list[tuple[int, str]] = []
    for kind in ("receipt", "checkpoint", "countersignature"):
        for note in holder.of_kind(kind, grant):
            try:
                checkpoint = verifier.signed(note) if who == "curator" else verifier.countersigned(note)[0]
            except LogBroken:
                continue  # signed by the other party alone
            held.append((checkpoint.head.size, checkpoint.head.root))
    roots = _all_roots(party.shared.get(grant, []), {size for size, _ in held})
    for size, told in sorted(set(held)):
        if size not in roots:
            yield Difference(f"{grant} size {size}", f"the {who} signed it and no longer has it: its tail was cut")
        elif roots[size] != told:
            yield Difference(f"{grant} size {size}", f"a fork: the {who} signed another history than it tells")


def _all_roots(entries: list[Entry], sizes: set[int]) -> dict[int, str]:
    found = {0: root([]).hex()}
    for size in sizes & set(range(1, len(entries) + 1)):
        peaks = entries[size - 1].peaks
        found[size] = root([peaks[i : i + 32] for i in range(0, len(peaks), 32)]).hex()
    return found
