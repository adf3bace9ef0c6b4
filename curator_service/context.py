"""Open the curator's data folder, for the service and for the command line."""

import curator_service.budget.table
import curator_service.datasets.table
import curator_service.erasure.table
import curator_service.queries.table
import curator_service.studies.table  # noqa: F401  every table is there
from curator_service import store  # noqa: F401  every table is there
from curator_service.settings import Settings
from curator_service.store import base as schema
from service_kit.context.context import ServiceContext
from service_kit.store.base import Clock, utc_now


def open_context(settings: Settings, clock: Clock = utc_now) -> ServiceContext:
    return ServiceContext.of_folder(settings, "blindopt-curator", schema, clock)
