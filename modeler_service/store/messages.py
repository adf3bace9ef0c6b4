"""The table of messages to the owners of studies."""

from typing import Any

from sqlalchemy import (
    Column,
    ForeignKey,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Row,
    Table,
    Text,
    UniqueConstraint,
    func,
    select,
    update,
)

from blindopt.errors import NotFound
from modeler_service.store.base import METADATA
from service_kit.store.database import Connection

messages = Table(
    "messages",
    METADATA,
    Column("run_id", Text, ForeignKey("runs.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("author_key", Text, nullable=False),  # who wrote it, under which idempotency key
    Column("request_sha256", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("reply", LargeBinary),  # the curator's last one
    Column("problem", Text),
    PrimaryKeyConstraint("run_id", "number"),
    UniqueConstraint("run_id", "author_key"),
)


def add(db: Connection, *, run_id: str, **values: Any) -> int:
    """Add a message; return its number."""
    last = db.execute(select(func.max(messages.c.number)).where(messages.c.run_id == run_id)).scalar()
    number = int(last or 0) + 1
    db.execute(messages.insert(), {"run_id": run_id, "number": number, **values})
    return number


def written(db: Connection, run_id: str, author_key: str) -> Row[Any] | None:
    """The message that was written under this key, or None."""
    where = (messages.c.run_id == run_id) & (messages.c.author_key == author_key)
    return db.execute(select(messages).where(where)).one_or_none()


def find(db: Connection, run_id: str, number: int) -> Any:
    """A message. Raises NotFound."""
    where = (messages.c.run_id == run_id) & (messages.c.number == number)
    if (row := db.execute(select(messages).where(where)).one_or_none()) is None:
        raise NotFound("there is no such message")
    return row


def body_of(db: Connection, run_id: str, number: int) -> str | None:
    """What a message says, as it is sent; None where there is no such message."""
    where = (messages.c.run_id == run_id) & (messages.c.number == number)
    return db.execute(select(messages.c.body).where(where)).scalar()


def page(db: Connection, run_id: str, after: int, limit: int) -> list[Row[Any]]:
    """Messages of a run after a number, in order."""
    where = (messages.c.run_id == run_id) & (messages.c.number > after)
    return list(db.execute(select(messages).where(where).order_by(messages.c.number).limit(limit)))


def change(db: Connection, run_id: str, number: int, **values: Any) -> None:
    """Store what came of sending a message."""
    where = (messages.c.run_id == run_id) & (messages.c.number == number)
    db.execute(update(messages).where(where).values(**values))


def every(db: Connection) -> list[Row[Any]]:
    """All messages of all runs."""
    return list(db.execute(select(messages).order_by(messages.c.run_id, messages.c.number)))
