"""The inbox: open measurements, the answers, declines and corrections of people and systems, and its deadlines."""

import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from threading import Lock
from typing import Any, Literal

from starlette.concurrency import run_in_threadpool

from blindopt import wire
from blindopt.errors import (
    AuditUnavailable,
    BlindoptError,
    BudgetExhausted,
    Busy,
    Fault,
    Invalid,
    StateConflict,
    StorageUnavailable,
)
from curator_service.datasets.labels import Labels
from curator_service.datasets.records import in_words
from curator_service.privacy.guarantees import consent
from curator_service.privacy.prices import text, units
from curator_service.queries import measurement_entries
from curator_service.queries import table as inbox_store
from curator_service.queries.answer_versions import (
    AnswerVersions,
    ReleasedUnits,
    check_not_lost,
    declined_rows,
    request_of,
)
from curator_service.queries.inbox import spreadsheet
from curator_service.queries.measurement_entries import CURATOR, Act, Author, NewEntry, costs_again, system_of
from curator_service.queries.table import InboxRow, MeasuredQuery, Measurement
from curator_service.studies.release_cache import Released, ReleasedStudies
from curator_service.vault import Vault
from service_kit.background import Background
from service_kit.context.context import ServiceContext
from service_kit.context.exclusive import exclusive
from service_kit.context.request import Effect, RequestContext
from service_kit.store import audit_log
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection, StoreFault
from service_kit.store.stored_replies import StoredReply
from service_kit.web.server_sent_events import BEAT_SECONDS, Batches, EventStreams, event
from service_kit.web.wakeups import INBOX, Wakeups

Corrections = Literal["ask", "apply"]
"""What an import does with lines that have another value than the stored one; ask: it refuses them."""
Filter = Literal["open", "answered", "declined", "overdue", "all"]
EARLIER_MAX = 3
"""Earlier values of its record that a measurement shows."""
STATES = ("open", "answered", "declined", "overdue")
_COLUMNS = ("seq", "id", "query_id", "study_id", "play", "plays", "state", "version")
"""Columns of a measurement that its item shows as they are."""
_Earlier = tuple[int, wire.EarlierMeasurement]
"""A value of a record, after the number of its measurement."""
_DONE: dict[Act, str] = {
    "answer": "answered",
    "decline": "declined",
    "correct": "corrected",
    "explain": "declined",
}


