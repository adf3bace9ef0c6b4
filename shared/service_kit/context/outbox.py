"""Notices of a service to its operators, written in the transaction of the event that they report.

So a crash loses none, and no notice reports an event that was undone. ``service_kit.notices.delivery`` delivers them.
"""

from datetime import datetime
from typing import Any, Literal

from blindopt import wire
from service_kit.identity.tokens import new_id
from service_kit.store import notices
from service_kit.store.base import Clock, moment
from service_kit.store.database import Connection
from service_kit.store.notices import NoticeRow

Service = Literal["blindopt-curator", "blindopt-modeler"]
_SENTENCES: dict[wire.NoticeEvent, str] = {
    "query_pending": "Query {query_id} of study {study_id} asks for {measurements} measurement(s): they wait.",
    "budget_80": "{percent} % of the cap {cap} of {spender} is used.",
    "release_ended": "The release of study {study_id} has ended: the study is {state}.",
    "forecast_ended": "Forecast {forecast_id} of study {study_id} has ended.",
    "tuning_ended": "Tuning {tuning_id} has ended.",
    "cap_raised": "The cap {cap} of {spender} was raised: its account shows from what, to what, and why.",
    "recommendation_received": "A vendor recommends a record of study {study_id}: it waits for a decision.",
    "budget_requested": "A vendor requests more budget for study {study_id}: it waits for a decision.",
    "run_ended": "Run {run_id} has ended with {answers} answer(s).",
    "run_failed": "Run {run_id} failed with {answers} answer(s): {problem}.",
    "run_waiting": "Run {run_id} has waited for its curator for {minutes} minutes: {problem}.",
    "run_warned": "Run {run_id} has a warning: {problem}. Its page says what to do.",
    "log_disputed": "The curator of study {study_id} broke the protocol: what it signed is kept in the log.",
    "log_failed": "The audit log does not verify: look at /readyz, and run `audit verify`.",
    "test": "This is a test.",
}


class Outbox:
    """Writes notices of the chosen events. Without events, the default, it writes none."""

    def __init__(
        self, service: Service | None = None, events: frozenset[str] = frozenset(), clock: Clock | None = None
    ) -> None:
        self._service = service
        self.events = events
        """Those of which notices are written."""
        self._clock = clock

    def add(
        self,
        db: Connection,
        event: wire.NoticeEvent,
        subject: wire.NoticeSubject | None = None,
        counts: wire.NoticeCounts | None = None,
        *,
        once: str | None = None,
    ) -> None:
        """Write a notice in the caller's transaction, if it is wanted and no earlier one has the same ``once``."""
        if event not in self.events or (once is not None and notices.was_written(db, once)):
            return
        assert self._service is not None
        assert self._clock is not None
        now = self._clock()
        notice = new_notice(self._service, event, now, subject, counts)
        notices.add(db, notice.id, body_of(notice), now, once)


def new_notice(
    service: Service,
    event: wire.NoticeEvent,
    at: datetime,
    subject: wire.NoticeSubject | None = None,
    counts: wire.NoticeCounts | None = None,
) -> wire.Notice:
    """A notice with a new id. Its sentence contains only what its fields do."""
    subject, counts = subject or wire.NoticeSubject(), counts or wire.NoticeCounts()
    fields: dict[str, Any] = subject.model_dump() | counts.model_dump()
    fields["problem"] = subject.problem or "no code"
    fields["spender"] = f"study {subject.study_id}" if subject.study_id else f"dataset {subject.dataset_id}"
    return wire.Notice(
        id=new_id("ntc"),
        event=event,
        at=at,
        service=service,
        subject=subject,
        counts=counts,
        sentence=_SENTENCES[event].format_map(fields),
    )


def body_of(notice: wire.Notice) -> bytes:
    """The exact bytes that are sent. Fields without a value are left out."""
    return notice.model_dump_json(exclude_none=True).encode()


def view(row: NoticeRow) -> wire.NoticeView:
    return wire.NoticeView(
        notice=wire.Notice.model_validate_json(row.body),
        state=row.state,
        attempts=row.attempts,
        next_at=moment(row.next_at) if row.next_at else None,
        ended_at=moment(row.ended_at) if row.ended_at else None,
        problem=row.problem,
    )
