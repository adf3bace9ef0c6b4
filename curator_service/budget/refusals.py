"""Refusals as a modeler may read them: a refusal costs nothing, so it must not say what other grants queried."""

from collections.abc import Sequence

from blindopt import wire
from blindopt.errors import BudgetExhausted
from curator_service.budget import ledger
from curator_service.budget import table as lines
from curator_service.privacy.prices import Prices, text, units
from service_kit.store.database import Connection


def refusal_for_grant(
    db: Connection, study_id: str, grant_id: str, spec: wire.StudyCreate, rows: Sequence[tuple[int, int]]
) -> BudgetExhausted:
    """The refusal of a query of ``rows`` (row, plays), from the release and this grant's own spending alone.

    It is the same whatever other grants queried. Where the grant's own spending leaves room for the query, it names no
    cap. Rows are counted one by one, so that it does not show either which rows have the same person.
    """
    prices, plays = Prices.of(spec), sum(n for _, n in rows)
    own, of_rows = lines.of_grant(db, study_id, grant_id, None if prices.of_pairs else [row for row, _ in rows])
    try:
        ledger.charge_answers(spec, own, rows, of_rows)
    except BudgetExhausted as refusal:
        cap, spent, limit = (str(refusal.budget[name]) for name in ("cap", "spent", "limit"))
        after = units(spent) + (units("1") if cap == "queries" else prices.answer)
        return BudgetExhausted(
            cap,
            requested=str(refusal.budget["requested"]),
            spent=spent,
            limit=limit,
            row=refusal.row,
            remaining="some" if after <= units(limit) else "none",
        )
    cost = sum(prices.cost(n) for _, n in rows)
    requested, spent = (text(cost), text(own.total)) if prices.answers_bounded else (str(plays), str(own.plays))
    return BudgetExhausted(
        None, requested=requested, spent=spent, limit=None, row=None, remaining="some" if plays > 1 else "none"
    )
