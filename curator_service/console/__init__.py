"""The curator's console: pages for owners, measurers and auditors, over the curator's own API."""

from pathlib import Path

from curator_service.console import home
from shared.serving.console import Console


def build() -> Console:
    """The console, before it is given its service."""
    return Console("Curator", [home.pages], Path(__file__).parent)
