"""The curator's notices to its owner: ids and counts, from the history of requests alone.

A notice about work on the records says that it ended, never how, since that may depend on the records. A notice about
a release says whether the study is open or a draft, since every modeler with a grant can see that.
"""

from decimal import Decimal
from typing import Any, Literal

from blindopt import wire
from curator_service.budget.account_table import Account
from curator_service.budget.ledger import Charge
from curator_service.privacy.prices import units
from service_kit.context.outbox import Outbox
from service_kit.store.database import Connection

_PERCENT = 80


def pending(db: Connection, outbox: Outbox, study_id: str, query_id: str, measurements: int) -> None:
    """A query waits for measurements."""
    subject = wire.NoticeSubject(study_id=study_id, query_id=query_id)
    outbox.add(db, "query_pending", subject, wire.NoticeCounts(measurements=measurements))


def spent(db: Connection, outbox: Outbox, study_id: str, spec: wire.StudyCreate, charges: list[Charge]) -> None:
    """Charges were added: write a notice for each cap of the study that is 80 % spent, once, and again once it rose.

    If answers compose by person, the notice of epsilon_per_row is for the first person who spends so much; it names
    nobody.
    """
    if not outbox.wants("budget_80") or not charges:
        return
    budget, after = spec.budget, charges[-1].after
    for cap, amount, limit in (
        ("epsilon_per_row", max(charge.used for charge in charges), _units(budget.epsilon_per_row)),
        ("epsilon_total", after.total, _units(budget.epsilon_total)),
        ("queries", after.plays, budget.queries),
    ):
        _near(db, outbox, cap, amount, limit, f" {limit}", study_id=study_id)


def dataset_spent(
    db: Connection, outbox: Outbox, account: str, caps: Account, epsilon: Decimal, delta: Decimal | None = None
) -> None:
    """A record of a file has lost so much: the same for the caps of its account; ``account``: the account's name.

    A cap that was changed since has a notice of its own.
    """
    if not outbox.wants("budget_80"):
        return
    for cap, amount, limit in (("epsilon", epsilon, caps.cap_epsilon), ("delta", delta, caps.cap_delta)):
        if amount is not None:
            _near(db, outbox, cap, amount, limit, f" {limit}", dataset_id=account)


def cap_raised(db: Connection, outbox: Outbox, cap: str, **whose: str) -> None:
    """The owner raised a cap of a dataset's account (``dataset_id``) or of a study (``study_id``)."""
    outbox.add(db, "cap_raised", wire.NoticeSubject.model_validate({"cap": cap, **whose}))


def message_received(
    db: Connection, outbox: Outbox, study_id: str, message_id: str, kind: Literal["recommendation", "budget"]
) -> None:
    """A vendor recommends a record, or requests more budget."""
    event: wire.NoticeEvent = "recommendation_received" if kind == "recommendation" else "budget_requested"
    outbox.add(db, event, wire.NoticeSubject(study_id=study_id, message_id=message_id))


def _units(cap: str | None) -> int | None:
    return None if cap is None else units(cap)


def _near(db: Connection, outbox: Outbox, cap: str, amount: Any, limit: Any, at: str = "", **whose: str) -> None:
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


def forecast_ended(db: Connection, outbox: Outbox, row: Any) -> None:
    """A forecast has completed or failed; ``row``: of its table."""
    outbox.add(db, "forecast_ended", wire.NoticeSubject(study_id=row.study_id, forecast_id=row.id))


def tuning_ended(db: Connection, outbox: Outbox, row: Any) -> None:
    """A tuning has completed or failed; ``row``: of its table."""
    outbox.add(db, "tuning_ended", wire.NoticeSubject(tuning_id=row.id))
