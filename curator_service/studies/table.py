"""Tables of vendors' messages, the owner's decisions about them, and raises of a study's caps: all append-only."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, ForeignKey, Index, Integer, Row, Table, Text, and_, func, select

from blindopt.errors import Erased, NotFound
from curator_service.store.base import METADATA
from service_kit.store.base import ERASABLE
from service_kit.store.database import Connection

messages = Table(
    "messages",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("study_id", Text, ForeignKey("studies.id"), nullable=False),
    Column("grant_id", Text, nullable=False),
    Column("name", Text, nullable=False),  # of the grant
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False, info=ERASABLE),
    Column("salt", Text, nullable=False, info=ERASABLE),  # of the body's digest in the log
    Column("created_at", Text, nullable=False),
    Index("messages_by_grant", "grant_id", "seq"),
    Index("messages_by_study", "study_id", "seq"),
)
decisions = Table(
    "decisions",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("message_id", Text, ForeignKey("messages.id"), nullable=False),
    Column("decision", Text, nullable=False),
    Column("word", Text, info=ERASABLE),
    Column("salt", Text, nullable=False, info=ERASABLE),  # of the word's digest in the log
    Column("created_at", Text, nullable=False),
    Index("decisions_by_message", "message_id", "seq"),
)
budget_changes = Table(
    "budget_changes",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("study_id", Text, ForeignKey("studies.id"), nullable=False),
    Column("before", Text, nullable=False),
    Column("after", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Index("budget_changes_by_study", "study_id", "seq"),
)
_last = (
    select(decisions.c.message_id, func.max(decisions.c.seq).label("seq")).group_by(decisions.c.message_id).subquery()
)
_joined = messages.outerjoin(_last, _last.c.message_id == messages.c.id).outerjoin(
    decisions, decisions.c.seq == _last.c.seq
)
_views = select(
    *messages.c,
    decisions.c.decision,
    decisions.c.word,
    decisions.c.salt.label("word_salt"),
    decisions.c.created_at.label("decided_at"),
).select_from(_joined)


def page(db: Connection, *, study_id: str | None, only_open: bool, after: int, limit: int) -> list[Row[Any]]:
    """Messages in the order of arrival, each with its last decision, but those that were erased."""
    query = _views.where(messages.c.seq > after, messages.c.salt != "")
    if study_id is not None:
        query = query.where(messages.c.study_id == study_id)
    if only_open:
        query = query.where(decisions.c.seq.is_(None))
    return list(db.execute(query.order_by(messages.c.seq).limit(limit)))


def find(db: Connection, message_id: str, grant_id: str | None = None) -> Any:
    """A message with its last decision. Raises NotFound, also for one of another grant, and Erased."""
    row = db.execute(_views.where(messages.c.id == message_id)).one_or_none()
    if row is None or grant_id not in (None, row.grant_id):
        raise NotFound("there is no such message")
    if not row.salt:
        raise Erased("the message was erased, with the records of its study")
    return row


def count_open(db: Connection, grant_id: str, kind: str) -> int:
    """How many messages of a kind of a grant wait for a decision."""
    where = and_(messages.c.grant_id == grant_id, messages.c.kind == kind, decisions.c.seq.is_(None))
    return int(db.execute(select(func.count()).select_from(_joined).where(where)).scalar_one())


def changes(db: Connection, study_ids: Sequence[str]) -> list[Row[Any]]:
    """The raises of these studies' caps, in order."""
    query = select(budget_changes).where(budget_changes.c.study_id.in_(study_ids))
    return list(db.execute(query.order_by(budget_changes.c.seq)))
