"""Opens what the curator keeps: for the service and, without the rest of it, for the command line."""

from datetime import UTC, datetime

from curator_service.settings import Settings
from curator_service.store import advisories, forecasts, inbox, ledger, tunings  # noqa: F401  every table is there
from curator_service.store import base as schema
from shared.serving.desk import Desk
from shared.serving.notices import Outbox
from shared.serving.seal import Seal, signer
from shared.serving.store.base import APPEND_ONLY, METADATA, MIGRATIONS, Clock
from shared.serving.store.database import Database


def open_desk(settings: Settings, clock: Clock = lambda: datetime.now(UTC)) -> Desk:
    """The curator's database, tokens and log."""
    folder = settings.data_dir
    tables, append_only = (METADATA, schema.METADATA), (*APPEND_ONLY, *schema.APPEND_ONLY)
    migrations = (MIGRATIONS, schema.MIGRATIONS)
    database = Database(folder / "curator.sqlite", tables, append_only=append_only, migrations=migrations)
    keys = folder / "secrets"
    log_key = signer(keys / "log.key", "curator")
    outbox = Outbox("blindopt-curator", settings.told_events, clock)
    return Desk(database, Seal(keys / "seal.key"), log_key, clock, kept=folder / "checkpoint", outbox=outbox)
