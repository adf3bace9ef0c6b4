"""The first page: what is under way, and what needs somebody."""

from starlette.responses import Response

from shared import wire
from shared.serving.console import Page, Pages

pages = Pages()
_SHOWN = 10


@pages.get("/", roles=("vendor", "viewer"), nav="Home")
async def home(page: Page) -> Response:
    """Where one lands after the login."""
    found = await page.api.read("/v1/runs", wire.RunPage, order="newest", page_size=200)
    states = [run.state for run in found.runs]
    counts = [
        ("under way", states.count("running") + states.count("queued")),
        ("waiting for people", sum(run.state == "waiting" and run.open_measurements > 0 for run in found.runs)),
        ("waiting for their curator", sum(run.state == "waiting" and not run.open_measurements for run in found.runs)),
        ("paused", states.count("paused")),
        ("failed", states.count("failed")),
    ]
    return page.show("home.html", title="Home", counts=counts, runs=found.runs[:_SHOWN], more=len(states) > _SHOWN)
