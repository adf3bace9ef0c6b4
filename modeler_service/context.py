"""The modeler's database, keys and log, for the service and for the command line."""

from modeler_service import store
from modeler_service.settings import Settings
from service_kit.context.context import ServiceContext
from service_kit.store.base import Clock, utc_now


def open_context(settings: Settings, clock: Clock = utc_now) -> ServiceContext:
    return ServiceContext.of_folder(settings, "blindopt-modeler", store, clock)
