"""Calls of the owner's system about open measurements: when the next one is due, and what came of the last."""

from typing import Any

from sqlalchemy import func, select, update

from curator_service.store.inbox import CALL_STATES, CallState, inquiries, measurements
from service_kit.store.database import Connection

_STILL_OPEN = measurements.c.state.concat("") == "open"
"""No index by state is used for it: many more are open than are due at a time."""


def next_calls(db: Connection, *, limit: int) -> list[tuple[str, str]]:
    """Measurements for which the owner's system is to be called, the earliest first: id, and when."""
    query = select(measurements.c.id, measurements.c.next_at).where(measurements.c.next_at.is_not(None), _STILL_OPEN)
    return [(row.id, row.next_at) for row in db.execute(query.order_by(measurements.c.next_at).limit(limit))]


def record_attempt(
    db: Connection, measurement_id: str, *, attempts: int, next_at: str | None, problem: str | None
) -> None:
    """Record a call of the owner's system, unless the measurement was made meanwhile."""
    where = (measurements.c.id == measurement_id) & (measurements.c.state == "open")
    db.execute(update(measurements).where(where).values(attempts=attempts, next_at=next_at, problem=problem))


def try_again(db: Connection, now: str, *, limit: int) -> int:
    """Let the owner's system be called now for measurements that wait or were given up; how many.

    First for those whose next attempt is nearest, then for those that were given up. Their attempts count from 0.
    """
    seq = select(measurements.c.seq)
    later = seq.where(measurements.c.next_at > now, _STILL_OPEN).order_by(measurements.c.next_at)
    count = _restart(db, now, later.limit(limit))
    return count + _restart(db, now, seq.where(CALL_STATES["given_up"]).limit(limit - count))


def try_measurement_again(db: Connection, now: str, identity: str) -> int:
    """The same for one measurement, in any state at the system; 0 if it is not open."""
    where = (measurements.c.id == identity) & (measurements.c.state == "open")
    return _restart(db, now, select(measurements.c.seq).where(where))


def _restart(db: Connection, now: str, seqs: Any) -> int:
    change = update(measurements).where(measurements.c.seq.in_(seqs)).values(attempts=0, next_at=now)
    return db.execute(change).rowcount


def give_up_old(db: Connection, before: str, problem: str, *, limit: int) -> int:
    """Call the owner's system no more for measurements that were requested ``before``; how many, ``limit`` at most.

    The problem of an earlier attempt stays.
    """
    joined = measurements.join(inquiries, inquiries.c.query_id == measurements.c.query_id)
    where = measurements.c.next_at.is_not(None) & _STILL_OPEN & (inquiries.c.created_at < before)
    seqs = select(measurements.c.seq).select_from(joined).where(where).limit(limit)
    given_up = {"next_at": None, "problem": func.coalesce(measurements.c.problem, problem)}
    return db.execute(update(measurements).where(measurements.c.seq.in_(seqs)).values(**given_up)).rowcount


def count_states(db: Connection) -> dict[CallState, int]:
    """How many open measurements are in each state at the owner's system."""
    return {
        name: int(db.execute(select(func.count()).select_from(measurements).where(where)).scalar_one())
        for name, where in CALL_STATES.items()
    }
