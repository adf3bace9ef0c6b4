"""Messages of vendors to the owner of a study, the owner's decisions, and the record behind a candidate."""

import secrets
from typing import Any

from pydantic import TypeAdapter, ValidationError

from blindopt import wire
from blindopt.errors import Erased, Invalid, StateConflict, StudyNotOpen, UnknownRow
from curator_service import notices, store
from curator_service.budget import ledger_lines
from curator_service.budget.ledger import is_raised
from curator_service.datasets.labels import Labels
from curator_service.datasets.records import in_words
from curator_service.releases.groups import group_view
from curator_service.salted_digests import salted_digest
from curator_service.studies import study_caps, table
from curator_service.studies.release_cache import Released, ReleasedStudies, withheld_rows
from curator_service.studies.studies import owner_view
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.identity.tokens import Principal, new_id
from service_kit.store import audit_log
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply

OPEN_MAX = 5
"""Messages of a kind that one grant may have waiting for a decision."""
_CONTENT: TypeAdapter[wire.MessageCreate] = wire.validator_of(wire.MessageCreate)
_OF_RECOMMENDED = ("accepted", "rejected", "measured")
_DECISIONS = {
    "recommendation": _OF_RECOMMENDED,
    "recommendations": _OF_RECOMMENDED,
    "budget": ("approved", "declined"),
}


