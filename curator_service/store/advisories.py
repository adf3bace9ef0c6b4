"""The table of withdrawn mechanisms: append-only, since a withdrawal is permanent."""

from sqlalchemy import Column, Integer, Table, Text, UniqueConstraint, cast, func, select

from curator_service.store import releases
from curator_service.store.base import METADATA
from service_kit.store.database import Connection

advisories = Table(
    "advisories",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("mechanism", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    UniqueConstraint("mechanism", "version"),
)


def affected(db: Connection, mechanism: str, version: int) -> list[str]:
    """Studies that released with a version of a mechanism, in the order of their releases."""
    of = [cast(func.json_extract(releases.c.report, f"$.{name}"), Text) for name in ("mechanism", "version")]
    where = (of[0] == mechanism) & (of[1] == str(version))
    return list(db.execute(select(releases.c.study_id).where(where).order_by(releases.c.seq)).scalars())
