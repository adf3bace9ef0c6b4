"""The modeler's console: pages for vendors and viewers, over the modeler's own API."""

from pathlib import Path

from modeler_service.console import home, log, messages, notices, runs, start, trials
from service_kit.console import Console


def build() -> Console:
    """The console, before it is given its service."""
    modules = (home, runs, trials, messages, start, log, notices)
    return Console("Modeler", [module.pages for module in modules], Path(__file__).parent)