class Messages:
    """Takes messages, shows them to the owner, and stores decisions; raises caps, as a message requests or without."""

    def __init__(self, context: ServiceContext, studies: ReleasedStudies) -> None:
        self._context = context
        self._studies = studies
        self._labels = Labels(context.seal)

    def send(self, request: RequestContext, study_id: str, message: wire.MessageCreate) -> StoredReply:
        """Take a message of a grant. Raises StudyNotOpen, UnknownRow, Invalid, StateConflict."""

        def effect(db: Connection) -> Effect:
            self._check(db, study_id, request.principal, message)
            message_id, body, salt = new_id("msg"), message.model_dump_json(), secrets.token_hex(16)
            store.insert(
                db,
                table.messages,
                id=message_id,
                study_id=study_id,
                grant_id=request.principal.id,
                name=request.principal.name,
                kind=message.kind,
                body=body,
                salt=salt,
                created_at=stamp(self._context.clock()),
            )
            asks_for_budget = isinstance(message, wire.BudgetMessage)
            notices.message_received(db, self._context.outbox, study_id, message_id, asks_for_budget=asks_for_budget)
            details = {"study_id": study_id, "message_id": message_id, "message_sha256": salted_digest(body, salt)}
            return Effect(_view(table.find(db, message_id)), "message.received", details)

        return self._context.idempotency.once(request, effect)

    def _check(self, db: Connection, study_id: str, grant: Principal, message: wire.MessageCreate) -> None:
        released = self._studies.of(db, study_id)
        if store.is_erased(db, study_id):
            raise Erased("the study was erased by its owner")
        if isinstance(message, wire.BudgetMessage):
            if store.state_of(db, study_id) != "open":
                raise StudyNotOpen("the study is closed: it takes no more measurements")
            if _sum(released.spec.budget, message.more, "more") == released.spec.budget:
                raise StateConflict("the study has no such cap: there is nothing to raise")
        elif max(row_numbers(message)) >= released.n:
            raise UnknownRow(f"the study has {released.n} candidates, counted from 0")
        if table.count_open(db, grant.id, message.kind) >= OPEN_MAX:
            raise StateConflict(f"{OPEN_MAX} messages of this kind wait for the owner: wait for a decision")

    def of_grant(self, principal: Principal, study_id: str, message_id: str) -> wire.MessageView:
        """A grant's own message. Raises NotFound for any other."""
        with self._context.database.read() as db:
            return _view(table.find(db, message_id, principal.id))

    def view(self, message_id: str) -> wire.MessageView:
        """Any message, for the owner. Raises NotFound."""
        with self._context.database.read() as db:
            return _view(table.find(db, message_id))

    def page(self, study_id: str | None, only_open: bool, after: int, limit: int) -> list[tuple[int, wire.MessageView]]:
        with self._context.database.read() as db:
            rows = table.page(db, study_id=study_id, only_open=only_open, after=after, limit=limit)
            return [(row.seq, _view(row)) for row in rows]

    def decide(self, request: RequestContext, message_id: str, decision: wire.MessageDecision) -> StoredReply:
        """Store a decision; an approval raises the caps in the same transaction.

        Raises NotFound; Invalid for a word that is not for this kind, and for caps above what was requested;
        StateConflict for a request that was decided, and as ``raise_caps``.
        """
        raised: list[tuple[str, wire.Budget]] = []

        def effect(db: Connection) -> Effect:
            row = table.find(db, message_id)
            if decision.decision not in _DECISIONS[row.kind]:
                message = f"must be {' or '.join(_DECISIONS[row.kind])} for a {row.kind} message"
                raise Invalid.at("decision", message)
            if decision.budget is not None and decision.decision != "approved":
                raise Invalid.at("budget", "goes with approved alone: leave it out")
            if row.kind == "budget" and row.decision is not None:
                raise StateConflict(f"the request was {row.decision} already")
            if decision.decision == "approved":
                self._context.audit_trail.check_unchanged(row.study_id)
                budget = self._approved(db, row, decision.budget)
                reason = f"requested by {row.name}, {message_id}"
                details = study_caps.raise_caps(db, self._context, row.study_id, budget, reason)
                actor, now = request.principal.actor, self._context.clock()
                audit_log.append(db, "study.caps_raised", actor=actor, now=now, details=details)
                raised.append((row.study_id, budget))
            salt = secrets.token_hex(16)
            store.insert(
                db,
                table.decisions,
                message_id=message_id,
                decision=decision.decision,
                word=decision.word,
                salt=salt,
                created_at=stamp(self._context.clock()),
            )
            details = {
                "study_id": row.study_id,
                "message_id": message_id,
                "decision": decision.decision,
                "word_sha256": salted_digest(decision.word, salt),
            }
            return Effect(_view(table.find(db, message_id)), "message.decided", details, 200)

        reply = self._context.idempotency.once(request, effect)
        for study_id, budget in raised:
            self._studies.raise_caps(study_id, budget)
        return reply

    def raise_caps(self, request: RequestContext, study_id: str, change: wire.BudgetRaise) -> StoredReply:
        """Raise the caps of an open study without a request. Raises NotFound and StateConflict."""

        def effect(db: Connection) -> Effect:
            self._context.audit_trail.check_unchanged(study_id)
            details = study_caps.raise_caps(db, self._context, study_id, change.budget, change.reason)
            return Effect(owner_view(db, study_id), "study.caps_raised", details, 200)

        reply = self._context.idempotency.once(request, effect)
        self._studies.raise_caps(study_id, change.budget)
        return reply

    def _approved(self, db: Connection, row: Any, budget: wire.Budget | None) -> wire.Budget:
        """The caps of an approval: as chosen, between those of now and what was requested."""
        content = _CONTENT.validate_json(row.body)
        assert isinstance(content, wire.BudgetMessage)
        spec = store.spec_of(db, row.study_id)
        most = _sum(spec.budget, content.more, "budget")
        if budget is None:
            return most
        above = [cap for cap in study_caps.CAPS if is_raised(*_pair(most, budget, cap))]
        if above:
            faults: list[dict[str, object]] = [
                {"field": f"budget.{cap}", "message": f"must be at most {getattr(most, cap)}, which was requested"}
                for cap in above
            ]
            raise Invalid.of(faults)
        return budget

    def open_record(self, request: RequestContext, study_id: str, choice: wire.RecordChoice) -> wire.RecordView:
        """Show the owner the record behind a candidate. The log says who opened one of which study, and not which.

        Raises NotFound, StudyNotOpen before the release, UnknownRow.
        """

        def work(db: Connection) -> wire.RecordView:
            released = self._candidate(db, study_id, choice.row)
            if released.groups is not None:
                raise StateConflict("a candidate of this study is a group of records: open the group")
            (view,) = self._records(db, [choice.row], released)
            self._context.audit_trail.record(db, request, 200, "", kind="record.opened", details={"study_id": study_id})
            return view

        return self._context.database.write(work)

    def open_records(self, request: RequestContext, message_id: str) -> wire.RecordTable:
        """Show the owner the records behind the candidates of a message. The log says who opened how many.

        Raises NotFound, StateConflict for a message that recommends no records, and as ``open_record``.
        """
        with self._context.database.read() as db:  # thousands of records keep no charge waiting
            message = table.find(db, message_id)
            content, study_id = _CONTENT.validate_json(message.body), message.study_id
            if isinstance(content, wire.BudgetMessage):
                raise StateConflict("the message requests budget: it recommends no record")
            rows = row_numbers(content)
            released = self._candidate(db, study_id, max(rows))
            if released.groups is not None:
                raise StateConflict("a candidate of this study is a group of records: open the group")
            records = self._records(db, rows, released)
        details, trail = {"study_id": study_id, "records": len(records)}, self._context.audit_trail
        self._context.database.write(
            lambda db: trail.record(db, request, 200, "", kind="record.opened", details=details)
        )
        return wire.RecordTable(study_id=study_id, records=records)

    def open_group(self, request: RequestContext, study_id: str, choice: wire.RecordChoice) -> wire.GroupView:
        """Show the owner the records of a group. The log says who opened one of which study, and not which.

        Raises NotFound, StudyNotOpen before the release, UnknownRow, and StateConflict for a study of records.
        """

        def work(db: Connection) -> wire.GroupView:
            released = self._candidate(db, study_id, choice.row)
            if released.groups is None:
                raise StateConflict("a candidate of this study is a record: open the record")
            view = group_view(db, self._studies.vault, choice.row, released)
            self._context.audit_trail.record(db, request, 200, "", kind="record.opened", details={"study_id": study_id})
            return view

        return self._context.database.write(work)

    def _records(self, db: Connection, rows: list[int], released: Released) -> list[wire.RecordView]:
        names = released.reading.labels if released.reading else []
        stored = [int(released.order[row]) for row in rows]
        labels = self._labels.shown(db, released.spec.dataset_id, names, stored, names)
        balances = ledger_lines.row_balances(db, released.study_id, rows)
        withheld = withheld_rows(db, self._studies.vault, released, rows)
        views = []
        for row, index in zip(rows, stored, strict=True):
            values = released.values(row, released.names)
            views.append(
                wire.RecordView(
                    study_id=released.study_id,
                    row=row,
                    record=released.record(row),
                    file_row=released.file_row(index),
                    labels=labels.get(index, []),
                    in_words=in_words(released.reading, values),
                    columns=[wire.Shown(column=name, value=value) for name, value in values.items()],
                    plays=balances[row].plays if row in balances else 0,
                    withheld=row in withheld,
                )
            )
        return views

    def _candidate(self, db: Connection, study_id: str, row: int) -> Released:
        released = self._studies.of(db, study_id)
        if row >= released.n:
            raise UnknownRow(f"the study has {released.n} candidates, counted from 0")
        return released


