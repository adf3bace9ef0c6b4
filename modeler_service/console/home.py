"""The first page: how many runs are in which state, and the newest runs."""

from starlette.responses import Response

from blindopt import wire
from service_kit.console import Page, Pages

pages = Pages()
_SHOWN = 10


@pages.get("/", roles=("vendor", "viewer"), nav="Home")
async def home(page: Page) -> Response:
    """Show the first page after the login."""
    listed = await page.api.read("/v1/runs", wire.RunPage, order="newest", page_size=_SHOWN)
    counts = [
        ("under way", listed.counts.running + listed.counts.queued),
        ("waiting for people", listed.counts.waiting_for_people),
        ("waiting for their curator", listed.counts.waiting_for_curator),
        ("paused", listed.counts.paused),
        ("failed", listed.counts.failed),
    ]
    return page.show(
        "home.html", title="Home", counts=counts, runs=listed.runs, more=listed.next_page_token is not None
    )
