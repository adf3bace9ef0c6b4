"""Sessions of users at a console. The table holds the hash of each session's id, never the id."""

from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, ForeignKey, LargeBinary, Table, Text, bindparam, delete, select, update

from service_kit.store.base import METADATA, stamp
from service_kit.store.prepared_statement import PreparedStatement
from service_kit.store.users import users

_sessions = Table(
    "sessions",
    METADATA,
    Column("id_sha256", LargeBinary, primary_key=True),
    Column("user_id", Text, ForeignKey("users.id"), nullable=False, index=True),
    Column("created_at", Text, nullable=False),
    Column("seen_at", Text, nullable=False),
    Column("expires_at", Text, nullable=False),  # however much it is used
    Column("ended_at", Text),
)
FIND = PreparedStatement(
    select(
        *(_sessions.c[name] for name in ("user_id", "seen_at", "expires_at", "ended_at")),
        *(users.c[name] for name in ("id", "name", "role", "password_hash", "disabled_at", "mac")),
    )
    .join(users, users.c.id == _sessions.c.user_id)
    .where(_sessions.c.id_sha256 == bindparam("id_sha256"))
)


def add(db: Connection, id_sha256: bytes, user_id: str, now: datetime, expires: datetime) -> None:
    """Store a new session, which ends at ``expires`` at the latest, and delete those that have expired."""
    db.execute(delete(_sessions).where(_sessions.c.expires_at < stamp(now)))
    times = {"created_at": stamp(now), "seen_at": stamp(now), "expires_at": stamp(expires)}
    db.execute(_sessions.insert().values(id_sha256=id_sha256, user_id=user_id, **times))


def is_live(row: Any, now: datetime, idle_since: datetime) -> bool:
    """Whether a session is valid: not ended, not expired, used since ``idle_since``, its user not disabled."""
    if row.ended_at is not None or row.disabled_at is not None:
        return False
    return bool(stamp(now) < row.expires_at and stamp(idle_since) < row.seen_at)


def record_use(db: Connection, id_sha256: bytes, now: datetime) -> None:
    db.execute(update(_sessions).where(_sessions.c.id_sha256 == id_sha256).values(seen_at=stamp(now)))


def end(db: Connection, id_sha256: bytes, now: datetime) -> None:
    """End a session. Ending it again changes nothing."""
    where = (_sessions.c.id_sha256 == id_sha256) & _sessions.c.ended_at.is_(None)
    db.execute(update(_sessions).where(where).values(ended_at=stamp(now)))


def end_all(db: Connection, now: datetime) -> None:
    db.execute(update(_sessions).where(_sessions.c.ended_at.is_(None)).values(ended_at=stamp(now)))


def sweep(db: Connection, before: str) -> int:
    """Delete sessions that ended or expired before a time; how many there were."""
    where = (_sessions.c.ended_at < before) | (_sessions.c.expires_at < before)
    return int(db.execute(delete(_sessions).where(where)).rowcount)


def end_of_user(db: Connection, user_id: str, now: datetime) -> None:
    where = (_sessions.c.user_id == user_id) & _sessions.c.ended_at.is_(None)
    db.execute(update(_sessions).where(where).values(ended_at=stamp(now)))
