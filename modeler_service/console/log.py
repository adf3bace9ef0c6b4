"""The audit log: its records, newest first, and whether it verifies."""

from starlette.responses import Response

from blindopt import wire
from service_kit.console import Page, Pages
from service_kit.console.records import add_log_pages, log_state, log_values

pages = Pages()
_GROUPS = ("runs", "queries", "messages", "grants", "people", "log")
_RUNS = 200


@pages.get("/log", roles=("vendor", "viewer"), nav="Audit")
async def log(page: Page) -> Response:
    """Records, and the state of the log."""
    listed = await page.api.read("/v1/runs", wire.RunPage, order="newest", page_size=_RUNS)
    runs = [(run.id, f"{run.name} ({run.id[-6:]})") for run in listed.runs]
    context = {"abouts": runs, "about_label": "Run", "grants": [], **await log_values(page, _GROUPS)}
    return page.show("log.html", title="Audit log", **context, **await log_state(page))


@pages.get("/runs/{run_id}/log", roles=("vendor", "viewer"))
async def of_run(page: Page) -> Response:
    run_id = page.path["run_id"]
    run = await page.api.read(f"/v1/runs/{run_id}", wire.RunView)
    context = {"run": run, "abouts": [], "grants": [], **await log_values(page, _GROUPS, about=run_id)}
    return page.show("run_log.html", title=run.name, trail=[("Runs", "/runs")], **context)


add_log_pages(pages, ("vendor", "viewer"))
