"""Notices to the vendor by webhook: ids, counts and codes; no y, no row, no text of a curator."""

import json
from datetime import datetime, timedelta
from typing import Any

from blindopt import errors, wire
from modeler_service import store
from modeler_service.store import RunRow
from service_kit.context.outbox import Outbox
from service_kit.store.base import moment
from service_kit.store.database import Connection


def notify_ended(db: Connection, outbox: Outbox, row: RunRow, ending: dict[str, Any]) -> None:
    """Send the notice that a run has ended; ``row`` is its row before that."""
    event: wire.NoticeEvent = "run_failed" if ending["state"] == "failed" else "run_ended"
    if event in outbox.events:
        outbox.add(db, event, _subject(row, ending), wire.NoticeCounts(answers=store.answered(db, row.id)))


def notify_waiting(
    db: Connection, outbox: Outbox, row: RunRow, ending: dict[str, Any], now: datetime, longer_than: timedelta
) -> None:
    """Send a notice once for each time that a run waits for its curator (not for people) ``longer_than`` this."""
    if ending.get("waiting_for", "curator") != "curator":
        return
    since = moment(ending["waiting_since"])
    if "run_waiting" in outbox.events and now - since >= longer_than:
        counts = wire.NoticeCounts(
            answers=store.answered(db, row.id), minutes=int((now - since) / timedelta(minutes=1))
        )
        once = f"run_waiting {row.id} {ending['waiting_since']}"
        outbox.add(db, "run_waiting", _subject(row, ending), counts, once=once)


def notify_warned(db: Connection, outbox: Outbox, run_id: str, study_id: str, code: str) -> None:
    """Send the notice of a warning once for each run and kind of warning; its words stay in the run."""
    subject = wire.NoticeSubject(run_id=run_id, study_id=study_id, problem=code)
    outbox.add(db, "run_warned", subject, once=f"run_warned {run_id} {code}")


def notify_disputed(db: Connection, outbox: Outbox, study_id: str) -> None:
    """Send the notice that a curator broke the protocol; the curator's own text stays in the log."""
    outbox.add(db, "log_disputed", wire.NoticeSubject(study_id=study_id))


def _subject(row: RunRow, ending: dict[str, Any]) -> wire.NoticeSubject:
    problem = json.loads(ending["problem"])["code"] if ending.get("problem") else None
    if problem not in (None, *errors.BY_CODE):
        problem = "another_code"
    return wire.NoticeSubject(run_id=row.id, study_id=row.settings.study_id, problem=problem)
