"""The first page: what is under way, and what needs somebody."""

from starlette.responses import Response

from blindopt import wire
from service_kit.console import Page, Pages

pages = Pages()
_SHOWN = 10


@pages.get("/", roles=("vendor", "viewer"), nav="Home")
async def home(page: Page) -> Response:
    """Where one lands after the login."""
    found = await page.api.read("/v1/runs", wire.RunPage, order="newest", page_size=_SHOWN)
    counts = [
        ("under way", found.counts.running + found.counts.queued),
        ("waiting for people", found.counts.waiting_for_people),
        ("waiting for their curator", found.counts.waiting_for_curator),
        ("paused", found.counts.paused),
        ("failed", found.counts.failed),
    ]
    return page.show("home.html", title="Home", counts=counts, runs=found.runs, more=found.next_page_token is not None)
