"""Verify the audit exports of two parties and compare them with each other. Offline, pure."""

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

_UNRECORDED = (401, 404, 413, 429, 500, 502, 503)
"""Statuses of refusals that precede any write: they are not in the shared log."""


class Line(BaseModel):
    """A line of an export that is no log entry: its service and key, a pinned key, or a signed note."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    service: str | None = None
    key: str | None = Field(None, description="C2SP verifier key: of the service, or pinned for the subject.")
    subject: str | None = Field(None, description="The study or grant that a key was pinned for.")
    kind: str | None = Field(None, description="checkpoint, receipt or countersignature.")
    grant_id: str | None = None
    note: str | None = None


@dataclass(slots=True)
class Export:
    """One party's records: its own log, its copies of the shared logs by grant, and every signature that it holds."""

    service: str
    key: str
    own: list[Entry] = field(default_factory=list)
    shared: dict[str, list[Entry]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    notes: list[tuple[str, str | None, str]] = field(default_factory=list)
    """(kind, grant or None for the party's own log, note)"""

    def exchanges(self, grant: str) -> list[Json]:
        """Return the exchanges of a grant's shared log."""
        return [entry.record for entry in self.shared.get(grant, [])]

    def own_exchanges(self) -> dict[str, dict[int, Json]]:
        """Return the exchanges in the party's own log that belong to a shared log, by grant and position."""
        recorded: dict[str, dict[int, Json]] = {}
        for entry in self.own:
            exchange = entry.record.get("exchange")
            if isinstance(exchange, dict) and type(position := exchange.get("position")) is int:
                if position in recorded.setdefault(str(exchange.get("grant_id")), {}):
                    raise LogBroken(f"record {entry.seq} repeats place {position} of a shared log")
                recorded[str(exchange.get("grant_id"))][position] = exchange
        return recorded

    @property
    def is_curators(self) -> bool:
        """Whether the export is the curator's, who keeps and signs the shared logs."""
        return self.service == "blindopt-curator"

    def of_kind(self, kind: str, grant: str | None) -> Iterator[str]:
        """Return the notes of one kind about one log."""
        return (note for k, g, note in self.notes if (k, g) == (kind, grant))


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the two parties' records."""

    where: str
    what: str


def write(export: Export) -> Iterator[str]:
    """Write the lines of an export in ASCII: some readers split lines at other Unicode characters."""
    first = Line(service=export.service, key=export.key)
    lines = [Line(subject=subject, key=key) for subject, key in export.keys.items()]
    lines += [Line(kind=kind, grant_id=grant, note=note) for kind, grant, note in export.notes]
    for line in (first, *lines):
        yield json.dumps(line.model_dump(exclude_none=True)) + "\n"
    for grant, entries in ((None, export.own), *export.shared.items()):
        for entry in entries:
            start = {"seq": entry.seq, "body": entry.body.decode(errors="replace"), "grant_id": grant}
            yield json.dumps(start | {"leaf": entry.leaf.hex(), "peaks": entry.peaks.hex()}) + "\n"


def read(path: Path) -> Export:
    """Read an export from a file. Raises LogBroken for any other file."""
    lines = path.read_bytes().decode(errors="replace").removesuffix("\n").split("\n")
    export: Export | None = None
    for number, text in enumerate(lines, start=1):
        try:
            line = AuditEntry.model_validate_json(text) if '"seq"' in text else Line.model_validate_json(text)
        except ValidationError:
            raise LogBroken(f"{path} line {number} is not a line of an export") from None
        if export is None:
            if not isinstance(line, Line) or not line.service or not line.key:
                raise LogBroken(f"{path} is no export: its first line does not name service and key")
            export = Export(line.service, line.key)
        elif isinstance(line, AuditEntry):
            entry = Entry(line.seq, line.body.encode(), bytes.fromhex(line.leaf), bytes.fromhex(line.peaks))
            (export.own if line.grant_id is None else export.shared.setdefault(line.grant_id, [])).append(entry)
        elif line.subject and line.key:
            export.keys[line.subject] = line.key
        elif line.kind in ("checkpoint", "receipt", "countersignature") and line.note:
            export.notes.append((line.kind, line.grant_id, line.note))
        else:
            raise LogBroken(f"{path} line {number} is not a line of an export")
    if export is None:
        raise LogBroken(f"{path} is empty")
    return export


def verify_export(export: Export, *, key: str | None = None) -> Head:
    """Verify one party's export by itself and return the head of its own log. Raises LogBroken.

    ``key`` is the party's verifier key from another source. Without it, a party that rewrites its whole
    history can sign the new one with a new key.
    """
    if key is not None and not _leads(export, key):
        raise LogBroken(f"the export is signed with {export.key}, not with the key that was given")
    own = _first_key(export)
    if export.service != f"blindopt-{own.name.partition('.')[0]}":
        raise LogBroken(f"the export is of {export.service} and signed by {own.name}")
    for vkey in export.keys.values():
        Verifier.parse(vkey)
    signed = [own.verify(note, "log") for note in export.of_kind("checkpoint", None)]
    head = verify(export.own, signed=_roots(signed))
    _check_covered(signed, head.size)
    recorded, countersigned = export.own_exchanges(), _countersigned(export)
    for grant in sorted(export.shared.keys() | recorded.keys() | {grant for _, grant, _ in export.notes if grant}):
        try:
            _verify_shared(export, own, grant, recorded.get(grant, {}), countersigned.get(grant, []))
        except LogBroken as error:
            raise LogBroken(f"shared log {grant}: {error}") from None
    return head


def _check_covered(signed: list[Checkpoint], size: int) -> None:
    """Raise LogBroken unless a checkpoint covers the whole log: otherwise its last lines could be missing."""
    if size not in {checkpoint.head.size for checkpoint in signed}:
        raise LogBroken(f"the log has {size} records and no signed checkpoint of them: lines of the export are missing")


def _countersigned(export: Export) -> dict[str, list[Json]]:
    """Return the countersignatures that the party's own log records, by grant."""
    countersigned: dict[str, list[Json]] = {}
    for entry in export.own:
        record = entry.record
        if record.get("kind") == "checkpoint.countersigned" and isinstance(details := record.get("details"), dict):
            countersigned.setdefault(str(details.get("grant_id")), []).append(details)
    return countersigned


def _verify_shared(
    export: Export, own: Verifier, grant: str, recorded: dict[int, Json], countersigned: list[Json]
) -> None:
    """Verify the shared log of a grant against its signatures and ``recorded``, the party's own exchanges by position.

    A modeler's copy ends before the first exchange whose reply was lost, until it is fetched; exchanges that its
    own log records beyond that are pending.
    """
    entries = export.shared.get(grant, [])
    pending = {position for position in recorded if position >= len(entries)}
    curator = own if export.is_curators else _pinned(export, grant, recorded)
    witness = _key(export.keys.get(grant)) if export.is_curators else own
    whole: list[Checkpoint] = []
    held: list[Checkpoint] = []
    if curator is not None:
        whole = [curator.verify(note, grant) for note in export.of_kind("checkpoint", grant)]
        held = [curator.verify(note, grant) for note in export.of_kind("receipt", grant)]
    elif entries:
        raise LogBroken("the key of the curator, whose receipts made it, is missing")
    countersignatures = list(export.of_kind("countersignature", grant))
    if witness is None and countersignatures:
        raise LogBroken("the key of the modeler that countersigned it is missing")
    witnessed = [witness.verify_countersignature(note)[0] for note in countersignatures] if witness else []
    if curator is not None:
        witnessed += [curator.verify(note, grant) for note in countersignatures]
    roots = _roots([*whole, *held, *witnessed])
    complete = {checkpoint.head.size for checkpoint in (*whole, *witnessed)}
    signed = {size: root for size, root in roots.items() if size in complete or size - 1 not in pending}
    verify(entries, index="position", signed=signed)
    if pending and (export.is_curators or (len(entries) in pending and curator is not None)):
        cut, most = len(entries), max(pending) + 1
        raise LogBroken(f"the tail was cut: the log ends after {cut} records, the party's own log has {most}")
    if export.is_curators:
        _check_covered(whole, len(entries))
    _check_recorded(export, entries, recorded)
    if curator is not None and not export.is_curators:
        _check_receipts(recorded, held)
    heads = [(checkpoint.head.size, checkpoint.head.root) for checkpoint in witnessed]
    for details in countersigned:
        if (details.get("size"), details.get("root")) not in heads:
            raise LogBroken(f"the countersignature of size {details.get('size')} is missing")


def _check_receipts(recorded: dict[int, Json], receipts: list[Checkpoint]) -> None:
    held = {checkpoint.head.size for checkpoint in receipts}
    for position in sorted(recorded):
        if position + 1 not in held:
            raise LogBroken(f"the receipt of place {position} is missing")


def _check_recorded(export: Export, entries: list[Entry], recorded: dict[int, Json]) -> None:
    """Check that the shared log equals what the party's own log records, and is of one grant and one study.

    A refused request may name another study than the grant's, by mistake.
    """
    taken = [entry.record for entry in entries if not _is_refused(entry.record)]
    studies = {record.get("study_id") for record in taken[:1]}
    for position, entry in enumerate(entries):
        record = entry.record
        is_of_study = _is_refused(record) or record.get("study_id") in studies
        if record.get("grant_id") != entries[0].record.get("grant_id") or not is_of_study:
            raise LogBroken(f"place {position} is of another grant or study")
        if recorded.get(position, record) != record or (export.is_curators and position not in recorded):
            raise LogBroken(f"place {position} is not what the party's own log has")


def _pinned(export: Export, grant: str, recorded: dict[int, Json]) -> Verifier | None:
    """Return the key that a modeler pinned for the study of a grant."""
    entries = export.shared.get(grant, [])
    exchanges = (entry.record for entry in entries) if entries else iter(recorded.values())
    taken = (exchange for exchange in exchanges if not _is_refused(exchange))
    return next((_key(export.keys.get(str(exchange.get("study_id")))) for exchange in taken), None)


def _is_refused(exchange: Json) -> bool:
    return isinstance(status := exchange.get("status"), int) and status >= 400


def _key(vkey: str | None) -> Verifier | None:
    return None if vkey is None else Verifier.parse(vkey)


def _first_key(export: Export) -> Verifier:
    """Return the first key of an export's party, which verifies notes of all its keys."""
    own = Verifier.parse(export.key)
    return next((own.first(note) for note in export.of_kind("checkpoint", None)), own)


def _leads(export: Export, vkey: str) -> bool:
    """Whether a key is that of an export, or one that it followed, as its checkpoint shows."""
    if vkey == export.key:
        return True
    try:
        signed = (Verifier.parse(vkey).follow(note)[1] for note in export.of_kind("checkpoint", None))
        return next(signed, None) == Verifier.parse(export.key)
    except LogBroken:
        return False


def _roots(signed: Iterable[Checkpoint]) -> dict[int, str]:
    """Return signed roots by size. Raises LogBroken for two roots of one size: their signer forked the log."""
    roots: dict[int, str] = {}
    for checkpoint in signed:
        size = checkpoint.head.size
        if roots.setdefault(size, checkpoint.head.root) != checkpoint.head.root:
            raise LogBroken(f"a fork: two signed checkpoints of size {size} are of two histories")
    return {size: root for size, root in roots.items() if size}


def reconcile(curator: Export, modeler: Export, study_id: str) -> tuple[int, list[Difference]]:
    """Compare two verified exports of one study; return the number of exchanges compared, and the differences.

    Raises LogBroken if neither has an exchange of the study.
    """
    curators, modelers = curator.own_exchanges(), modeler.own_exchanges()
    grants = sorted(
        grant
        for grant in curator.shared.keys() | modeler.shared.keys() | modelers.keys()
        if _is_of(study_id, _by_position(curator, curators, grant))
        or _is_of(study_id, _by_position(modeler, modelers, grant))
    )
    differences: list[Difference] = []
    compared = 0
    for grant in grants:
        ours, theirs = _by_position(curator, curators, grant), _by_position(modeler, modelers, grant)
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
        raise LogBroken(f"the two exports have no exchange of {study_id}: is that the study's id?")
    differences += [
        Difference(f"request {exchange.get('request_id')}", "only the modeler has it: it came without a receipt")
        for exchange in without
    ]
    return compared + len(without), differences


def _by_position(export: Export, recorded: dict[str, dict[int, Json]], grant: str) -> dict[int, Json]:
    """Return the exchanges of a grant by position: those of the shared log, and those pending beyond its end."""
    return recorded.get(grant, {}) | dict(enumerate(export.exchanges(grant)))


def _is_of(study_id: str, exchanges: dict[int, Json]) -> bool:
    return any(exchange.get("study_id") == study_id for exchange in exchanges.values())


def _is_anothers(curator: Export, modeler: Export, grant: str) -> bool:
    """Whether a grant absent from the modeler's export belongs to another modeler: another key countersigned it.

    A log without a countersignature counts as another's if this modeler has some other shared log.
    """
    pinned = curator.keys.get(grant)
    return not _leads(modeler, pinned) if pinned is not None else bool(modeler.shared)


def _keys_differ(
    grant: str, study_id: str, curator: Export, modeler: Export, theirs: dict[int, Json]
) -> Iterator[Difference]:
    """Report a party whose pinned key is not the other party's key: it could not verify the other's signatures."""
    if theirs and not _leads(curator, modeler.keys.get(study_id, curator.key)):
        yield Difference(grant, "the key that the modeler holds receipts of is not the curator's")
    if not _leads(modeler, curator.keys.get(grant, modeler.key)):
        yield Difference(grant, "the key that the curator holds countersignatures of is not the modeler's")


def _has_no_receipt(exchange: Any, study_id: str) -> bool:
    if not isinstance(exchange, dict) or exchange.get("study_id") != study_id or exchange.get("position") is not None:
        return False
    return exchange.get("status") not in _UNRECORDED and not str(exchange.get("path")).startswith("/v1/audit/")


def _compare(grant: str, curator: dict[int, Json], modeler: dict[int, Json]) -> Iterator[Difference]:
    for position in sorted(curator.keys() | modeler.keys()):
        where = f"{grant} place {position}"
        if position not in curator:
            yield Difference(where, "only the modeler has it: the curator's tail is missing")
        elif position not in modeler:
            what = "the modeler's tail is missing" if position > max(modeler, default=-1) else "its reply was lost"
            yield Difference(where, f"only the curator has it: {what}")
        elif (ours := curator[position]) != (theirs := modeler[position]):
            fields = [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
            yield Difference(where, f"differs in {', '.join(fields)}")


def _broken_promises(grant: str, curator: dict[int, Json]) -> Iterator[Difference]:
    """Report replies that differ from the first reply under their key: the curator drew noise or measured again."""
    first: dict[str, tuple[int, Json]] = {}
    for position, exchange in sorted(curator.items()):
        key, status = exchange.get("idempotency_key"), exchange.get("status")
        if exchange.get("method") != "POST" or not isinstance(key, str) or status not in range(200, 300):
            continue
        was, answer = first.setdefault(key, (position, exchange))
        if any(answer.get(name) != exchange.get(name) for name in ("request_sha256", "status", "reply_sha256")):
            yield Difference(f"{grant} place {position}", f"another answer than at place {was} under the same key")
        elif (is_repeat := position != was) != (exchange.get("replayed") is True):
            what = "an answer given again as if it were new" if is_repeat else "an answer repeated that never was given"
            yield Difference(f"{grant} place {position}", what)


def _forks(grant: str, who: str, party: Export, holder: Export) -> Iterator[Difference]:
    """Report signatures of ``party``, held by ``holder``, on a history that is no longer in the party's export."""
    verifier = _first_key(party)
    held: list[tuple[int, str]] = []
    for kind in ("receipt", "checkpoint", "countersignature"):
        for note in holder.of_kind(kind, grant):
            try:
                checkpoint = verifier.verify(note) if who == "curator" else verifier.verify_countersignature(note)[0]
            except LogBroken:
                continue  # only the other party signed it
            held.append((checkpoint.head.size, checkpoint.head.root))
    roots = _all_roots(party.shared.get(grant, []), {size for size, _ in held})
    for size, signed in sorted(set(held)):
        if size not in roots:
            yield Difference(f"{grant} size {size}", f"the {who} signed it and no longer has it: its tail was cut")
        elif roots[size] != signed:
            yield Difference(f"{grant} size {size}", f"a fork: the {who} signed another history than it exported")


def _all_roots(entries: list[Entry], sizes: set[int]) -> dict[int, str]:
    roots = {0: root([]).hex()}
    for size in sizes & set(range(1, len(entries) + 1)):
        peaks = entries[size - 1].peaks
        roots[size] = root([peaks[i : i + 32] for i in range(0, len(peaks), 32)]).hex()
    return roots
