"""The curator's schema."""

from sqlalchemy import MetaData

from service_kit.store.schema import Migrations

METADATA = MetaData()
MIGRATIONS: Migrations = {}
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
