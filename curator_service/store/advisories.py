"""Versions of release mechanisms that an owner withdrew as wrong, in databases of version 0.3.0 and before."""

from collections.abc import Mapping

from sqlalchemy import Column, Integer, Table, Text, UniqueConstraint

from curator_service.store import every
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

Reasons = Mapping[tuple[str, int], str]


def reasons(db: Connection) -> Reasons:
    """The reason of each withdrawal, by mechanism and version."""
    return {(row.mechanism, row.version): row.reason for row in every(db, advisories)}
