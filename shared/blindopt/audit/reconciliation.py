"""Two parties' exports, verified each by itself and compared with each other. Offline, pure."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blindopt.audit.checkpoints import Checkpoint, Verifier
from blindopt.audit.merkle_log import Entry, Head, Json, root, verify
from blindopt.errors import LogBroken
from blindopt.wire import AuditEntry

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

    def told(self) -> dict[str, dict[int, Json]]:
        """The exchanges with a place in a shared log that the party's own log tells, by grant and place."""
        told: dict[str, dict[int, Json]] = {}
        for entry in self.own:
            exchange = entry.record.get("exchange")
            if isinstance(exchange, dict) and type(place := exchange.get("position")) is int:
                if place in told.setdefault(str(exchange.get("grant_id")), {}):
                    raise LogBroken(f"record {entry.seq} tells place {place} of a shared log again")
                told[str(exchange.get("grant_id"))][place] = exchange
        return told

    @property
    def is_curators(self) -> bool:
        """Whether it is of the party that keeps and signs the shared logs."""
        return self.service == "blindopt-curator"

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
        elif found.kind in ("checkpoint", "receipt", "countersignature") and found.note:
            export.notes.append((found.kind, found.grant_id, found.note))
        else:
            raise LogBroken(f"{path} line {number} is not a line of an export")
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
    if export.service != f"blindopt-{own.name.partition('.')[0]}":
        raise LogBroken(f"the export is of {export.service} and signed by {own.name}")
    for vkey in export.keys.values():
        Verifier.parse(vkey)
    signed = [own.signed(note) for note in export.of_kind("checkpoint", None)]
    head = verify(export.own, signed=_roots(signed, f"{own.name}/log"))
    _check_covered(signed, head.size)
    told, countersigned = export.told(), _countersigned(export)
    for grant in sorted(export.shared.keys() | told.keys() | {grant for _, grant, _ in export.notes if grant}):
        try:
            _verify_shared(export, own, grant, told.get(grant, {}), countersigned.get(grant, []))
        except LogBroken as error:
            raise LogBroken(f"shared log {grant}: {error}") from None
    return head


def _check_covered(signed: list[Checkpoint], size: int) -> None:
    """LogBroken if no checkpoint is of the whole log: who left lines out could have left out the last of both."""
    if size not in {checkpoint.head.size for checkpoint in signed}:
        raise LogBroken(f"the log has {size} records and no signed checkpoint of them: lines of the export are missing")


def _countersigned(export: Export) -> dict[str, list[Json]]:
    """The countersignatures that the party's own log tells of, by grant."""
    found: dict[str, list[Json]] = {}
    for entry in export.own:
        record = entry.record
        if record.get("kind") == "checkpoint.countersigned" and isinstance(details := record.get("details"), dict):
            found.setdefault(str(details.get("grant_id")), []).append(details)
    return found


def _verify_shared(export: Export, own: Verifier, grant: str, told: dict[int, Json], countersigned: list[Json]) -> None:
    """Verify the shared log of a grant, and everything that was signed about it.

    A modeler's copy ends where it lacks an exchange, whose reply was lost on the way, until it is fetched;
    what its own log tells beyond is pending.
    """
    entries = export.shared.get(grant, [])
    pending = {place for place in told if place >= len(entries)}
    curator = own if export.is_curators else _pinned(export, grant, told)
    witness = _key(export.keys.get(grant)) if export.is_curators else own
    whole: list[Checkpoint] = []
    held: list[Checkpoint] = []
    if curator is not None:
        whole = [curator.signed(note) for note in export.of_kind("checkpoint", grant)]
        held = [curator.signed(note) for note in export.of_kind("receipt", grant)]
    elif entries:
        raise LogBroken("the key of the curator, whose receipts made it, is missing")
    countersignatures = list(export.of_kind("countersignature", grant))
    if witness is None and countersignatures:
        raise LogBroken("the key of the modeler that countersigned it is missing")
    witnessed = [witness.countersigned(note)[0] for note in countersignatures] if witness else []
    roots = _roots([*whole, *held, *witnessed], None if curator is None else f"{curator.name}/{grant}")
    sure = {checkpoint.head.size for checkpoint in (*whole, *witnessed)}
    known = {size: root for size, root in roots.items() if size in sure or size - 1 not in pending}
    verify(entries, place="position", signed=known)
    if pending and (export.is_curators or (len(entries) in pending and curator is not None)):
        cut, most = len(entries), max(pending) + 1
        raise LogBroken(f"the tail was cut: the log ends after {cut} records, the party's own log tells of {most}")
    if export.is_curators:
        _check_covered(whole, len(entries))
    _check_told(export, entries, told)
    if curator is not None and not export.is_curators:
        _check_receipts(told, held)
    heads = [(checkpoint.head.size, checkpoint.head.root) for checkpoint in witnessed]
    for details in countersigned:
        if (details.get("size"), details.get("root")) not in heads:
            raise LogBroken(f"the countersignature of size {details.get('size')} is missing")


def _check_receipts(told: dict[int, Json], receipts: list[Checkpoint]) -> None:
    held = {checkpoint.head.size for checkpoint in receipts}
    for place in sorted(told):
        if place + 1 not in held:
            raise LogBroken(f"the receipt of place {place} is missing")


