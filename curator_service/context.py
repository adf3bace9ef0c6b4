"""Open the curator's data folder, for the service and for the command line."""

from curator_service.settings import Settings
from curator_service.store import (  # noqa: F401  every table is there
    advisories,
    bounds,
    dataset_accounts,
    erasures,
    inbox,
    jobs,
    ledger,
    messages,
    withheld,
)
from curator_service.store import base as schema
from service_kit.context.context import ServiceContext
from service_kit.store.base import Clock, utc_now


def open_context(settings: Settings, clock: Clock = utc_now) -> ServiceContext:
    """The curator's database, keys, outbox and audit log."""
    return ServiceContext.of_folder(settings, "blindopt-curator", schema, clock)
