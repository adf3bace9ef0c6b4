"""The table of private bounds: each was charged to the account of the dataset's file."""

from sqlalchemy import Column, ForeignKey, Integer, Table, Text

from curator_service.store.base import METADATA

bounds = Table(
    "bounds",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("dataset_id", Text, ForeignKey("datasets.id"), nullable=False),
    Column("spec", Text, nullable=False),
    Column("result", Text),  # null: charged, and interrupted before its draw
    Column("created_at", Text, nullable=False),
)
