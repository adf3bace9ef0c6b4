"""Verify the audit exports of two parties and compare them with each other. Offline, pure."""

import json
from array import array
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from blindopt import bodies
from blindopt.audit.merkle_log import EMPTY, Entry, Json, root
from blindopt.audit.verification import Records, first_key, leads
from blindopt.audit.verification import verify_export as verify_export
from blindopt.errors import Invalid, LogBroken
from blindopt.wire import AuditEntry

_UNRECORDED = (401, 404, 413, 429, 500, 502, 503)
"""Statuses of refusals that precede any write: they are not in the shared log."""

_NOTES = ("checkpoint", "receipt", "countersignature", "archived", "segment")


class Line(BaseModel):
    """A line of an export that is no log entry: its service and key, a pinned key, or a signed note."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    service: str | None = None
    key: str | None = Field(None, description="C2SP verifier key: of the service, or pinned for the subject.")
    subject: str | None = Field(None, description="The study or grant that a key was pinned for.")
    kind: str | None = Field(
        None,
        description="checkpoint, receipt, countersignature; archived: of all archived records, or a grant's last; "
        "segment: the name of one that has exchanges of the grant.",
    )
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
    """(kind, grant or None for the party's own log, note, or the name of a segment)"""

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

    def log(self, grant: str | None, after: int = -1) -> Iterator[Entry]:
        """The own log, or the one shared with a grant; entries ``after`` a position."""
        entries = self.own if grant is None else self.shared.get(grant, [])
        return iter(entries[max(0, after + 1 - entries[0].seq) :] if entries else [])

    def grants(self) -> set[str]:
        """The grants that have a shared log or a signed note."""
        return self.shared.keys() | {grant for _, grant, _ in self.notes if grant is not None}

    def of_kind(self, kind: str, grant: str | None) -> Iterator[str]:
        """Return the notes of one kind about one log."""
        return (note for k, g, note in self.notes if (k, g) == (kind, grant))


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the two parties' records."""

    where: str
    what: str


def write(export: Records) -> Iterator[str]:
    """Write the lines of an export in ASCII: some readers split lines at other Unicode characters."""
    grants = sorted(export.grants())
    lines = [Line(service=export.service, key=export.key)]
    lines += [Line(subject=subject, key=key) for subject, key in export.keys.items()]
    yield from map(_text, lines)
    for grant in (None, *grants):
        for kind in _NOTES:
            yield from (_text(Line(kind=kind, grant_id=grant, note=note)) for note in export.of_kind(kind, grant))
    for grant in (None, *grants):
        for entry in export.log(grant):
            start = {"seq": entry.seq, "body": entry.body.decode(errors="replace"), "grant_id": grant}
            yield json.dumps(start | {"leaf": entry.leaf.hex(), "peaks": entry.peaks.hex()}) + "\n"


def _text(line: Line) -> str:
    return json.dumps(line.model_dump(exclude_none=True)) + "\n"


def read(path: Path) -> Export:
    """Read an export from a file into memory. Raises LogBroken for any other file."""
    export = ExportFile(path)
    grants = sorted(export.grants())
    logs = [(kind, grant) for grant in (None, *grants) for kind in _NOTES]
    notes = [(kind, grant, note) for kind, grant in logs for note in export.of_kind(kind, grant)]
    shared = {grant: entries for grant in grants if (entries := list(export.log(grant)))}
    return Export(export.service, export.key, list(export.log(None)), shared, export.keys, notes)


class ExportFile:
    """An export in a file, of which no more than the places of its lines is in memory."""

    def __init__(self, path: Path) -> None:
        """Find the lines. Raises LogBroken for a file that is no export."""
        self._path = path
        self.service = self.key = ""
        self.keys: dict[str, str] = {}
        self._starts: dict[tuple[str, str | None], array[int]] = {}
        self._firsts: dict[str | None, int] = {}
        """Where each log begins in the file, since the records before are archived."""
        start = 0
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                self._take(text.removeprefix(BOM_UTF8) if number == 1 else text, number, start)
                start += len(text)
        if not self.service:
            raise LogBroken(f"{path} is empty")

    def _take(self, text: bytes, number: int, start: int) -> None:
        line = self._parse(text, number)
        if not self.service:
            if not isinstance(line, Line) or not line.service or not line.key:
                raise LogBroken(f"{self._path} is no export: its first line does not name service and key")
            self.service, self.key = line.service, line.key
        elif isinstance(line, AuditEntry):
            self._firsts.setdefault(line.grant_id, line.seq)
            self._starts.setdefault(("log", line.grant_id), array("q")).append(start)
        elif line.subject and line.key:
            self.keys[line.subject] = line.key
        elif line.kind in _NOTES and line.note:
            self._starts.setdefault((line.kind, line.grant_id), array("q")).append(start)
        else:
            raise LogBroken(f"{self._path} line {number} is not a line of an export")

    def _parse(self, text: bytes, number: int | None = None) -> AuditEntry | Line:
        """Parse a line. Raises LogBroken; without a ``number`` the line was read before, and has changed."""
        try:
            line = text.decode(errors="replace").encode()
            read: AuditEntry | Line = bodies.parse(line, AuditEntry if b'"seq"' in line else Line)
            return read
        except Invalid:
            if number is None:
                raise LogBroken(f"{self._path} was changed while it was read") from None
            raise LogBroken(f"{self._path} line {number} is not a line of an export") from None

    def _lines(self, kind: str, grant: str | None, after: int = -1) -> Iterator[Any]:
        with self._path.open("rb") as file:
            for start in self._starts.get((kind, grant), ())[after + 1 :]:
                if file.tell() != start:
                    file.seek(start)
                yield self._parse(file.readline())

    def grants(self) -> set[str]:
        """Return the grants that have a shared log or a signed note."""
        return {grant for _, grant in self._starts if grant is not None}

    def of_kind(self, kind: str, grant: str | None) -> Iterator[str]:
        """Stream the notes of one kind about one log."""
        return (line.note for line in self._lines(kind, grant))

    def log(self, grant: str | None, after: int = -1) -> Iterator[Entry]:
        """Stream the own log, or the one shared with a grant; entries ``after`` a position."""
        for line in self._lines("log", grant, max(-1, after - self._firsts.get(grant, 0))):
            yield Entry(line.seq, line.body.encode(), bytes.fromhex(line.leaf), bytes.fromhex(line.peaks))


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
        if (settled := min(ours, default=0)) and not _have_equal_roots(curator, modeler, grant, settled):
            names = ", ".join(curator.of_kind("segment", grant))
            what = f"no root that both have, and the curator has archived the exchanges before: compare its {names}"
            differences.append(Difference(f"{grant} size {settled + 1}", what))
        theirs = {position: exchange for position, exchange in theirs.items() if position >= settled}
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
    return recorded.get(grant, {}) | {entry.seq: entry.record for entry in export.shared.get(grant, [])}


def _have_equal_roots(curator: Export, modeler: Export, grant: str, last: int) -> bool:
    """Whether both logs have one root after the entry ``last``: then they have the same entries until there."""
    [ours, theirs] = [next(each.log(grant, last - 1), None) for each in (curator, modeler)]
    return ours is not None and theirs is not None and (ours.seq, ours.peaks) == (theirs.seq, theirs.peaks)


def _is_of(study_id: str, exchanges: dict[int, Json]) -> bool:
    return any(exchange.get("study_id") == study_id for exchange in exchanges.values())


def _is_anothers(curator: Export, modeler: Export, grant: str) -> bool:
    """Whether a grant absent from the modeler's export belongs to another modeler: another key countersigned it.

    A log without a countersignature counts as another's if this modeler has some other shared log.
    """
    pinned = curator.keys.get(grant)
    return not leads(modeler, pinned) if pinned is not None else bool(modeler.shared)


def _keys_differ(
    grant: str, study_id: str, curator: Export, modeler: Export, theirs: dict[int, Json]
) -> Iterator[Difference]:
    """Report a party whose pinned key is not the other party's key: it could not verify the other's signatures."""
    if theirs and not leads(curator, modeler.keys.get(study_id, curator.key)):
        yield Difference(grant, "the key that the modeler holds receipts of is not the curator's")
    if not leads(modeler, curator.keys.get(grant, modeler.key)):
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
        elif _as_json(ours := curator[position]) != _as_json(theirs := modeler[position]):
            names = sorted(ours.keys() | theirs.keys())
            fields = [name for name in names if _member(ours, name) != _member(theirs, name)]
            yield Difference(where, f"differs in {', '.join(fields)}")


def _as_json(value: Any) -> str:
    """A value as JSON with sorted names: to Python 1 and true are equal."""
    return json.dumps(value, sort_keys=True)


def _member(record: Json, name: str) -> str | None:
    return _as_json(record[name]) if name in record else None


def _broken_promises(grant: str, curator: dict[int, Json]) -> Iterator[Difference]:
    """Report replies that differ from the first reply under their key: the curator drew noise or measured again."""
    first: dict[str, tuple[int, Json]] = {}
    for position, exchange in sorted(curator.items()):
        key, status = exchange.get("idempotency_key"), exchange.get("status")
        if exchange.get("method") != "POST" or not isinstance(key, str) or status not in range(200, 300):
            continue
        if key not in first and exchange.get("replayed") is True and min(curator) > 0:
            continue  # the answer that it repeats is archived
        was, answer = first.setdefault(key, (position, exchange))
        if any(answer.get(name) != exchange.get(name) for name in ("request_sha256", "status", "reply_sha256")):
            yield Difference(f"{grant} place {position}", f"another answer than at place {was} under the same key")
        elif (is_repeat := position != was) != (exchange.get("replayed") is True):
            what = "an answer given again as if it were new" if is_repeat else "an answer repeated that never was given"
            yield Difference(f"{grant} place {position}", what)


def _forks(grant: str, who: str, party: Export, holder: Export) -> Iterator[Difference]:
    """Report signatures of ``party``, held by ``holder``, on a history that is no longer in the party's export."""
    verifier = first_key(party)
    held: list[tuple[int, str]] = []
    for kind in ("receipt", "checkpoint", "countersignature"):
        for note in holder.of_kind(kind, grant):
            try:
                checkpoint = verifier.verify(note) if who == "curator" else verifier.verify_countersignature(note)[0]
            except LogBroken:
                continue  # only the other party signed it
            held.append((checkpoint.head.size, checkpoint.head.root))
    entries, sizes = party.shared.get(grant, []), {size for size, _ in held}
    roots = {0: EMPTY.root} | {e.seq + 1: root(e.peaks).hex() for e in entries if e.seq + 1 in sizes}
    for size, signed in sorted(set(held)):
        if entries and 0 < size <= entries[0].seq:
            continue  # archived: the root after it has all of these
        if size not in roots:
            yield Difference(f"{grant} size {size}", f"the {who} signed it and no longer has it: its tail was cut")
        elif roots[size] != signed:
            yield Difference(f"{grant} size {size}", f"a fork: the {who} signed another history than it exported")
