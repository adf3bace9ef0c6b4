"""Open the curator's data folder, for the service and for the command line."""

from curator_service.settings import Settings
from curator_service.store import (  # noqa: F401  every table is there
    advisories,
    bounds,
    dataset_accounts,
    inbox,
    jobs,
    ledger,
    messages,
    withheld,
)
from curator_service.store import base as schema
from service_kit.context.context import ServiceContext
from service_kit.context.keys import Seal, signer
from service_kit.context.outbox import Outbox
from service_kit.store.base import APPEND_ONLY, METADATA, MIGRATIONS, Clock, utc_now
from service_kit.store.database import Database


def open_context(settings: Settings, clock: Clock = utc_now) -> ServiceContext:
    """The curator's database, keys, outbox and audit log."""
    folder = settings.data_dir
    tables, append_only = (METADATA, schema.METADATA), (*APPEND_ONLY, *schema.APPEND_ONLY)
    migrations = (MIGRATIONS, schema.MIGRATIONS)
    database = Database(folder / "curator.sqlite", tables, append_only=append_only, migrations=migrations)
    keys = folder / "secrets"
    log_key = signer(keys / "log.key", "curator")
    outbox = Outbox("blindopt-curator", settings.enabled_events, clock)
    return ServiceContext.open(
        database, Seal(keys / "seal.key"), log_key, clock, checkpoint_file=folder / "checkpoint", outbox=outbox
    )