class Inbox:
    """The measurements that queries request. Safe to call from several threads."""

    def __init__(
        self,
        context: ServiceContext,
        vault: Vault,
        studies: ReleasedStudies,
        versions: AnswerVersions,
        wakeups: Wakeups,
    ) -> None:
        self._context = context
        self._vault = vault
        self._labels = Labels(context.seal)
        self._studies = studies
        self._versions = versions
        self._wakeups = wakeups
        self._importing = Lock()
        self._streams = EventStreams()

    # --- looking ----------------------------------------------------------------------------------

    def page(
        self,
        state: Filter,
        study_id: str | None,
        query_id: str | None,
        after: int,
        limit: int,
        system: wire.MeasurerState | None = None,
    ) -> tuple[list[wire.InboxItem], int]:
        """Measurements, oldest first, and how many are open in all studies."""
        states = STATES if state == "all" else (state,)
        with self._context.database.read() as db:
            rows = inbox_store.page(
                db, states=states, study_id=study_id, query_id=query_id, asking=system, after=after, limit=limit
            )
            return self._views(db, rows), inbox_store.count_open(db)

    def view(self, measurement_id: str) -> wire.InboxItem:
        """A measurement. Raises NotFound."""
        with self._context.database.read() as db:
            return self._views(db, [inbox_store.view(db, measurement_id)])[0]

    def news(self) -> wire.InboxNews:
        """How many measurements are open, and a number that grows with each change."""
        with self._context.database.read() as db:
            return wire.InboxNews(open=inbox_store.count_open(db), seq=inbox_store.count_changes(db))

    async def follow(self, principal_id: str, seconds: float) -> AsyncIterator[str]:
        """Stream news to a principal for ``seconds``: neither a thread nor a connection waits. Raises RateLimited."""
        return await self._streams.open(principal_id, self._batches(time.monotonic() + seconds))

    async def _batches(self, end: float) -> Batches:
        last: wire.InboxNews | None = None
        with self._wakeups.listening(INBOX) as changed:
            while True:
                changed.clear()
                news = await run_in_threadpool(self.news)
                yield [] if news == last else [event("inbox", news.model_dump_json())]
                last = news
                remaining = end - time.monotonic()
                if remaining <= 0 or self._wakeups.closing:
                    return
                await self._wakeups.wait(changed, min(remaining, BEAT_SECONDS))

    def _views(self, db: Connection, rows: Sequence[InboxRow]) -> list[wire.InboxItem]:
        held: dict[str, set[int]] = {}
        chances: dict[int, float | None] = {}
        earlier, labels = _earlier(db, [row.measurement for row in rows]), self._labels_of(db, rows)
        for measurement, _, query in rows:
            spec = self._studies.of(db, query.study_id).spec
            if measurement.state != "open":
                if query.query_id not in held:
                    held[query.query_id] = ReleasedUnits.of(db, query.query_id, spec).held_back()
            elif isinstance(spec.goal, wire.FindMany):
                chances[measurement.seq] = request_of(db, query.query_id)[measurement.position].probability
        views = [
            self._view(db, row, held.get(row.query.query_id, set()), earlier, labels.get(row.measurement.seq, []))
            for row in rows
        ]
        return [view.model_copy(update={"probability": chances.get(view.seq)}) for view in views]

    def _labels_of(self, db: Connection, rows: Sequence[InboxRow]) -> dict[int, list[wire.RecordText]]:
        """The labels of measurements that their study shows, by their sequence number."""
        of_studies: dict[str, dict[int, int]] = defaultdict(dict)
        for row in rows:
            stored = int(self._studies.of(db, row.query.study_id).order[row.measurement.row])
            of_studies[row.query.study_id][row.measurement.seq] = stored
        labels: dict[int, list[wire.RecordText]] = {}
        for study_id, records in of_studies.items():
            released = self._studies.of(db, study_id)
            measured = released.spec.measurement
            if released.reading is None or isinstance(measured, wire.ColumnMeasurement):
                continue
            dataset_id, columns = released.spec.dataset_id, released.reading.labels
            texts = self._labels.shown(db, dataset_id, columns, records.values(), measured.shown)
            labels |= {seq: texts[stored] for seq, stored in records.items() if stored in texts}
        return labels

    def _view(
        self,
        db: Connection,
        row: InboxRow,
        held: set[int],
        earlier: dict[tuple[str, int], list[_Earlier]],
        labels: list[wire.RecordText],
    ) -> wire.InboxItem:
        """``held``: the items of its query whose mean is held back."""
        shown, entry, query = row
        released = self._studies.of(db, query.study_id)
        spec = released.spec.measurement
        assert not isinstance(spec, wire.ColumnMeasurement)
        values = released.values(shown.row, spec.shown)
        others = [(seq, value) for seq, value in earlier[query.study_id, shown.row] if seq != shown.seq]
        return wire.InboxItem(
            study=released.spec.name,
            question=spec.question if isinstance(spec, wire.InboxMeasurement) else None,
            unit=spec.unit,
            lower=spec.lower,
            upper=spec.upper,
            record=released.record(shown.row),
            file_row=released.file_row(int(released.order[shown.row])),
            labels=labels,
            in_words=in_words(released.reading, values),
            shown=[wire.Shown(column=name, value=value) for name, value in values.items()],
            consent=consent(released.spec) if _needs_consent(released.spec) else None,
            asked_at=moment(query.created_at),
            due_at=moment(query.due_at) if query.due_at else None,
            value=entry.value if entry is not None and entry.kind == "answered" else None,
            reason=entry.reason if entry is not None else None,
            note=entry.note if entry is not None else None,
            changed_at=moment(entry.created_at) if entry is not None else None,
            changed_by=entry.name if entry is not None else None,
            problem=shown.problem if shown.next_at is None else None,
            earlier=[value for _, value in others][:EARLIER_MAX],
            costs_again=costs_again(query, released.spec),
            mean_held_back=shown.position in held,
            system=system_of(shown),
            **{name: getattr(shown, name) for name in _COLUMNS},
        )

    def measured(self, study_id: str, row: int) -> list[wire.EarlierMeasurement]:
        """The outcomes of a candidate's record that were measured, newest first; none of a column."""
        with self._context.database.read() as db:
            return [value for _, (_, value) in _values(db, study_id, [row])][:EARLIER_MAX]

    # --- entering ---------------------------------------------------------------------------------

    def answer(self, request: RequestContext, query_id: str, answers: wire.AnswerCreate) -> StoredReply:
        """Store measured values; late ones too."""
        values = measurement_entries.values_of(answers)
        return self._enter(request, query_id, "answer", lambda db: values, agreed=answers.consent)

    def correct(self, request: RequestContext, query_id: str, corrections: wire.CorrectCreate) -> StoredReply:
        """Replace values, or declare them void. Raises BudgetExhausted, and changes nothing.

        What is only declared void costs nothing, so that no cap refuses it. StateConflict for a version that is to be
        undone and was replaced, or whose private answer has left.
        """

        def corrects(db: Connection) -> list[NewEntry]:
            query = inbox_store.query(db, query_id)
            if corrections.undo_version is not None and costs_again(query, self._studies.of(db, query.study_id).spec):
                raise StateConflict("nothing was stored: a private answer of the query has left")
            return measurement_entries.corrections_of(corrections)

        return self._enter(request, query_id, "correct", corrects)

    def release_means(self, request: RequestContext, query_id: str, means: wire.MeanRelease) -> StoredReply:
        """Release means that are held back, over the measurements that are left, for a charge.

        Raises Invalid, StateConflict where no mean is held back or its record is withheld, and BudgetExhausted: then
        nothing changes.
        """

        def effect(db: Connection) -> Effect:
            query = inbox_store.query(db, query_id)
            released, measurements = self._studies.of(db, query.study_id), inbox_store.of_query(db, query_id)
            rows = {measurement.row for measurement in measurements}
            declined = declined_rows(db, self._vault, released, query, rows)
            held = ReleasedUnits.of(db, query_id, released.spec).held_back()
            held -= {measurement.position for measurement in measurements if measurement.row in declined}
            places = {measurement.id: measurement.position for measurement in measurements}
            faults: list[dict[str, object]] = [
                {"field": f"measurement_ids.{index}", "message": "is no measurement of this query"}
                for index, measurement_id in enumerate(means.measurement_ids)
                if measurement_id not in places
            ]
            if faults:
                raise Invalid.of(faults)
            requested = {places[measurement_id] for measurement_id in means.measurement_ids} or held
            if not requested or requested - held:
                raise StateConflict("no mean of these measurements is held back, or its record is withheld")
            state = self._versions.begin(db, query_id, actor=request.principal.actor, means=requested)
            details = {"study_id": query.study_id, "query_id": query_id, "version": state.version}
            return Effect(state, "query.mean_released", details, 200)

        return self._once(request, effect, [query_id])

    def decline(self, request: RequestContext, query_id: str, decline: wire.DeclineCreate) -> StoredReply:
        """Record that some measurements, or all that are open, will not be made."""

        def declines(db: Connection) -> list[NewEntry]:
            still_open = [
                measurement.id for measurement in inbox_store.of_query(db, query_id) if measurement.state == "open"
            ]
            if not (declined := decline.measurement_ids or still_open):
                raise StateConflict("nothing of this query is open")
            return [NewEntry(name, reason=decline.reason, note=decline.note) for name in declined]

        return self._enter(request, query_id, "decline", declines)

    def _enter(
        self,
        request: RequestContext,
        query_id: str,
        act: Act,
        entries_of: Callable[[Connection], list[NewEntry]],
        *,
        agreed: bool = False,
    ) -> StoredReply:
        def effect(db: Connection) -> Effect:
            inbox_store.query(db, query_id)
            author = Author(request.principal.actor, request.principal.name)
            state, details = self.enter(db, query_id, act, entries_of(db), author, agreed=agreed)
            return Effect(state, f"measurement.{_DONE[act]}", details, 200)

        return self._once(request, effect, [query_id])

    def _once(self, request: RequestContext, effect: Callable[[Connection], Effect], queries: list[str]) -> StoredReply:
        """Run ``effect`` once, then publish what it began of ``queries``; a refusal is of the last of them."""
        try:
            reply = self._context.idempotency.once(request, effect)
        except BudgetExhausted as refusal:
            with self._context.database.read() as db:
                study_id = inbox_store.query(db, queries[-1]).study_id
            details = {"study_id": study_id, "query_id": queries[-1], **refusal.budget}
            note = partial(audit_log.append, kind="correction.refused", actor=request.principal.actor, details=details)
            self._context.database.write(partial(note, now=self._context.clock()))
            raise
        self.publish(queries)
        return reply

    def enter(
        self,
        db: Connection,
        query_id: str,
        act: Act,
        entries: Sequence[NewEntry],
        author: Author,
        *,
        agreed: bool = False,
    ) -> tuple[wire.QueryMeasurements, dict[str, Any]]:
        """Check and store entries about a query, and begin the version that follows; with details for the audit log.

        ``agreed``: whether each person of a record with a value was read the study's consent and agreed.

        Raises Invalid, NotFound, StateConflict, BudgetExhausted; the caller's transaction then changes nothing.
        """
        details = self._store(db, query_id, act, entries, author, agreed=agreed)
        return self._versions.begin(db, query_id, actor=author.actor), details

    def _store(
        self,
        db: Connection,
        query_id: str,
        act: Act,
        entries: Sequence[NewEntry],
        author: Author,
        *,
        agreed: bool = False,
    ) -> dict[str, Any]:
        query = inbox_store.query(db, query_id)
        check_not_lost(query)
        measurements = {measurement.id: measurement for measurement in inbox_store.of_query(db, query_id)}
        released = self._studies.of(db, query.study_id)
        latest = measurement_entries.latest_values(db, query_id, measurements) if act == "correct" else {}
        measurement_entries.check(act, entries, measurements, released.spec, latest)
        pairs = [(entry, measurements[entry.measurement_id]) for entry in entries]
        rows = {measurement.row for entry, measurement in pairs if entry.value is not None}
        if declined_rows(db, self._vault, released, query, rows):
            raise StateConflict(
                "nothing was stored: a record among these is withheld or was when it was asked, so it takes no value"
            )
        is_consent_due = act == "answer" and rows and _needs_consent(released.spec)
        if is_consent_due and not agreed:
            raise Invalid.at("consent", "must be true: read the consent to each person, and decline who disagrees")
        details = measurement_entries.append(db, query, pairs, author, self._context.clock())
        return details | ({"consent": True} if is_consent_due else {})

    def fault_of(self, study_id: str, value: float) -> str | None:
        """Why a value cannot be a measurement of a study, or None."""
        with self._context.database.read() as db:
            return measurement_entries.fault_of(value, self._studies.of(db, study_id).spec)

    def expire(self, db: Connection, query_id: str) -> None:
        """Decline the open measurements of a query past its deadline."""
        still_open = [measurement for measurement in inbox_store.of_query(db, query_id) if measurement.state == "open"]
        self._decline(db, inbox_store.query(db, query_id), still_open, "overdue")

    def decline_withheld(self, db: Connection, query_id: str) -> None:
        """Decline the measurements of a query whose record is withheld, before anything of the query is released.

        One that was answered while others are open is declined too: its value does not leave.
        """
        query = inbox_store.query(db, query_id)
        measurements = [
            measurement
            for measurement in inbox_store.of_query(db, query_id)
            if measurement.state in ("open", "answered")
        ]
        released = self._studies.of(db, query.study_id)
        rows = declined_rows(db, self._vault, released, query, {measurement.row for measurement in measurements})
        if not query.begun:
            self._decline(
                db, query, [measurement for measurement in measurements if measurement.row in rows], "declined"
            )

    def _decline(
        self,
        db: Connection,
        query: MeasuredQuery,
        measurements: list[Measurement],
        kind: Literal["overdue", "declined"],
    ) -> None:
        """Decline measurements by the curator itself, and begin the version that follows."""
        if not measurements or query.lost:
            return
        now, entries = self._context.clock(), [(NewEntry(measurement.id), measurement) for measurement in measurements]
        details = measurement_entries.append(db, query, entries, CURATOR, now, kind)
        audit_log.append(db, f"measurement.{kind}", actor=CURATOR.actor, now=now, details=details)
        self._versions.begin(db, query.query_id, actor=CURATOR.actor)

    # --- spreadsheets -----------------------------------------------------------------------------

    def export(self, study_id: str | None) -> bytes:
        """The oldest open measurements, as many as one file may bring back."""
        items, _ = self.page("open", study_id, None, 0, wire.MEASUREMENTS_MAX)
        queries = set(list(dict.fromkeys(item.query_id for item in items))[: wire.IMPORT_QUERIES_MAX])
        return spreadsheet.export([item for item in items if item.query_id in queries])

    def import_(
        self,
        request: RequestContext,
        body: bytes,
        *,
        dry_run: bool,
        commas: spreadsheet.Commas = "ask",
        corrections: Corrections = "ask",
        agreed: bool = False,
    ) -> StoredReply | wire.InboxImport:
        """Store a filled-in file: all of it, or nothing if a line is wrong (Invalid says where).

        Lines with what is stored, or with a value of a withheld record, are skipped. Those with another value are
        refused, unless ``corrections`` applies them. ``agreed``: as of ``enter``. A dry run stores nothing and checks
        no budget. Raises Busy while another file is read.
        """
        if not dry_run:
            self._context.idempotency.key_of(request)
        refusal = Busy("another file is being read, and one is read at a time: try again", seconds=5)
        with exclusive(self._importing, 0, refusal):
            sheet = spreadsheet.read(body, commas)
            return self._import_preview(sheet) if dry_run else self._import_sheet(request, sheet, corrections, agreed)

    def _import_preview(self, sheet: spreadsheet.Sheet) -> wire.InboxImport:
        """What the import of a file would do, with its corrections applied."""
        answered = charged = 0
        with self._context.database.read() as db:
            sorted_lines = self._sorted(db, sheet)
            for query_id, acts in sorted_lines.by_query.items():
                check_not_lost(inbox_store.query(db, query_id))
                entered = {entry.measurement_id: entry.value for entries in acts.values() for entry in entries}
                measurements = inbox_store.of_query(db, query_id)
                if all(shown.id in entered for shown in measurements if shown.state == "open"):
                    values = {(m.position, m.play): entered[m.id] for m in measurements if m.id in entered}
                    charged += self._versions.price(db, query_id, values)
                    answered += 1
        return sorted_lines.view(answered, charged=text(charged) if charged else None, dry_run=True)

    def _import_sheet(
        self, request: RequestContext, sheet: spreadsheet.Sheet, corrections: Corrections, agreed: bool
    ) -> StoredReply:
        author, queries = Author(request.principal.actor, request.principal.name), list[str]()

        def effect(db: Connection) -> Effect:
            answered = charged = 0
            sorted_lines = self._sorted(db, sheet)
            if corrections == "ask" and sorted_lines.corrections:
                raise Invalid.of(
                    [correction_fault(line) for line in sorted_lines.corrections[: spreadsheet.FAULTS_MAX]]
                )
            for query_id, acts in sorted_lines.by_query.items():
                queries.append(query_id)
                for act, entries in acts.items():
                    details = self._store(db, query_id, act, entries, author, agreed=agreed)
                    kind = f"measurement.{_DONE[act]}"
                    audit_log.append(db, kind, actor=author.actor, now=self._context.clock(), details=details)
                state = self._versions.begin(db, query_id, actor=author.actor)
                answered, charged = answered + (state.open == 0), charged + units(state.charged or "0")
            view = sorted_lines.view(answered, charged=text(charged) if charged else None, dry_run=False)
            counts = {"answered": view.answered, "declined": view.declined, "corrected": view.corrected}
            return Effect(view, "inbox.imported", counts | {"decimal": view.decimal})

        return self._once(request, effect, queries)

    def _sorted(self, db: Connection, sheet: spreadsheet.Sheet) -> "_SortedLines":
        """The lines of a file by what they change. Raises Invalid, which names each line that is wrong."""
        rows = inbox_store.views(
            db, inbox_store.measurements.c.id.in_([entry.measurement_id for _, entry in sheet.entries])
        )
        in_sheet = defaultdict[MeasuredQuery, set[int]](set)
        for view in rows:
            in_sheet[view.query].add(view.measurement.row)
        declined = {
            query.query_id: declined_rows(db, self._vault, self._studies.of(db, query.study_id), query, of_query)
            for query, of_query in in_sheet.items()
            if not query.lost
        }
        stored, result = {row.measurement.id: row for row in rows}, _SortedLines(sheet, declined)
        for line, entry in sheet.entries:
            if (row := stored.get(entry.measurement_id)) is None:
                sheet.blame(line, "measurement_id", "there is no such measurement")
                continue
            released = self._studies.of(db, row.query.study_id)
            if entry.value is not None and (message := measurement_entries.fault_of(entry.value, released.spec)):
                sheet.blame(line, "value", message)
            else:
                result.add(line, entry, row, released)
        if sheet.faults:
            raise Invalid.of(sheet.faults)
        if len(result.by_query) > wire.IMPORT_QUERIES_MAX:  # all of them are one transaction, which others wait for
            raise Invalid(f"a file may hold measurements of {wire.IMPORT_QUERIES_MAX} queries at most: split it")
        return result

    def publish(self, query_ids: Sequence[str]) -> None:
        """After a commit: publish the versions that it began, and notify those who watch the inbox."""
        try:
            self._versions.settle(query_ids)
        finally:
            self._wakeups.notify(INBOX)


