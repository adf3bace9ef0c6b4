"""The modeler's console: pages for vendors and viewers, over the modeler's own API."""

from pathlib import Path

from modeler_service.console import home, log, notices, runs, start, trials
from service_kit.console import Console


def build() -> Console:
    """The console, before it is given its service."""
    return Console(
        "Modeler", [home.pages, runs.pages, trials.pages, start.pages, log.pages, notices.pages], Path(__file__).parent
    )
