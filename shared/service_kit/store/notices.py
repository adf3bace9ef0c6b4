"""The outbox: notices that wait for delivery, and the state of those that were sent."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Index, bindparam, delete, select, update

from blindopt import wire
from service_kit.store import base
from service_kit.store.base import METADATA, stamp, table_of
from service_kit.store.prepared_statement import PreparedStatement


@dataclass(frozen=True, slots=True)
class NoticeRow:
    """A notice and the state of its delivery; notices with the same ``once`` are written once."""

    seq: int
    id: str
    once: str | None
    body: bytes  # exactly as it is sent
    state: wire.NoticeState
    attempts: int
    created_at: str
    next_at: str | None
    ended_at: str | None
    problem: str | None


_notices = table_of(
    NoticeRow,
    "notices",
    METADATA,
    Index("notices_by_state", "state", "seq"),
    seq={"primary_key": True},
    id={"unique": True},
    once={"unique": True},
)
_PENDING = _notices.c.state == "pending"
_ONCE = PreparedStatement(select(_notices.c.seq).where(_notices.c.once == bindparam("once")))


def was_written(db: Connection, once: str) -> bool:
    return _ONCE.row(db, once=once) is not None


def add(db: Connection, notice_id: str, body: bytes, now: datetime, once: str | None) -> None:
    values = {"id": notice_id, "once": once, "body": body, "created_at": stamp(now), "state": "pending", "attempts": 0}
    db.execute(_notices.insert().values(values))


def states(db: Connection) -> dict[str, int]:
    """The number of notices in each state, of those that are kept."""
    return {"pending": 0, "delivered": 0, "failed": 0} | base.states(db, _notices)


def first_pending(db: Connection) -> NoticeRow | None:
    row = db.execute(select(_notices).where(_PENDING).order_by(_notices.c.seq).limit(1)).one_or_none()
    return None if row is None else NoticeRow(*row)


def page(db: Connection, *, after: int, limit: int) -> list[NoticeRow]:
    query = select(_notices).where(_notices.c.seq > after).order_by(_notices.c.seq).limit(limit)
    return [NoticeRow(*row) for row in db.execute(query)]


def change(db: Connection, seq: int, **values: Any) -> None:
    db.execute(update(_notices).where(_notices.c.seq == seq).values(**values))


def retry_now(db: Connection) -> None:
    """Let every pending notice be sent at once."""
    db.execute(update(_notices).where(_PENDING).values(next_at=None))


def sweep(db: Connection, before: str) -> int:
    """Delete notices that ended before a time, unless they have a ``once``; how many there were."""
    where = (_notices.c.ended_at < before) & _notices.c.once.is_(None)
    return int(db.execute(delete(_notices).where(where)).rowcount)


def prune(db: Connection, before: datetime, now: datetime, problem: str) -> None:
    """Delete notices that ended before a time, unless they have a ``once``; give up those that waited since then."""
    sweep(db, stamp(before))
    stale = update(_notices).where(_PENDING, _notices.c.created_at < stamp(before))
    db.execute(stale.values(state="failed", ended_at=stamp(now), next_at=None, problem=problem))
