"""The table of a run's trials: filtered, sorted, with chosen columns, all of it in the address."""

from typing import Any

from starlette.responses import Response

from blindopt import wire
from service_kit.console import Page, Pages, downloads
from service_kit.console.listings import offset_of, whole_number

pages = Pages()
_SIZE = 100
COLUMNS = {
    "phase": "Phase",
    "row": "#Candidate",
    "mean": "#Expected",
    "sd": "#Standard deviation",
    "acquisition": "#Acquisition",
    "y": "#Answer",
    "version": "#Version",
    "chosen_at": "Chosen",
    "answered_at": "Answered",
}
"""Columns beside the number, with their heads."""
_DEFAULT = ("phase", "row", "mean", "sd", "y", "answered_at")
_SORTED = ("number", "row", "mean", "sd", "acquisition", "y")
_PHASES = {"": "all", "initial": "initial", "algorithm": "algorithm"}
_STATES = {"": "all", "answered": "answered", "declined": "declined", "open": "without an answer"}


@pages.get("/runs/{run_id}/trials", roles=("vendor", "viewer"))
async def trials(page: Page) -> Response:
    run_id = page.path["run_id"]
    where = f"/v1/runs/{run_id}/trials"
    filters: dict[str, Any] = {name: whole_number(page, name) for name in ("first", "last", "row")}
    filters |= {name: page.query.get(name) or None for name in ("phase", "state")}
    if page.query.get("as"):
        return await downloads.listing(page, where, "trials", f"trials-{run_id}", wire.TrialView, **filters)
    run = await page.api.read(f"/v1/runs/{run_id}", wire.RunView)
    sort, order = page.query.get("sort", "number"), page.query.get("order", "oldest")
    offset = offset_of(page)
    query: dict[str, Any] = {"sort": sort, "order": order, "offset": offset, "page_size": _SIZE, **filters}
    listed = await page.api.read(where, wire.TrialPage, **query)
    columns = [name for name in page.request.query_params.getlist("column") if name in COLUMNS] or list(_DEFAULT)
    values: dict[str, Any] = {
        "run": run,
        "listed": listed,
        "columns": {name: COLUMNS[name] for name in COLUMNS if name in columns},
        "every_column": COLUMNS,
        "sort": sort,
        "sorted": _SORTED,
        "order": order,
        "offset": offset,
        "size": _SIZE,
        "phases": _PHASES,
        "states": _STATES,
    }
    return page.show("run_trials.html", title=run.name, trail=[("Runs", "/runs")], **values)
