"""The curator's schema."""

from sqlalchemy import MetaData

METADATA = MetaData()
APPEND_ONLY = (
    "releases",
    "queries",
    "ledger",
    "advisories",
    "tuning_ledger",
    "entries",
    "rounds",
    "revisions",
)
