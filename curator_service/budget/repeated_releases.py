"""How often the same answer was released: once, and again with each correction; and what that costs everybody."""

import json
from collections import Counter
from collections.abc import Sequence

from blindopt.wire import StudyCreate
from curator_service.budget import table as lines
from curator_service.budget.ledger import Balance, Charge
from curator_service.privacy.prices import GroupPrices, Prices
from curator_service.queries import table
from service_kit.store.database import Connection


def cost_for_everyone(
    db: Connection,
    study_id: str,
    spec: StudyCreate,
    balance: Balance,
    charges: Sequence[Charge] = (),
    again: int = 1,
) -> int:
    """The amount that a study has charged every record, in the ledger's units; answers that add up by row come on top.

    ``charges`` are counted too, which are not stored yet; ``again``: how often the answer of these which was released
    most often will have been.
    """
    prices = Prices.of(spec)
    if prices.by_record or (balance.total == balance.release and not charges):
        return balance.release
    if isinstance(prices, GroupPrices):
        return prices.worst(group_costs(db, study_id, charges).values())
    return max(balance.release, max(again, *most_by_row(db, study_id).values(), 1) * prices.answer)


def group_costs(db: Connection, study_id: str, charges: Sequence[Charge] = ()) -> dict[int, int]:
    """What answers about each group have cost, by candidate, with ``charges`` that are not stored yet."""
    costs = dict(lines.row_totals(db, study_id))
    for charge in charges:
        if charge.row is not None:
            costs[charge.row] = charge.row_after.total
    return costs


def most_by_row(db: Connection, study_id: str) -> dict[int, int]:
    """By row, how often its most released answer was released; only rows with an answer that was released again."""
    release_counts: Counter[tuple[str, int, int]] = Counter()
    for query_id, _, fresh in table.corrected(db, study_id):
        release_counts.update((query_id, index, play) for index, play in json.loads(fresh))
    most: dict[int, int] = {}
    for (query_id, index, _), n in release_counts.items():
        if n > 1:
            row = table.row_at(db, query_id, index)
            most[row] = max(most.get(row, 0), n)
    return most
