"""Runs: the list, a run live, its posterior, its trials, a comparison, and a vendor's commands."""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from starlette.responses import Response

from blindopt import wire
from blindopt.answer_worth import unplaced
from modeler_service.console import figures
from modeler_service.console.messages import messages_of
from service_kit.console import ApiProblem, Form, Page, Pages, downloads
from service_kit.console.housekeeping import add_housekeeping, chosen
from service_kit.console.listings import offset_of, whole_number

pages = Pages()
_DRAWN_MAX = 500
_LAST = 5
_COMPARED_MAX = 6
_TRAIL = [("Runs", "/runs")]
_TRIALS = 100
_COLUMNS = {
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


@pages.get("/runs", roles=("vendor", "viewer"), nav="Runs")
async def runs(page: Page) -> Response:
    if page.query.get("as"):
        return await downloads.listing(page, "/v1/runs", "runs", "runs", wire.RunView, **chosen(page))
    query = {"order": "newest", "page_size": 50, "page_token": page.query.get("page_token"), **chosen(page)}
    listed = await page.api.read("/v1/runs", wire.RunPage, **query)
    return page.show("runs_list.html", title="Runs", listed=listed)


async def curve_of(page: Page, run_id: str) -> wire.RunCurve:
    """Return the course of a run in the range of the address, in as many points as a chart can show."""
    trial_range = {name: whole_number(page, name) or None for name in ("first", "last")}
    return await page.api.read(f"/v1/runs/{run_id}/curve", wire.RunCurve, points=_DRAWN_MAX, **trial_range)


async def _live_values(page: Page, run_id: str) -> dict[str, Any]:
    run = await page.api.read(f"/v1/runs/{run_id}", wire.RunView)
    curve = await curve_of(page, run_id)
    last = {"order": "newest", "page_size": _LAST}
    trials = await page.api.read(f"/v1/runs/{run_id}/trials", wire.TrialPage, **last)
    recommendation = run.recommendation
    if recommendation is None and run.trials:
        try:
            recommendation = await page.api.read(f"/v1/runs/{run_id}/recommendation", wire.Recommendation)
        except ApiProblem:  # too much to compute at once, or another is being computed
            recommendation = None
    has_answers = any(point.y is not None for point in curve.points)
    figures_shown = [figures.convergence(run, curve.points), figures.beliefs(run, curve.points)] if has_answers else []
    return {
        "run": run,
        "charts": [chart for chart in figures_shown if chart is not None],
        "last": trials.trials,
        "curve": curve,
        "recommendation": recommendation,
        "interval_name": recommendation and wire.INTERVAL_NAMES[recommendation.interval_kind],
        "unplaced": _unplaced(run, recommendation),
        "problem": run.problem and sentence(run.problem),
        "most": run.queries_max,
    }


def _unplaced(run: wire.RunView, recommendation: wire.Recommendation | None) -> str | None:
    """What the interval of a recommendation says, if the noise of the answers hides the candidates."""
    if run.study is None or recommendation is None or recommendation.interval is None:
        return None
    cap = run.study.budget.queries
    remaining = None if cap is None else max(0, cap - run.trials)
    return unplaced(run.study.answers, recommendation.interval, 0 if run.ended_because == "refused" else remaining)


def sentence(problem: wire.RunProblem) -> str:
    """Why a run waits or failed, in words. A refusal of the curator is quoted without its code and status."""
    detail = re.sub(r"^[a-z_]+ \(\d{3}\): ", "", problem.detail)
    if problem.code != "privacy_budget_exhausted":
        return f"{detail[:1].upper()}{detail[1:]}"
    if limit := re.match(r"queries: \d+ requested with \d+ of (\d+) (?:spent|used)", detail):
        return f"The owner's limit of {int(limit[1]):,} measurements is used up."
    return f"The owner's privacy budget for this study is used up: {detail}"


@pages.get("/runs/{run_id}", roles=("vendor", "viewer"))
async def run(page: Page) -> Response:
    return await _shown(page)


async def _shown(page: Page, labels: Form | None = None) -> Response:
    values = await _live_values(page, page.path["run_id"])
    view = values["run"]
    assert isinstance(view, wire.RunView)
    meta = await page.api.read("/v1/meta", wire.ModelerMeta)
    return page.show(
        "run.html",
        title=view.name,
        trail=_TRAIL,
        exports=meta.exports,
        messages=await messages_of(page, view.id),
        labels=labels,
        status=422 if labels else 200,
        **values,
    )


@pages.get("/runs/{run_id}/events", roles=("vendor", "viewer"))
async def events(page: Page) -> Response:
    return page.stream(f"/v1/runs/{page.path['run_id']}/events")


@pages.get("/runs/{run_id}/good", roles=("vendor", "viewer"))
async def good_candidates(page: Page) -> Response:
    """The good candidates that a run found, and others that probably are good; with ``as``, a CSV file."""
    run_id = page.path["run_id"]
    view = await page.api.read(f"/v1/runs/{run_id}", wire.RunView)
    best = await page.api.read(f"/v1/runs/{run_id}/recommendation", wire.Recommendation)
    if best.good is None or view.study is None:
        return page.go(f"/runs/{run_id}", "This run looks for the best candidate. It has no list.", mood="bad")
    if page.query.get("as") == "csv":
        rows = [(good.row, good.mean, good.probability, good.queried) for good in best.good.candidates]
        return page.csv(f"good-{run_id}", ("candidate", "mean", "probability", "queried"), rows)
    trail = [*_TRAIL, (view.name, f"/runs/{run_id}")]
    return page.show("run_good.html", title="Good candidates", trail=trail, run=view, good=best.good)


@pages.get("/runs/{run_id}/posterior", roles=("vendor", "viewer"))
async def posterior(page: Page) -> Response:
    """Show the model: its map, slices and relevance by axis, the best candidates, and where it would ask next."""
    path = f"/v1/runs/{page.path['run_id']}"
    view = await page.api.read(path, wire.RunView)
    values: dict[str, Any] = {"run": view, "charts": [], "top": None, "next": None, "refused": None}
    pending = await page.api.read(f"{path}/trials", wire.TrialPage, state="open", page_size=_LAST)
    try:
        posterior_map = await page.api.read(f"{path}/map", wire.PosteriorMap)
        values["charts"] = [figures.landscape(view, posterior_map)]
        if posterior_map.points and posterior_map.points[0].mean is not None:
            values["top"] = await page.api.read(f"{path}/posterior", wire.PosteriorPage, top=20)
            values["next"] = await page.api.read(f"{path}/posterior", wire.PosteriorPage, top=5, by="improvement")
            slices = await page.api.read(f"{path}/slices", wire.PosteriorSlices)
            values["charts"] += figures.relevance(slices)
    except ApiProblem as problem:
        values["refused"] = problem
    return page.show("run_posterior.html", title=view.name, trail=_TRAIL, pending=pending.trials, **values)


@pages.get("/runs/{run_id}/export", roles=("vendor", "viewer"))
async def export(page: Page) -> Response:
    return page.stream(f"/v1/runs/{page.path['run_id']}/export", format=page.query.get("format", "json"))


@pages.get("/compare", roles=("vendor", "viewer"))
async def compare(page: Page) -> Response:
    run_ids = list(dict.fromkeys(page.request.query_params.getlist("run")))
    compared: list[tuple[wire.RunView, Sequence[wire.CurvePoint]]] = []
    for run_id in islice(run_ids, _COMPARED_MAX):
        view = await page.api.read(f"/v1/runs/{run_id}", wire.RunView)
        compared.append((view, (await curve_of(page, run_id)).points))
    studies = {view.study_id for view, _ in compared}
    chart = figures.compared(compared) if compared else None
    values: dict[str, Any] = {
        "runs": [view for view, _ in compared],
        "chart": chart,
        "studies": studies,
        "most": _COMPARED_MAX,
    }
    return page.show("compare.html", title="Compare runs", trail=_TRAIL, requested=len(run_ids), **values)


# --- a vendor's commands ------------------------------------------------------------------------------


def _add_command(name: str, done: str) -> None:
    """Add a command of a run without further fields; ``done`` is shown when the API has taken it."""

    @pages.post(f"/runs/{{run_id}}:{name}", roles=("vendor",))
    async def command(page: Page, form: Form) -> Response:
        return await _do(page, form, name, done)


_add_command("pause", "The run pauses after the current query.")
_add_command("resume", "The run continues.")
_add_command("stop", "The run ends after the current query. Its answers are kept.")
add_housekeeping(
    pages,
    "/runs",
    "run_id",
    "vendor",
    {
        "archive": "The run is archived: it is under Runs, Archived.",
        "unarchive": "The run is out of the archive.",
        "label": "Note and tags are saved.",
        "delete": "The run is deleted. The logs and the owner's charges stay.",
    },
    _shown,
)


@pages.post("/runs/{run_id}:replace_token", roles=("vendor",))
async def replace_token(page: Page, form: Form) -> Response:
    """Replace the token of a run by another one of the same grant."""
    return await _do(page, form, "replace_token", "The run continues with the new token.", {"token": form.get("token")})


async def _do(page: Page, form: Form, command: str, done: str, body: object = None) -> Response:
    where = f"/runs/{page.path['run_id']}"
    try:
        await page.api.post(f"/v1{where}:{command}", body, key=form.key)
    except ApiProblem as problem:
        return page.go(where, problem.in_words, mood="bad")
    return page.go(where, done)


@pages.get("/runs/{run_id}/trials", roles=("vendor", "viewer"))
async def run_trials(page: Page) -> Response:
    run_id = page.path["run_id"]
    where = f"/v1/runs/{run_id}/trials"
    filters: dict[str, Any] = {name: whole_number(page, name) for name in ("first", "last", "row")}
    filters |= {name: page.query.get(name) or None for name in ("phase", "state")}
    if page.query.get("as"):
        return await downloads.listing(page, where, "trials", f"trials-{run_id}", wire.TrialView, **filters)
    run = await page.api.read(f"/v1/runs/{run_id}", wire.RunView)
    sort, order = page.query.get("sort", "number"), page.query.get("order", "oldest")
    offset = offset_of(page)
    query: dict[str, Any] = {"sort": sort, "order": order, "offset": offset, "page_size": _TRIALS, **filters}
    listed = await page.api.read(where, wire.TrialPage, **query)
    columns = [name for name in page.request.query_params.getlist("column") if name in _COLUMNS] or list(_DEFAULT)
    values: dict[str, Any] = {
        "run": run,
        "listed": listed,
        "columns": {name: _COLUMNS[name] for name in _COLUMNS if name in columns},
        "every_column": _COLUMNS,
        "sort": sort,
        "sorted": _SORTED,
        "order": order,
        "offset": offset,
        "size": _TRIALS,
        "phases": _PHASES,
        "states": _STATES,
    }
    return page.show("run_trials.html", title=run.name, trail=_TRAIL, **values)
