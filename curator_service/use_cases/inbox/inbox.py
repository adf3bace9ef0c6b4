"""The inbox: open measurements, and the answers, declines and corrections of people and systems."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Literal

from blindopt import wire
from blindopt.errors import BudgetExhausted, Busy, Invalid, NotFound, StateConflict
from curator_service.store import inbox as table
from curator_service.use_cases.inbox import spreadsheet
from curator_service.use_cases.queries import measurement_entries
from curator_service.use_cases.queries.answer_versions import AnswerVersions, BegunVersion, check_not_lost
from curator_service.use_cases.queries.measurement_entries import (
    Act,
    Author,
    MeasurementEntry,
    costs_again,
    system_of,
)
from curator_service.use_cases.queries.released_units import held_back
from curator_service.use_cases.studies.release_cache import ReleasedStudies, withheld_rows
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.store import audit_log
from service_kit.store.base import moment
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply
from service_kit.web.wakeups import INBOX, Wakeups

Filter = Literal["open", "answered", "declined", "overdue", "all"]
EARLIER_MAX = 3
"""Earlier values of its record that a measurement shows."""
STATES = ("open", "answered", "declined", "overdue")
_COLUMNS = ("seq", "id", "query_id", "study_id", "play", "plays", "state", "version", "reason", "note")
"""Columns that an item of the inbox shows as they are."""
_DONE: dict[Act, str] = {"answer": "answered", "decline": "declined", "correct": "corrected"}


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
        self._studies = studies
        self._versions = versions
        self._wakeups = wakeups
        self._importing = Lock()

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
            rows = table.page(
                db, states=states, study_id=study_id, query_id=query_id, asking=system, after=after, limit=limit
            )
            held: dict[str, set[int]] = {}
            earlier = _earlier(db, rows)
            return [self._view(db, row, held, earlier[row.seq]) for row in rows], table.count_open(db)

    def view(self, identity: str) -> wire.InboxItem:
        """A measurement. Raises NotFound."""
        with self._context.database.read() as db:
            row = table.view(db, identity)
            return self._view(db, row, {}, _earlier(db, [row])[row.seq])

    def news(self) -> wire.InboxNews:
        """How many measurements are open, and a number that grows with each change."""
        with self._context.database.read() as db:
            return wire.InboxNews(open=table.count_open(db), seq=table.count_changes(db))

    def _view(
        self, db: Connection, row: Any, held: dict[str, set[int]], earlier: list[wire.EarlierMeasurement]
    ) -> wire.InboxItem:
        """``held``: the items of each query whose mean is held back, as far as they were read before."""
        released = self._studies.of(db, row.study_id)
        measurement = released.spec.measurement
        assert not isinstance(measurement, wire.ColumnMeasurement)
        if row.state != "open" and row.query_id not in held:
            held[row.query_id] = held_back(db, row.query_id, released.spec)
        return wire.InboxItem(
            study=released.spec.name,
            question=measurement.question if isinstance(measurement, wire.InboxMeasurement) else None,
            unit=measurement.unit,
            lower=measurement.lower,
            upper=measurement.upper,
            record=released.record(row.row),
            shown=released.shown(row.row),
            asked_at=moment(row.created_at),
            due_at=moment(row.due_at) if row.due_at else None,
            value=row.value if row.kind == "answered" else None,
            changed_at=moment(row.changed_at) if row.changed_at else None,
            changed_by=row.name,
            problem=row.problem if row.next_at is None else None,
            earlier=earlier,
            costs_again=costs_again(row, released.spec),
            mean_held_back=row.place in held.get(row.query_id, ()),
            system=system_of(row),
            **{name: getattr(row, name) for name in _COLUMNS},
        )

    # --- entering ---------------------------------------------------------------------------------

    def answer(self, request: RequestContext, query_id: str, answers: wire.AnswerCreate) -> StoredReply:
        """Store measured values; late ones too."""
        return self._enter(request, query_id, "answer", lambda db: measurement_entries.values_of(answers))

    def correct(self, request: RequestContext, query_id: str, corrections: wire.CorrectCreate) -> StoredReply:
        """Replace values, or declare them void. Raises BudgetExhausted, and changes nothing.

        What is only declared void costs nothing, so that no cap refuses it. StateConflict for a version that is to be
        undone and was replaced, or whose private answer has left.
        """

        def corrects(db: Connection) -> list[MeasurementEntry]:
            if corrections.undo_version is not None:
                inquiry = table.inquiry(db, query_id)
                if costs_again(inquiry, self._studies.of(db, inquiry.study_id).spec):
                    raise StateConflict("nothing was stored: a private answer of the query has left")
            return measurement_entries.corrections_of(corrections)

        return self._enter(request, query_id, "correct", corrects)

    def release_means(self, request: RequestContext, query_id: str, chosen: wire.MeanRelease) -> StoredReply:
        """Release means that are held back, over the measurements that are left, for a charge.

        Raises Invalid, StateConflict where no mean is held back or its record is withheld, and BudgetExhausted: then
        nothing changes.
        """

        def effect(db: Connection) -> Effect:
            if (inquiry := table.inquiry(db, query_id)) is None:
                raise NotFound("there is no such query")
            released, measurements = self._studies.of(db, inquiry.study_id), table.of_query(db, query_id)
            withheld = withheld_rows(db, self._vault, released, {row.row for row in measurements})
            held = held_back(db, query_id, released.spec) - {row.place for row in measurements if row.row in withheld}
            places = {row.id: row.place for row in measurements}
            if foreign := [i for i, identity in enumerate(chosen.measurement_ids) if identity not in places]:
                message = "is no measurement of this query"
                faults: list[dict[str, object]] = [
                    {"field": f"measurement_ids.{i}", "message": message} for i in foreign
                ]
                raise Invalid("nothing was released: errors says what is wrong", faults)
            rest = {places[identity] for identity in chosen.measurement_ids} or held
            if not rest or rest - held:
                raise StateConflict("no mean of these measurements is held back, or its record is withheld")
            begun = self._versions.begin(db, query_id, actor=request.principal.actor, rest=rest)
            details = {"study_id": inquiry.study_id, "query_id": query_id, "version": begun.version}
            return Effect(_state_of(query_id, begun), "query.mean_released", details, 200)

        return self._once(request, effect, [query_id])

    def decline(self, request: RequestContext, query_id: str, decline: wire.DeclineCreate) -> StoredReply:
        """Record that some measurements, or all that are open, will not be made."""

        def declines(db: Connection) -> list[MeasurementEntry]:
            still_open = [row.id for row in table.of_query(db, query_id) if row.state == "open"]
            chosen = decline.measurement_ids or still_open
            if not chosen:
                raise StateConflict("nothing of this query is open")
            return [MeasurementEntry(identity, reason=decline.reason, note=decline.note) for identity in chosen]

        return self._enter(request, query_id, "decline", declines)

    def _enter(
        self,
        request: RequestContext,
        query_id: str,
        act: Act,
        entries_of: Callable[[Connection], list[MeasurementEntry]],
    ) -> StoredReply:
        def effect(db: Connection) -> Effect:
            if table.inquiry(db, query_id) is None:
                raise NotFound("there is no such query")
            author = Author(request.principal.actor, request.principal.name)
            begun, details = self.enter(db, query_id, act, entries_of(db), author)
            return Effect(_state_of(query_id, begun), f"measurement.{_DONE[act]}", details, 200)

        return self._once(request, effect, [query_id])

    def _once(self, request: RequestContext, effect: Callable[[Connection], Effect], queries: list[str]) -> StoredReply:
        """Run ``effect`` once, then publish what it began of ``queries``; a refusal is of the last of them."""
        try:
            reply = self._context.idempotency.once(request, effect)
        except BudgetExhausted as refusal:
            self._record_refusal(request, queries[-1], refusal)
            raise
        self.publish(queries)
        return reply

    def enter(
        self, db: Connection, query_id: str, act: Act, entries: Sequence[MeasurementEntry], author: Author
    ) -> tuple[BegunVersion, dict[str, Any]]:
        """Check and store entries about a query, and begin the version that follows; with details for the audit log.

        Raises Invalid, NotFound, StateConflict, BudgetExhausted; the caller's transaction then changes nothing.
        """
        details = self._store(db, query_id, act, entries, author)
        return self._versions.begin(db, query_id, actor=author.actor), details

    def _store(
        self, db: Connection, query_id: str, act: Act, entries: Sequence[MeasurementEntry], author: Author
    ) -> dict[str, Any]:
        inquiry = table.inquiry(db, query_id)
        check_not_lost(inquiry)
        rows = {row.id: row for row in table.of_query(db, query_id)}
        released = self._studies.of(db, inquiry.study_id)
        spec = released.spec
        latest = measurement_entries.latest_values(db, query_id, rows) if act == "correct" else {}
        measurement_entries.check(act, entries, rows, spec, latest)
        with_rows = [(entry, rows[entry.measurement_id]) for entry in entries]
        if withheld_rows(db, self._vault, released, {row.row for entry, row in with_rows if entry.value is not None}):
            raise StateConflict("nothing was stored: a record among these is withheld, so it takes no more values")
        return measurement_entries.append(db, inquiry, with_rows, author, self._context.clock())

    def fault_of(self, study_id: str, value: float) -> str | None:
        """Why a value cannot be a measurement of a study, or None."""
        with self._context.database.read() as db:
            return measurement_entries.fault_of(value, self._studies.of(db, study_id).spec)

    def expire(self, db: Connection, query_id: str) -> None:
        """Decline the open measurements of a query past its deadline."""
        inquiry, now = table.inquiry(db, query_id), self._context.clock()
        still_open = [(MeasurementEntry(row.id), row) for row in table.of_query(db, query_id) if row.state == "open"]
        if not still_open or inquiry.lost:
            return
        details = measurement_entries.append(db, inquiry, still_open, measurement_entries.CURATOR, now, kind="overdue")
        audit_log.append(db, "measurement.overdue", actor=measurement_entries.CURATOR.actor, now=now, details=details)
        self._versions.begin(db, query_id, actor=measurement_entries.CURATOR.actor)

    def decline_withheld(self, db: Connection, query_id: str) -> None:
        """Decline the measurements of a query whose record is withheld, before anything of the query is released.

        One that was answered while others are open is declined too: its value does not leave.
        """
        inquiry, now = table.inquiry(db, query_id), self._context.clock()
        still_open = [row for row in table.of_query(db, query_id) if row.state in ("open", "answered")]
        released = self._studies.of(db, inquiry.study_id)
        rows = withheld_rows(db, self._vault, released, {row.row for row in still_open})
        entries = [(MeasurementEntry(row.id), row) for row in still_open if row.row in rows]
        if not entries or inquiry.lost or inquiry.begun:
            return
        details = measurement_entries.append(db, inquiry, entries, measurement_entries.CURATOR, now)
        audit_log.append(db, "measurement.declined", actor=measurement_entries.CURATOR.actor, now=now, details=details)
        self._versions.begin(db, query_id, actor=measurement_entries.CURATOR.actor)

    # --- spreadsheets -----------------------------------------------------------------------------

    def export(self, study_id: str | None) -> bytes:
        """The oldest open measurements, as many as one file may bring back."""
        items, _ = self.page("open", study_id, None, 0, wire.MEASUREMENTS_MAX)
        queries = set(list(dict.fromkeys(item.query_id for item in items))[: wire.IMPORT_QUERIES_MAX])
        return spreadsheet.export([item for item in items if item.query_id in queries])

    def import_(
        self, request: RequestContext, body: bytes, *, dry_run: bool, commas: spreadsheet.Commas = "ask"
    ) -> StoredReply | wire.InboxImport:
        """Store a filled-in file: all of it, or nothing if a line is wrong (Invalid says where).

        Raises Busy while another file is read. A dry run stores nothing and checks no budget.
        """
        if not dry_run:
            self._context.idempotency.key_of(request)
        if not self._importing.acquire(blocking=False):
            raise Busy("another file is being read, and one is read at a time: try again", seconds=5)
        try:
            sheet = spreadsheet.read(body, commas)
            return self._import_preview(sheet) if dry_run else self._import_sheet(request, sheet)
        finally:
            self._importing.release()

    def _import_preview(self, sheet: spreadsheet.Sheet) -> wire.InboxImport:
        """What the import of a file would do."""
        answered = 0
        with self._context.database.read() as db:
            for query_id, acts in self._by_query(db, sheet).items():
                check_not_lost(table.inquiry(db, query_id))
                entered = {entry.measurement_id for entries in acts.values() for entry in entries}
                answered += {row.id for row in table.of_query(db, query_id) if row.state == "open"} <= entered
        return _import_view(sheet, answered, dry_run=True)

    def _import_sheet(self, request: RequestContext, sheet: spreadsheet.Sheet) -> StoredReply:
        author, queries = Author(request.principal.actor, request.principal.name), list[str]()

        def effect(db: Connection) -> Effect:
            answered = 0
            for query_id, acts in self._by_query(db, sheet).items():
                queries.append(query_id)
                for act, entries in acts.items():
                    details = self._store(db, query_id, act, entries, author)
                    kind = f"measurement.{_DONE[act]}"
                    audit_log.append(db, kind, actor=author.actor, now=self._context.clock(), details=details)
                answered += self._versions.begin(db, query_id, actor=author.actor).open == 0
            view = _import_view(sheet, answered, dry_run=False)
            return Effect(view, "inbox.imported", {"answered": view.answered, "declined": view.declined})

        return self._once(request, effect, queries)

    def _by_query(self, db: Connection, sheet: spreadsheet.Sheet) -> dict[str, dict[Act, list[MeasurementEntry]]]:
        """The entries of a file by query and act. Raises Invalid, which names each line that is wrong."""
        rows = table.measurements_by_id(db, [entry.measurement_id for _, entry in sheet.entries])
        by_query: dict[str, dict[Act, list[MeasurementEntry]]] = {}
        for line, entry in sheet.entries:
            act: Act = "answer" if entry.value is not None else "decline"
            if (row := rows.get(entry.measurement_id)) is None:
                sheet.blame(line, "measurement_id", "there is no such measurement")
                continue
            spec = self._studies.of(db, row.study_id).spec
            column = "value" if entry.value is not None else "decline_reason"
            if row.state not in measurement_entries.FROM[act]:
                sheet.blame(line, column, f"the measurement is {row.state}: {measurement_entries.INSTEAD[row.state]}")
            elif entry.value is not None and (message := measurement_entries.fault_of(entry.value, spec)):
                sheet.blame(line, column, message)
            else:
                by_query.setdefault(row.query_id, {}).setdefault(act, []).append(entry)
        if sheet.faults:
            raise Invalid("nothing was stored: errors says which lines to mend", sheet.faults)
        if len(by_query) > wire.IMPORT_QUERIES_MAX:  # all of them are one transaction, which others wait for
            raise Invalid(f"a file may hold measurements of {wire.IMPORT_QUERIES_MAX} queries at most: split it")
        return by_query

    def _record_refusal(self, request: RequestContext, query_id: str, refusal: BudgetExhausted) -> None:
        actor, now = request.principal.actor, self._context.clock()

        def note(db: Connection) -> None:
            study_id = table.inquiry(db, query_id).study_id
            details = {"study_id": study_id, "query_id": query_id, **refusal.budget}
            audit_log.append(db, "correction.refused", actor=actor, now=now, details=details)

        self._context.database.write(note)

    def publish(self, query_ids: Sequence[str]) -> None:
        """After a commit: publish the versions that it began, and notify those who watch the inbox."""
        try:
            self._versions.settle(query_ids)
        finally:
            self._wakeups.notify(INBOX)


def _earlier(db: Connection, rows: Sequence[Any]) -> dict[int, list[wire.EarlierMeasurement]]:
    """The latest other values of the record of each measurement, by its sequence number."""
    records: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        records[row.study_id].add(row.row)
    answers = defaultdict(list)
    for study_id, chosen in records.items():
        for answer in table.answers_about(db, study_id, chosen):
            answers[study_id, answer.row].append(answer)
    return {
        row.seq: [
            wire.EarlierMeasurement(value=answer.value, at=moment(answer.changed_at))
            for answer in answers[row.study_id, row.row]
            if answer.seq != row.seq
        ][:EARLIER_MAX]
        for row in rows
    }


def _state_of(query_id: str, begun: BegunVersion) -> wire.QueryMeasurements:
    return wire.QueryMeasurements(
        query_id=query_id,
        state="answered" if begun.version else "pending",
        version=begun.version,
        open=begun.open,
        charged=begun.charged,
    )


def _import_view(sheet: spreadsheet.Sheet, queries: int, *, dry_run: bool) -> wire.InboxImport:
    values = sum(entry.value is not None for _, entry in sheet.entries)
    return wire.InboxImport(
        dry_run=dry_run, answered=values, declined=len(sheet.entries) - values, blank=sheet.blank, queries=queries
    )