def _values(db: Connection, study_id: str, rows: Collection[int]) -> Iterator[tuple[Measurement, _Earlier]]:
    """The values about the records of these rows, newest first."""
    for measurement, entry in inbox_store.answers_about(db, study_id, rows):
        assert entry.value is not None
        view = wire.EarlierMeasurement(value=entry.value, at=moment(entry.created_at))
        yield measurement, (measurement.seq, view)


def _earlier(db: Connection, measurements: Sequence[Measurement]) -> dict[tuple[str, int], list[_Earlier]]:
    """The values about the records of these measurements, by study and row, newest first."""
    rows: dict[str, set[int]] = defaultdict(set)
    for measurement in measurements:
        rows[measurement.study_id].add(measurement.row)
    earlier: dict[tuple[str, int], list[_Earlier]] = defaultdict(list)
    for study_id in rows:
        for measurement, value in _values(db, study_id, rows[study_id]):
            earlier[study_id, measurement.row].append(value)
    return earlier


@dataclass(slots=True)
class _SortedLines:
    """The lines of a file: entries to make, by query and act, and how many lines change nothing.

    ``unchanged``: lines with what is stored. ``withheld``: lines with a value of a withheld record, one of the
    ``declined_rows`` of its query.
    """

    sheet: spreadsheet.Sheet
    declined_rows: dict[str, set[int]]
    unchanged: int = 0
    withheld: int = 0
    by_query: dict[str, dict[Act, list[NewEntry]]] = field(default_factory=dict)
    corrections: list[wire.ImportCorrection] = field(default_factory=list)

    def add(self, line: int, entry: NewEntry, row: InboxRow, released: Released) -> None:
        """Add a line. What is stored already is unchanged, whatever its note is."""
        act: Act = "answer" if entry.value is not None else "decline"
        state, stored = row.measurement.state, row.entry
        if stored is not None and (stored.value, stored.reason) == (entry.value, entry.reason):
            self.unchanged += 1
            return
        if act == "answer" and row.measurement.row in self.declined_rows.get(row.query.query_id, ()):
            self.withheld += 1
            return
        if stored is not None and (state == "answered" or (state, act) == ("declined", "decline")):
            act = "correct" if state == "answered" else "explain"
            measurement = released.spec.measurement
            assert not isinstance(measurement, wire.ColumnMeasurement)
            correction = wire.ImportCorrection(
                line=line,
                measurement_id=entry.measurement_id,
                study=released.spec.name,
                record=released.record(row.measurement.row),
                unit=measurement.unit,
                stored=stored.value,
                stored_reason=stored.reason,
                value=entry.value,
                reason=entry.reason,
                entered_at=moment(stored.created_at),
                entered_by=stored.name,
            )
            self.corrections.append(correction)
        self.by_query.setdefault(row.query.query_id, {}).setdefault(act, []).append(entry)

    def view(self, queries: int, *, charged: str | None, dry_run: bool) -> wire.InboxImport:
        """The result of the import. A reply that is stored names no value, so that an erasure need not find it."""
        counts = {act: sum(len(acts.get(act, [])) for acts in self.by_query.values()) for act in ("answer", "decline")}
        return wire.InboxImport(
            dry_run=dry_run,
            answered=counts["answer"],
            declined=counts["decline"],
            unchanged=self.unchanged,
            withheld=self.withheld,
            corrected=len(self.corrections),
            corrections=self.corrections if dry_run else [],
            charged=charged,
            blank=self.sheet.blank,
            queries=queries,
            decimal=self.sheet.decimal,
            first=self.sheet.first if dry_run else [],
        )


