"""The curator's schema."""

from sqlalchemy import MetaData

from service_kit.store.schema import Migrations

METADATA = MetaData()
MIGRATIONS: Migrations = {
    7: [
        "ALTER TABLE datasets ADD COLUMN person_column TEXT",
        "ALTER TABLE datasets ADD COLUMN rows_per_person INTEGER",
        "ALTER TABLE datasets ADD COLUMN persons INTEGER",
        "ALTER TABLE datasets ADD COLUMN person_rows_dropped INTEGER",
        "ALTER TABLE datasets ADD COLUMN sandbox INTEGER DEFAULT 0 NOT NULL",
    ],
    8: [],
    9: [
        "ALTER TABLE datasets ADD COLUMN reading TEXT",
        "ALTER TABLE datasets ADD COLUMN rows_left_out INTEGER DEFAULT 0 NOT NULL",
    ],
    10: [
        "ALTER TABLE datasets ADD COLUMN deleted_at TEXT",
        "ALTER TABLE studies ADD COLUMN archived_at TEXT",
        "ALTER TABLE studies ADD COLUMN note TEXT",
        "ALTER TABLE studies ADD COLUMN tags TEXT",
    ],
    11: ["ALTER TABLE datasets ADD COLUMN erased_at TEXT"],
    12: ["ALTER TABLE studies ADD COLUMN release_problem TEXT"],
    14: ["ALTER TABLE releases ADD COLUMN order_salt TEXT", "ALTER TABLE datasets ADD COLUMN salt TEXT"],
    15: ["ALTER TABLE tuning_ledger ADD COLUMN guarantee_kind TEXT", "ALTER TABLE datasets ADD COLUMN overlaps TEXT"],
    16: [],
    17: [
        "ALTER TABLE datasets ADD COLUMN account TEXT",
        "ALTER TABLE datasets ADD COLUMN overlap_decisions TEXT",
        """UPDATE datasets SET account = (SELECT same.id FROM datasets AS same
        WHERE same.sha256 = datasets.sha256 ORDER BY same.seq LIMIT 1)""",
    ],
    18: [],
}
APPEND_ONLY = (
    "releases",
    "queries",
    "ledger",
    "advisories",
    "tuning_ledger",
    "entries",
    "rounds",
    "revisions",
    "refinements",
    "withheld",
    "messages",
    "decisions",
    "budget_changes",
)