def row_numbers(message: wire.RecommendationMessage | wire.RecommendationsMessage) -> list[int]:
    """Numbers of the candidates that a message recommends, in its order."""
    return [message.row] if isinstance(message, wire.RecommendationMessage) else [good.row for good in message.rows]


def _sum(budget: wire.Budget, more: wire.Budget, field: str) -> wire.Budget:
    """The caps with more of each. Raises Invalid, which names the caps that would be larger than any can be."""
    try:
        return study_caps.added(budget, more)
    except ValidationError as error:
        faults: list[dict[str, object]] = [
            {"field": f"{field}.{fault['loc'][0]}", "message": "must be less: no cap can be so large"}
            for fault in error.errors()
        ]
        raise Invalid.of(faults) from None


def _pair(old: wire.Budget, new: wire.Budget, cap: str) -> Any:
    return study_caps.as_decimal(getattr(old, cap)), study_caps.as_decimal(getattr(new, cap))


def _view(row: Any) -> wire.MessageView:
    return wire.MessageView(
        id=row.id,
        study_id=row.study_id,
        grant_id=row.grant_id,
        name=row.name,
        message=_CONTENT.validate_json(row.body),
        state=row.decision or "open",
        word=row.word,
        salt=row.word_salt or row.salt,
        created_at=moment(row.created_at),
        decided_at=moment(row.decided_at) if row.decided_at else None,
    )