def correction_fault(line: wire.ImportCorrection) -> Fault:
    """What is wrong with a line that differs from what is stored."""
    column = "value" if line.value is not None else "decline_reason"
    message = (
        "is not what is stored: import the file with corrections=apply to correct it; a dry run shows both values, and "
        "what it would charge"
    )
    return {"line": line.line, "column": column, "message": message}


log = logging.getLogger("blindopt.overdue")
LONGEST_SECONDS = 60.0
AGAIN_SECONDS = 1.0


class Deadlines(Background):
    """A thread that checks the deadlines at the start, at each deadline, and when the inbox changes."""

    def __init__(self, context: ServiceContext, inbox: Inbox, versions: AnswerVersions, wakeups: Wakeups) -> None:
        self._context = context
        self._inbox = inbox
        self._versions = versions
        super().__init__("overdue", self._look, every_s=AGAIN_SECONDS)
        wakeups.on(INBOX, self.wake)

    def _look(self) -> float:
        try:
            return self.look()
        except (BlindoptError, StoreFault):  # the database cannot be written: its requests say so
            return AGAIN_SECONDS

    def look(self) -> float:
        """Publish versions that were begun, decline what is past its deadline; the seconds until the next look."""
        with self._context.database.read() as db:
            owed, late = inbox_store.owed(db), inbox_store.overdue(db, stamp(self._context.clock()))
        successes = [self._settle(owed), *(self._try(query_id, self._expire) for query_id in late)]
        with self._context.database.read() as db:
            due = inbox_store.next_due(db)
        if not all(successes):
            return AGAIN_SECONDS
        if due is None:
            return LONGEST_SECONDS
        remaining: timedelta = moment(due) - self._context.clock()
        return min(max(remaining.total_seconds(), 0.0), LONGEST_SECONDS)

    def _settle(self, owed: list[str]) -> bool:
        """Publish begun versions: all together, or query by query if one has a fault."""
        try:
            self._versions.settle(owed)
        except (AuditUnavailable, StorageUnavailable):
            raise
        except Exception:
            successes = [self._try(query_id, lambda name: self._versions.settle([name])) for query_id in owed]
            return all(successes)
        return True

    def _expire(self, query_id: str) -> None:
        self._context.database.write(partial(self._inbox.expire, query_id=query_id))
        self._inbox.publish([query_id])

    def _try(self, query_id: str, act: Callable[[str], None]) -> bool:
        """Whether ``act`` succeeded. A fault of one query is logged; a fault that concerns all of them is raised."""
        try:
            act(query_id)
        except (AuditUnavailable, StorageUnavailable):
            raise
        except Exception as error:  # its text may quote a value
            log.error("fault", extra={"fields": {"query": query_id, "kind": type(error).__name__}})
            return False
        return True


def _needs_consent(spec: wire.StudyCreate) -> bool:
    """Whether each person is read the consent before she is measured; else the owner confirms it at the release."""
    return spec.refine is not None and isinstance(spec.measurement, wire.InboxMeasurement)
