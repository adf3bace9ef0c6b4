"""Numbers of a run's trials by state, and what changes as it goes on."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table, bindparam, func, select, text, true

from modeler_service.store import last_version, observations, run, trials
from service_kit.store.database import Connection
from service_kit.store.prepared_statement import PreparedStatement


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of a run's trials with an answer, declined, and waiting to be measured; of its past measurements."""

    answered: int
    declined: int
    pending: int
    pending_since: str | None
    """When the first pending query was accepted."""
    observations: int


def _number(table: Table, where: Any, of: Any = func.count()) -> Any:
    return select(of).select_from(table).where(table.c.run_id == bindparam("run"), where).scalar_subquery()


_WAITS = trials.c.asked_at.is_not(None) & trials.c.answered_at.is_(None)
_COUNTS = PreparedStatement(  # each part reads a single index
    select(
        _number(trials, trials.c.y.is_not(None)).label("answered"),
        _number(trials, text("declined = 1")).label("declined"),  # exactly as in its index
        _number(trials, _WAITS).label("pending"),
        _number(trials, _WAITS, func.min(trials.c.asked_at)).label("pending_since"),
        _number(observations, true()).label("observations"),
    )
)


def counts(db: Connection, run_id: str) -> Counts:
    """Return the counts of a run."""
    return Counts(*_COUNTS.row(db, run=run_id))


def progress(db: Connection, run_id: str) -> tuple[Any, ...]:
    """Return what changes with each event of a run: states, last version, settled trials. Raises NotFound."""
    row = run(db, run_id)
    numbers, version = counts(db, run_id), last_version(db, run_id)
    return (
        row.state,
        row.ended_at,
        row.ended_because,
        row.problem,
        row.waits_until,
        version,
        numbers.answered + numbers.declined,
    )
