"""The first page: how many runs are in which state, and the newest runs."""

from collections.abc import Sequence

from starlette.responses import Response

from blindopt import wire
from service_kit.console import Page, Pages
from service_kit.console.notices import certificate_problems

pages = Pages()
_SHOWN = 10


@pages.get("/", roles=("vendor", "viewer"), nav="Home")
async def home(page: Page) -> Response:
    listed = await page.api.read("/v1/runs", wire.RunPage, order="newest", page_size=_SHOWN, archived=False)
    counts = [
        ("under way", listed.counts.running + listed.counts.queued),
        ("waiting for people", listed.counts.waiting_for_people),
        ("waiting for their curator", listed.counts.waiting_for_curator),
        ("waiting for their engine", listed.counts.waiting_for_engine),
        ("paused", listed.counts.paused),
        ("failed", listed.counts.failed),
    ]
    more, steps = listed.next_page_token is not None, _first_steps(listed.runs) if page.may("vendor") else []
    return page.show(
        "home.html",
        title="Home",
        counts=counts,
        runs=listed.runs,
        more=more,
        steps=steps,
        certificates=await certificate_problems(page),
        links=(await page.api.get("/v1/links"))["links"],
    )


def _first_steps(runs: Sequence[wire.RunView]) -> list[tuple[str, str | None, bool]]:
    """Name, path and whether it is done, of each step to a first recommendation; none once a run has ended."""
    if any(run.ended_at and run.trials for run in runs):
        return []
    path = f"/runs/{runs[0].id}" if runs else None
    return [
        ("Get a grant from an owner", None, bool(runs)),
        ("Test the connection and start a run", "/start", bool(runs)),
        ("Wait for the first answers", path, any(run.trials for run in runs)),
        ("See what the model expects of each candidate", path and f"{path}/posterior", False),
        ("Hand the recommendation over to the owner", path, False),
        ("Download the trials", path and f"{path}/trials", False),
    ]
