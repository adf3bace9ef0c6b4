"""The curator's console: pages for owners, measurers and auditors, over the curator's own API."""

from pathlib import Path

from curator_service.console import (
    accounts,
    datasets,
    drafts,
    forecasts,
    grants,
    groups,
    home,
    inbox,
    log,
    messages,
    private_bounds,
    studies,
    tunings,
    uploads,
)
from service_kit.console import Console


def build() -> Console:
    # The order of the menu.
    modules = (
        home,
        uploads,
        datasets,
        private_bounds,
        drafts,  # before studies: /studies/new is no study
        studies,
        groups,
        forecasts,
        grants,
        messages,
        inbox,
        tunings,
        accounts,
        log,
    )
    return Console("Curator", [*(module.pages for module in modules), log.notices], Path(__file__).parent)
