"""The modeler's schema."""

from sqlalchemy import MetaData

from service_kit.store.schema import Migrations

METADATA = MetaData()
MIGRATIONS: Migrations = {7: [], 8: ["ALTER TABLE runs ADD COLUMN plan TEXT"], 9: []}
APPEND_ONLY = ("versions",)
