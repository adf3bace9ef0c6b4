"""The audit log: its records, newest first, and whether it verifies."""

from starlette.responses import Response

from blindopt import wire
from service_kit.console import Page, Pages
from service_kit.console.acts import Acts
from service_kit.console.records import add_log_pages, log_state, log_values

pages = Pages()
_GROUPS = ("runs", "queries", "messages", "grants", "people", "log")
_RUNS = 200
_ACTS: Acts = {
    "exchange": ("exchanged a request and a reply with a curator",),
    "exchange.query": ("queried a curator",),
    "message.sent": ("sent the owner a message of {run_id}",),
    "message.updated": ("read the owner's decision about a message of {run_id}",),
    "run.archived": ("archived {run_id}",),
    "run.unarchived": ("took {run_id} out of the archive",),
    "run.labelled": ("changed note and tags of {run_id}",),
    "run.created": ("started {run_id} with {algorithm}",),
    "run.deleted": ("deleted {run_id}",),
    "run.ended": ("ended {run_id}: {state}",),
    "run.observations_imported": ("imported {observations} earlier answers into {run_id}",),
    "run.paused": ("paused {run_id}",),
    "run.pause_asked": ("requested a pause of {run_id}",),
    "run.planned": ("planned {run_id}",),
    "run.resumed": ("resumed {run_id}",),
    "run.stop_asked": ("requested the end of {run_id}",),
    "run.token_replaced": ("replaced the token of {run_id}",),
}


@pages.get("/log", roles=("vendor", "viewer"), nav="Audit")
async def log(page: Page) -> Response:
    """Records, and the state of the log."""
    listed = await page.api.read("/v1/runs", wire.RunPage, order="newest", page_size=_RUNS)
    runs = [(run.id, f"{run.name} ({run.id[-6:]})") for run in listed.runs]
    context = {"abouts": runs, "about_label": "Run", "grants": [], **await log_values(page, _GROUPS, _ACTS, dict(runs))}
    return page.show("log.html", title="Audit log", **context, **await log_state(page))


@pages.get("/runs/{run_id}/log", roles=("vendor", "viewer"))
async def of_run(page: Page) -> Response:
    run_id = page.path["run_id"]
    run = await page.api.read(f"/v1/runs/{run_id}", wire.RunView)
    values = await log_values(page, _GROUPS, _ACTS, {run_id: run.name}, about=run_id)
    context = {"run": run, "abouts": [], "grants": [], **values}
    return page.show("run_log.html", title=run.name, trail=[("Runs", "/runs")], **context)


add_log_pages(pages, ("vendor", "viewer"))
