"""The modeler's database, keys and log, for the service and for the command line."""

from modeler_service import store
from modeler_service.settings import Settings
from service_kit.context.context import ServiceContext
from service_kit.context.keys import Seal, signer
from service_kit.context.outbox import Outbox
from service_kit.store.base import APPEND_ONLY, METADATA, MIGRATIONS, Clock, utc_now
from service_kit.store.database import Database


def open_context(settings: Settings, clock: Clock = utc_now) -> ServiceContext:
    """The modeler's database, tokens and log."""
    folder = settings.data_dir
    tables, append_only = (METADATA, store.METADATA), (*APPEND_ONLY, *store.APPEND_ONLY)
    migrations = (MIGRATIONS, store.MIGRATIONS)
    database = Database(folder / "modeler.sqlite", tables, append_only=append_only, migrations=migrations)
    keys = folder / "secrets"
    log_key = signer(keys / "log.key", "modeler")
    outbox = Outbox("blindopt-modeler", settings.enabled_events, clock)
    return ServiceContext.open(
        database, Seal(keys / "seal.key"), log_key, clock, checkpoint_file=folder / "checkpoint", outbox=outbox
    )
