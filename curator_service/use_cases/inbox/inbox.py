"""What people and systems tell of the measurements that were asked for: answers, declines, corrections."""

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Literal

from blindopt import wire
from blindopt.errors import BudgetExhausted, Busy, Invalid, NotFound, StateConflict
from curator_service.store import inbox as table
from curator_service.use_cases.inbox import spreadsheet
from curator_service.use_cases.queries import measurement_entries
from curator_service.use_cases.queries.answer_versions import Begun, Versions, check_told
from curator_service.use_cases.queries.measurement_entries import Act, Teller, Told
from curator_service.use_cases.queries.wakeups import INBOX, Bells
from curator_service.use_cases.studies.release_cache import ReleasedStudies
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.store import audit_log
from service_kit.store.base import moment
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply

Filter = Literal["open", "answered", "declined", "overdue", "all"]
STATES = ("open", "answered", "declined", "overdue")
_DONE: dict[Act, str] = {"answer": "answered", "decline": "declined", "correct": "corrected"}


class Inbox:
    """The measurements that were asked for. Safe to call from several threads."""

    def __init__(self, context: ServiceContext, studies: ReleasedStudies, versions: Versions, bells: Bells) -> None:
        self._context = context
        self._studies = studies
        self._versions = versions
        self._bells = bells
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
            found = table.page(
                db, states=states, study_id=study_id, query_id=query_id, asking=system, after=after, limit=limit
            )
            return [self._view(db, row) for row in found], table.count_open(db)

    def one(self, identity: str) -> wire.InboxItem:
        """A measurement. Raises NotFound."""
        with self._context.database.read() as db:
            return self._view(db, table.one_view(db, identity))

    def news(self) -> wire.InboxNews:
        """How many are open, and how much has happened so far."""
        with self._context.database.read() as db:
            return wire.InboxNews(open=table.count_open(db), seq=table.count_changes(db))

    def _view(self, db: Connection, row: Any) -> wire.InboxItem:
        released = self._studies.of(db, row.study_id)
        measurement = released.spec.measurement
        assert not isinstance(measurement, wire.ColumnMeasurement)
        return wire.InboxItem(
            seq=row.seq,
            id=row.id,
            query_id=row.query_id,
            study_id=row.study_id,
            study=released.spec.name,
            question=measurement.question if isinstance(measurement, wire.InboxMeasurement) else None,
            unit=measurement.unit,
            lower=measurement.lower,
            upper=measurement.upper,
            record=released.record(row.row),
            shown=released.shown(row.row),
            play=row.play,
            plays=row.plays,
            asked_at=moment(row.created_at),
            due_at=moment(row.due_at) if row.due_at else None,
            state=row.state,
            value=row.value if row.kind == "answered" else None,
            version=row.version,
            reason=row.reason,
            note=row.note,
            changed_at=moment(row.changed_at) if row.changed_at else None,
            changed_by=row.name,
            problem=row.problem if row.next_at is None else None,
            system=system_of(row),
        )

    # --- telling ----------------------------------------------------------------------------------

    def answer(self, request: RequestContext, query_id: str, told: wire.AnswerCreate) -> StoredReply:
        """Take what was measured; late answers too."""
        return self._tell(request, query_id, "answer", lambda db: measurement_entries.values_of(told))

    def correct(self, request: RequestContext, query_id: str, told: wire.CorrectCreate) -> StoredReply:
        """Take what is right in the place of what was told. Raises BudgetExhausted, and changes nothing."""
        return self._tell(request, query_id, "correct", lambda db: measurement_entries.corrections_of(told))

    def decline(self, request: RequestContext, query_id: str, told: wire.DeclineCreate) -> StoredReply:
        """Take it that these, or all that are open, will not be measured."""

        def declines(db: Connection) -> list[Told]:
            still_open = [row.id for row in table.of_query(db, query_id) if row.state == "open"]
            chosen = told.measurement_ids or still_open
            if not chosen:
                raise StateConflict("nothing of this query is open")
            return [Told(identity, reason=told.reason, note=told.note) for identity in chosen]

        return self._tell(request, query_id, "decline", declines)

    def _tell(
        self, request: RequestContext, query_id: str, act: Act, told: Callable[[Connection], list[Told]]
    ) -> StoredReply:
        def effect(db: Connection) -> Effect:
            if table.inquiry(db, query_id) is None:
                raise NotFound("there is no such query")
            teller = Teller(request.principal.actor, request.principal.name)
            begun, details = self.enter(db, query_id, act, told(db), teller)
            view = wire.QueryMeasurements(
                query_id=query_id,
                state="answered" if begun.version else "pending",
                version=begun.version,
                open=begun.open,
                charged=begun.charged,
            )
            return Effect(view, f"measurement.{_DONE[act]}", details, 200)

        return self._once(request, effect, [query_id])

    def _once(self, request: RequestContext, effect: Callable[[Connection], Effect], queries: list[str]) -> StoredReply:
        """``effect`` once, and what it began of ``queries`` told; the last of them is the one of a refusal."""
        try:
            reply = self._context.idempotency.once(request, effect)
        except BudgetExhausted as refusal:
            self._note_refusal(request, queries[-1], refusal)
            raise
        self.changed(queries)
        return reply

    def enter(
        self, db: Connection, query_id: str, act: Act, told: Sequence[Told], teller: Teller
    ) -> tuple[Begun, dict[str, Any]]:
        """Check and store what is told of a query, and begin what follows; also what the log tells of it.

        Raises Invalid, NotFound, StateConflict, BudgetExhausted; the caller's transaction then changes nothing.
        """
        details = self._store(db, query_id, act, told, teller)
        return self._versions.begin(db, query_id, actor=teller.actor), details

    def _store(self, db: Connection, query_id: str, act: Act, told: Sequence[Told], teller: Teller) -> dict[str, Any]:
        known = table.inquiry(db, query_id)
        check_told(known)
        rows = {row.id: row for row in table.of_query(db, query_id)}
        spec = self._studies.of(db, known.study_id).spec
        latest = measurement_entries.latest_values(db, query_id, rows) if act == "correct" else {}
        measurement_entries.check(act, told, rows, spec, latest)
        return measurement_entries.append(
            db, known, [(one, rows[one.measurement_id]) for one in told], teller, self._context.clock()
        )

    def fault_of(self, study_id: str, value: float) -> str | None:
        """Why a value cannot be a measurement of a study, or None."""
        with self._context.database.read() as db:
            return measurement_entries.fault_of(value, self._studies.of(db, study_id).spec)

    def overdue(self, db: Connection, query_id: str) -> None:
        """Take what is open of a query, past its date, for declined."""
        known, now = table.inquiry(db, query_id), self._context.clock()
        still_open = [(Told(row.id), row) for row in table.of_query(db, query_id) if row.state == "open"]
        if not still_open or known.lost:
            return
        details = measurement_entries.append(db, known, still_open, measurement_entries.CURATOR, now, kind="overdue")
        audit_log.append(db, "measurement.overdue", actor=measurement_entries.CURATOR.actor, now=now, details=details)
        self._versions.begin(db, query_id, actor=measurement_entries.CURATOR.actor)

    # --- spreadsheets -----------------------------------------------------------------------------

    def export(self, study_id: str | None) -> bytes:
        """The oldest open measurements, as many as one file may bring back."""
        items, _ = self.page("open", study_id, None, 0, wire.MEASUREMENTS_MAX)
        queries = set(list(dict.fromkeys(item.query_id for item in items))[: wire.IMPORT_QUERIES_MAX])
        return spreadsheet.export([item for item in items if item.query_id in queries])

    def import_(self, request: RequestContext, body: bytes, *, dry_run: bool) -> StoredReply | wire.InboxImport:
        """Take a filled-in file: all of it, or nothing where a line is wrong (Invalid says where).

        One at a time: Busy for another. A dry run reads alone, and looks at no budget.
        """
        if not dry_run:
            self._context.idempotency.key_of(request)
        if not self._importing.acquire(blocking=False):
            raise Busy("another file is being read, and one is read at a time: try again", seconds=5)
        try:
            sheet = spreadsheet.read(body)
            return self._tried(sheet) if dry_run else self._taken(request, sheet)
        finally:
            self._importing.release()

    def _tried(self, sheet: spreadsheet.Sheet) -> wire.InboxImport:
        """What taking a file would do."""
        answered = 0
        with self._context.database.read() as db:
            for query_id, acts in self._by_query(db, sheet).items():
                check_told(table.inquiry(db, query_id))
                told = {one.measurement_id for some in acts.values() for one in some}
                answered += {row.id for row in table.of_query(db, query_id) if row.state == "open"} <= told
        return _import_view(sheet, answered, dry_run=True)

    def _taken(self, request: RequestContext, sheet: spreadsheet.Sheet) -> StoredReply:
        teller, queries = Teller(request.principal.actor, request.principal.name), list[str]()

        def effect(db: Connection) -> Effect:
            answered = 0
            for query_id, acts in self._by_query(db, sheet).items():
                queries.append(query_id)
                for act, told in acts.items():
                    details = self._store(db, query_id, act, told, teller)
                    kind = f"measurement.{_DONE[act]}"
                    audit_log.append(db, kind, actor=teller.actor, now=self._context.clock(), details=details)
                answered += self._versions.begin(db, query_id, actor=teller.actor).open == 0
            found = _import_view(sheet, answered, dry_run=False)
            return Effect(found, "inbox.imported", {"answered": found.answered, "declined": found.declined})

        return self._once(request, effect, queries)

    def _by_query(self, db: Connection, sheet: spreadsheet.Sheet) -> dict[str, dict[Act, list[Told]]]:
        """What a file tells of each query. Raises Invalid that names each line that is wrong."""
        rows = table.some(db, [one.measurement_id for _, one in sheet.told])
        found: dict[str, dict[Act, list[Told]]] = {}
        for line, one in sheet.told:
            act: Act = "answer" if one.value is not None else "decline"
            if (row := rows.get(one.measurement_id)) is None:
                sheet.blame(line, "measurement_id", "there is no such measurement")
                continue
            spec = self._studies.of(db, row.study_id).spec
            column = "value" if one.value is not None else "decline_reason"
            if row.state not in measurement_entries.FROM[act]:
                sheet.blame(line, column, f"the measurement is {row.state}: {measurement_entries.INSTEAD[row.state]}")
            elif one.value is not None and (message := measurement_entries.fault_of(one.value, spec)):
                sheet.blame(line, column, message)
            else:
                found.setdefault(row.query_id, {}).setdefault(act, []).append(one)
        if sheet.faults:
            raise Invalid("nothing was stored: errors says which lines to mend", sheet.faults)
        if len(found) > wire.IMPORT_QUERIES_MAX:  # all of them are one transaction, which others wait for
            raise Invalid(f"a file may tell of {wire.IMPORT_QUERIES_MAX} queries at most: split it")
        return found

    def _note_refusal(self, request: RequestContext, query_id: str, refusal: BudgetExhausted) -> None:
        """Refusals are records, too."""
        actor, now = request.principal.actor, self._context.clock()

        def note(db: Connection) -> None:
            study_id = table.inquiry(db, query_id).study_id
            details = {"study_id": study_id, "query_id": query_id, **refusal.budget}
            audit_log.append(db, "correction.refused", actor=actor, now=now, details=details)

        self._context.database.write(note)

    def changed(self, query_ids: Sequence[str]) -> None:
        """After the commit: tell what was begun, and say that there is news."""
        try:
            self._versions.settle(query_ids)
        finally:
            self._bells.ring(INBOX)


def system_of(row: Any) -> wire.SystemAsked | None:
    """How the owner's system stands to a measurement: nothing, where people measure or it is not open."""
    if row.state != "open" or (row.next_at is None and row.problem is None and not row.attempts):
        return None
    state: wire.MeasurerState = "waiting"
    if row.next_at is None:
        state = "expected" if row.problem is None else "given_up"
    next_at = moment(row.next_at) if row.next_at else None
    return wire.SystemAsked(state=state, attempts=row.attempts, next_at=next_at, problem=row.problem)


def _import_view(sheet: spreadsheet.Sheet, queries: int, *, dry_run: bool) -> wire.InboxImport:
    values = sum(one.value is not None for _, one in sheet.told)
    return wire.InboxImport(
        dry_run=dry_run, answered=values, declined=len(sheet.told) - values, blank=sheet.blank, queries=queries
    )
