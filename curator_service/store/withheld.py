"""The table of withheld records: append-only, by the account of the dataset's file."""

from sqlalchemy import Column, Integer, Table, Text, UniqueConstraint

from curator_service.store.base import METADATA

withheld = Table(
    "withheld",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("account", Text, nullable=False),
    Column("unit", Text, nullable=False),  # the number of a record, or the digest of a person
    Column("created_at", Text, nullable=False),
    UniqueConstraint("account", "unit"),
)
