"""The modeler's schema."""

from sqlalchemy import MetaData

from service_kit.store.schema import Migrations

METADATA = MetaData()
MIGRATIONS: Migrations = {
    7: [],
    8: ["ALTER TABLE runs ADD COLUMN plan TEXT"],
    9: [
        "ALTER TABLE runs ADD COLUMN archived_at TEXT",
        "ALTER TABLE observations ADD COLUMN passport TEXT",
        "DROP INDEX IF EXISTS trials_of_curve",  # it has more columns now
    ],
    10: ["ALTER TABLE runs ADD COLUMN note TEXT", "ALTER TABLE runs ADD COLUMN tags TEXT"],
    12: ["ALTER TABLE runs ADD COLUMN engine TEXT"],
}
APPEND_ONLY = ("versions",)