def _check_told(export: Export, entries: list[Entry], told: dict[int, Json]) -> None:
    """The shared log and the party's own tell the same, of one grant and one study.

    But a request for another study than the grant opens, which was refused: somebody mistyped it.
    """
    taken = [entry.record for entry in entries if not _is_refused(entry.record)]
    studies = {record.get("study_id") for record in taken[:1]}
    for place, entry in enumerate(entries):
        record = entry.record
        is_of = _is_refused(record) or record.get("study_id") in studies
        if record.get("grant_id") != entries[0].record.get("grant_id") or not is_of:
            raise LogBroken(f"place {place} is of another grant or study")
        if told.get(place, record) != record or (export.is_curators and place not in told):
            raise LogBroken(f"place {place} is not what the party's own log tells")


def _pinned(export: Export, grant: str, told: dict[int, Json]) -> Verifier | None:
    """The key that a modeler pinned for the study of a grant."""
    entries = export.shared.get(grant, [])
    exchanges = (entry.record for entry in entries) if entries else iter(told.values())
    taken = (exchange for exchange in exchanges if not _is_refused(exchange))
    return next((_key(export.keys.get(str(exchange.get("study_id")))) for exchange in taken), None)


def _is_refused(exchange: Json) -> bool:
    return isinstance(status := exchange.get("status"), int) and status >= 400


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
    told = {"curator": curator.told(), "modeler": modeler.told()}
    grants = sorted(
        grant
        for grant in curator.shared.keys() | modeler.shared.keys() | told["modeler"].keys()
        if _is_of(study_id, _places(curator, told["curator"], grant))
        or _is_of(study_id, _places(modeler, told["modeler"], grant))
    )
    differences: list[Difference] = []
    compared = 0
    for grant in grants:
        ours, theirs = _places(curator, told["curator"], grant), _places(modeler, told["modeler"], grant)
        if not theirs and _is_anothers(curator, modeler, grant):
            continue
        compared += max([*ours, *theirs], default=-1) + 1
        differences += _keys_differ(grant, study_id, curator, modeler, theirs)
        differences += _compare(grant, ours, theirs)
        differences += _broken_promises(grant, ours)
        differences += _forks(grant, "curator", curator, modeler)
        differences += _forks(grant, "modeler", modeler, curator)
    without = [e.record["exchange"] for e in modeler.own if _has_no_receipt(e.record.get("exchange"), study_id)]
    if not compared and not without:
        raise LogBroken(f"the two tell no exchange of {study_id} with each other: is that the study's id?")
    differences += [
        Difference(f"request {exchange.get('request_id')}", "only the modeler tells it: it came without a receipt")
        for exchange in without
    ]
    return compared + len(without), differences


def _places(export: Export, told: dict[str, dict[int, Json]], grant: str) -> dict[int, Json]:
    """The exchanges of a grant by place: of the shared log, and what is pending beyond its end."""
    return told.get(grant, {}) | dict(enumerate(export.exchanges(grant)))


def _is_of(study_id: str, exchanges: dict[int, Json]) -> bool:
    return any(exchange.get("study_id") == study_id for exchange in exchanges.values())


def _is_anothers(curator: Export, modeler: Export, grant: str) -> bool:
    """Whether a grant that the modeler does not tell of is another's: its log was countersigned with another key.

    One that nobody countersigned may be either's: another's, if this modeler tells of some other grant.
    """
    pinned = curator.keys.get(grant)
    return pinned != modeler.key if pinned is not None else bool(modeler.shared)


def _keys_differ(
    grant: str, study_id: str, curator: Export, modeler: Export, theirs: dict[int, Json]
) -> Iterator[Difference]:
    """A key that one holds signatures under and the other no longer has: those would go unread."""
    if theirs and modeler.keys.get(study_id, curator.key) != curator.key:
        yield Difference(grant, "the key that the modeler holds receipts of is not the curator's")
    if curator.keys.get(grant, modeler.key) != modeler.key:
        yield Difference(grant, "the key that the curator holds countersignatures of is not the modeler's")


def _has_no_receipt(exchange: Any, study_id: str) -> bool:
    if not isinstance(exchange, dict) or exchange.get("study_id") != study_id or exchange.get("position") is not None:
        return False
    return exchange.get("status") not in NO_PLACE and not str(exchange.get("path")).startswith("/v1/audit/")


def _compare(grant: str, curator: dict[int, Json], modeler: dict[int, Json]) -> Iterator[Difference]:
    for place in sorted(curator.keys() | modeler.keys()):
        where = f"{grant} place {place}"
        if place not in curator:
            yield Difference(where, "only the modeler has it: the curator's tail is missing")
        elif place not in modeler:
            what = "the modeler's tail is missing" if place > max(modeler, default=-1) else "its reply was lost"
            yield Difference(where, f"only the curator has it: {what}")
        elif curator[place] != modeler[place]:
            names = curator[place].keys() | modeler[place].keys()
            fields = [name for name in sorted(names) if curator[place].get(name) != modeler[place].get(name)]
            yield Difference(where, f"differs in {', '.join(fields)}")


def _broken_promises(grant: str, curator: dict[int, Json]) -> Iterator[Difference]:
    """Answers other than the first under their key: a curator that draws again, or asks more than once."""
    first: dict[str, tuple[int, Json]] = {}
    for place, told in sorted(curator.items()):
        key, status = told.get("idempotency_key"), told.get("status")
        if told.get("method") != "POST" or not isinstance(key, str) or status not in range(200, 300):
            continue
        was, answer = first.setdefault(key, (place, told))
        if any(answer.get(name) != told.get(name) for name in ("request_sha256", "status", "reply_sha256")):
            yield Difference(f"{grant} place {place}", f"another answer than at place {was} under the same key")
        elif (place != was) != (told.get("replayed") is True):
            what = (
                "an answer given again as if it were new" if place != was else "an answer repeated that never was given"
            )
            yield Difference(f"{grant} place {place}", what)


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
