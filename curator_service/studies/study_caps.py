"""Raises of a released study's caps: an act of the owner with a reason, which vendors and auditors read."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import StateConflict
from curator_service import notices, store
from curator_service.budget.ledger import is_raised
from curator_service.studies import table
from service_kit.context.context import ServiceContext
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection

CAPS = ("epsilon_per_row", "epsilon_total", "queries")
SHOWN = 20
"""Raises that views show, the last ones."""


def raise_caps(
    db: Connection, context: ServiceContext, study_id: str, budget: wire.Budget, reason: str
) -> dict[str, Any]:
    """Store higher caps of an open study; the details for the log, of ``study.caps_raised``.

    Raises StateConflict for a study that is not open, a lower cap, and where nothing is raised.
    """
    row = store.find(db, store.studies, study_id)
    if row.state != "open":
        raise StateConflict(f"the study is {row.state}: only the caps of an open one can be raised")
    spec = wire.StudyCreate.model_validate_json(row.spec)
    pairs = {cap: (as_decimal(getattr(spec.budget, cap)), as_decimal(getattr(budget, cap))) for cap in CAPS}
    raised = [cap for cap, (old, new) in pairs.items() if is_raised(old, new)]
    lower = [cap for cap, (old, new) in pairs.items() if is_raised(new, old)]
    if lower:
        raise StateConflict(f"this would lower the cap {' and '.join(lower)}: caps of a released study only rise")
    if not raised:
        raise StateConflict("no cap is higher than it is now")
    at, spec_json = stamp(context.clock()), spec.model_copy(update={"budget": budget}).model_dump_json()
    store.change(db, store.studies, study_id, spec=spec_json)
    values = {"before": spec.budget.model_dump_json(), "after": budget.model_dump_json(), "reason": reason}
    store.insert(db, table.budget_changes, study_id=study_id, created_at=at, **values)
    for cap in raised:
        notices.cap_raised(db, context.outbox, cap, study_id=study_id)
    return {
        "study_id": study_id,
        "replaces": sha256(row.spec.encode()),
        "spec_sha256": sha256(spec_json.encode()),
        "before": spec.budget.model_dump(),
        "after": budget.model_dump(),
        "reason_sha256": sha256(reason.encode()),
    }


def as_decimal(cap: str | int | None) -> Decimal | None:
    return None if cap is None else Decimal(cap)


def added(budget: wire.Budget, more: wire.Budget) -> wire.Budget:
    """The caps with more of each that there is.

    >>> added(wire.Budget(queries=100, epsilon_total="2.5"), wire.Budget(queries=50, epsilon_per_row="1")).queries
    150
    """
    sums: dict[str, Any] = {}
    for cap in CAPS:
        old, plus = as_decimal(getattr(budget, cap)), as_decimal(getattr(more, cap)) or Decimal(0)
        total = None if old is None else old + plus
        sums[cap] = total if total is None else int(total) if cap == "queries" else f"{total:f}"
    return wire.Budget.model_validate(sums)


def changes_by_study(db: Connection, study_ids: Sequence[str]) -> dict[str, list[wire.BudgetChange]]:
    """The last raises of the caps of each of these studies, in order."""
    changes: dict[str, list[wire.BudgetChange]] = {study_id: [] for study_id in study_ids}
    for row in table.changes(db, study_ids):
        change = wire.BudgetChange(
            at=moment(row.created_at),
            before=wire.Budget.model_validate_json(row.before),
            after=wire.Budget.model_validate_json(row.after),
            reason=row.reason,
        )
        changes[row.study_id].append(change)
    return {study_id: of_study[-SHOWN:] for study_id, of_study in changes.items()}
