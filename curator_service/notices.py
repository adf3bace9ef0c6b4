"""The curator's notices to its owner: ids and counts, from the history of requests alone.

A notice about work on the records says that it ended, never how, since that may depend on the records. A notice about
a release says whether the study is open or a draft, since every modeler with a grant can see that.
"""

from typing import Any, Literal

from blindopt import wire
from service_kit.context.outbox import Outbox
from service_kit.store.database import Connection

_PERCENT = 80


def pending(db: Connection, outbox: Outbox, study_id: str, query_id: str, measurements: int) -> None:
    subject = wire.NoticeSubject(study_id=study_id, query_id=query_id)
    outbox.add(db, "query_pending", subject, wire.NoticeCounts(measurements=measurements))


def cap_raised(db: Connection, outbox: Outbox, cap: str, **whose: str) -> None:
    """The owner raised a cap of a dataset's account (``dataset_id``) or of a study (``study_id``)."""
    outbox.add(db, "cap_raised", wire.NoticeSubject.model_validate({"cap": cap, **whose}))


def message_received(db: Connection, outbox: Outbox, study_id: str, message_id: str, *, asks_for_budget: bool) -> None:
    """A vendor recommends a record or several, or requests more budget."""
    event: wire.NoticeEvent = "budget_requested" if asks_for_budget else "recommendation_received"
    outbox.add(db, event, wire.NoticeSubject(study_id=study_id, message_id=message_id))


def near_cap(db: Connection, outbox: Outbox, cap: str, amount: Any, limit: Any, at: str = "", **whose: str) -> None:
    """Write a notice of a cap that is 80 % spent; amount and limit are exact numbers in the same unit."""
    if not limit or 100 * amount < _PERCENT * limit:
        return
    subject = wire.NoticeSubject.model_validate({"cap": cap, **whose})
    (name,) = whose.values()
    counts = wire.NoticeCounts(percent=int(100 * amount // limit))
    outbox.add(db, "budget_80", subject, counts, once=f"budget_80 {name} {cap}{at}")


def release_ended(db: Connection, outbox: Outbox, study_id: str, state: Literal["open", "draft"]) -> None:
    """A release was published (open), or was abandoned (draft)."""
    outbox.add(db, "release_ended", wire.NoticeSubject(study_id=study_id, state=state))
