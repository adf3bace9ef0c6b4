"""Trials of a run, filtered and sorted for a table. Filters and orders are read from one index."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, func, select

from modeler_service.store import trials
from service_kit.store.base import page_of
from service_kit.store.database import Connection


@dataclass(frozen=True, slots=True)
class TrialFilter:
    """Which trials of a run are listed; None: all."""

    first: int | None = None
    last: int | None = None
    row: int | None = None
    phase: str | None = None
    state: str | None = None
    """``answered``, ``declined`` or ``open``."""

    def of(self, run_id: str) -> Any:
        """The condition, over columns of the index ``trials_of_curve`` alone."""
        where: Any = trials.c.run_id == run_id
        if self.first is not None:
            where &= trials.c.number >= self.first
        if self.last is not None:
            where &= trials.c.number <= self.last
        if self.row is not None:
            where &= trials.c.row == self.row
        if self.phase is not None:
            where &= trials.c.phase == self.phase
        match self.state:
            case "answered":
                where &= trials.c.y.is_not(None)
            case "declined":
                where &= (trials.c.declined == 1) & trials.c.y.is_(None)
            case "open":
                where &= (trials.c.declined == 0) & trials.c.y.is_(None)
        return where


def filtered_trials(
    db: Connection, run_id: str, chosen: TrialFilter, *, position: int | None, newest: bool, limit: int
) -> list[Row[Any]]:
    """Trials that match after a number in order, or before it with the newest first; None: from the first or last."""
    query = select(trials).where(chosen.of(run_id))
    return list(db.execute(page_of(query, trials.c.number, position=position, newest=newest, limit=limit)))


def sorted_trials(
    db: Connection, run_id: str, chosen: TrialFilter, *, sort: str, largest: bool, offset: int, limit: int
) -> tuple[int, list[Row[Any]]]:
    """Return how many trials match, and ``limit`` of them from ``offset`` on, sorted by a column of their index.

    Equals are in the order of their numbers, and trials without a value come last.
    """
    where, by = chosen.of(run_id), trials.c[sort]
    count = db.execute(select(func.count()).select_from(trials).where(where)).scalar_one()
    order = (by.is_(None), by.desc() if largest else by, trials.c.number)
    # The numbers first, from the index alone: the replies beside the trials are large.
    numbers = select(trials.c.number).where(where).order_by(*order).limit(limit).offset(offset)
    rank = {number: i for i, number in enumerate(db.execute(numbers).scalars())}
    rows = db.execute(select(trials).where((trials.c.run_id == run_id) & trials.c.number.in_(rank)))
    return int(count), sorted(rows, key=lambda row: rank[row.number])
