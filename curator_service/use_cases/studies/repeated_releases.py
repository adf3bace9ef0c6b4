"""How often the same answer was released: once, and again with each correction."""

import json
from collections import Counter

from blindopt.wire import StudyCreate
from curator_service.privacy.ledger import Prices, is_groups
from curator_service.store import inbox as table
from curator_service.store import ledger as lines
from service_kit.store.database import Connection


def most_released(db: Connection, study_id: str, spec: StudyCreate) -> int:
    """How often the answer that was released most often was, or of groups, answers about the one answered most often.

    At least 1: what was not released again was released once.
    """
    if is_groups(spec):
        return max([spent for _, spent in lines.row_totals(db, study_id)], default=0) // Prices.of(spec).answer or 1
    return max(most_by_row(db, study_id).values(), default=1)


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
