"""Runs: the list, one run live, its posterior, several compared, and what a vendor may tell it to do."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from starlette.responses import Response

from blindopt import wire
from modeler_service.console import figures
from service_kit.console import ApiProblem, Form, Page, Pages, downloads

pages = Pages()
_DRAWN_MAX = 500
_LAST = 5
_COMPARED_MAX = 6
_TRAIL = [("Runs", "/runs")]


@pages.get("/runs", roles=("vendor", "viewer"), nav="Runs")
async def runs(page: Page) -> Response:
    """All runs, the newest first."""
    told = {"order": "newest", "page_size": 50, "page_token": page.query.get("page_token")}
    if page.query.get("as"):
        return await downloads.listing(page, "/v1/runs", "runs", "runs", wire.RunView)
    found = await page.api.read("/v1/runs", wire.RunPage, **told)
    return page.show("runs_list.html", title="Runs", found=found)


async def curve_of(page: Page, run_id: str) -> wire.RunCurve:
    """How a run went, in as many points as a chart can show."""
    return await page.api.read(f"/v1/runs/{run_id}/curve", wire.RunCurve, points=_DRAWN_MAX)


async def _told(page: Page, run_id: str) -> dict[str, Any]:
    """What the live part of a run's page shows."""
    run = await page.api.read(f"/v1/runs/{run_id}", wire.RunView)
    curve = await curve_of(page, run_id)
    last = {"order": "newest", "page_size": _LAST}
    trials = await page.api.read(f"/v1/runs/{run_id}/trials", wire.TrialPage, **last)
    recommendation = run.recommendation
    if recommendation is None and run.trials:
        try:
            recommendation = await page.api.read(f"/v1/runs/{run_id}/recommendation", wire.Recommendation)
        except ApiProblem:  # too much to compute at once, or another is being computed: it is told later
            recommendation = None
    told = any(point.y is not None for point in curve.points)  # until then there is nothing to draw
    drawn = [figures.convergence(run, curve.points), figures.beliefs(curve.points)] if told else []
    return {
        "run": run,
        "charts": [chart for chart in drawn if chart is not None],
        "last": trials.trials,
        "curve": curve,
        "recommendation": recommendation,
        "most": run.iterations + run.initial_rows,
    }


@pages.get("/runs/{run_id}", roles=("vendor", "viewer"))
async def run(page: Page) -> Response:
    """One run."""
    told = await _told(page, page.path["run_id"])
    one = told["run"]
    assert isinstance(one, wire.RunView)
    meta = await page.api.read("/v1/meta", wire.ModelerMeta)
    return page.show("run.html", title=one.name, trail=_TRAIL, exports=meta.exports, **told)


@pages.get("/runs/{run_id}/now", roles=("vendor", "viewer"))
async def now(page: Page) -> Response:
    """The part of a run's page that changes while it goes on; and the numbers of its charts."""
    told = await _told(page, page.path["run_id"])
    if page.query.get("chart"):
        return page.show("run.html", title="", exports=(), **told)
    return page.fragment("run_now.html", **told)


@pages.get("/runs/{run_id}/events", roles=("vendor", "viewer"))
async def events(page: Page) -> Response:
    """News of a run."""
    return page.stream(f"/v1/runs/{page.path['run_id']}/events")


@pages.get("/runs/{run_id}/trials", roles=("vendor", "viewer"))
async def trials(page: Page) -> Response:
    """Every chosen row with its answer."""
    run_id = page.path["run_id"]
    if page.query.get("as"):
        return await downloads.listing(page, f"/v1/runs/{run_id}/trials", "trials", f"trials-{run_id}", wire.TrialView)
    one = await page.api.read(f"/v1/runs/{run_id}", wire.RunView)
    token = page.query.get("page_token")
    found = await page.api.read(f"/v1/runs/{run_id}/trials", wire.TrialPage, page_size=100, page_token=token)
    trail = [*_TRAIL, (one.name, f"/runs/{run_id}")]
    return page.show("run_trials.html", title="Trials", trail=trail, run=one, found=found)


@pages.get("/runs/{run_id}/posterior", roles=("vendor", "viewer"))
async def posterior(page: Page) -> Response:
    """What is believed of the candidates."""
    run_id = page.path["run_id"]
    one = await page.api.read(f"/v1/runs/{run_id}", wire.RunView)
    chart = top = problem = None
    try:
        found = await page.api.read(f"/v1/runs/{run_id}/map", wire.PosteriorMap)
        chart = figures.landscape(found)
        if found.points and found.points[0].mean is not None:
            top = await page.api.read(f"/v1/runs/{run_id}/posterior", wire.PosteriorPage, top=20)
    except ApiProblem as refused:
        problem = refused
    trail = [*_TRAIL, (one.name, f"/runs/{run_id}")]
    told: dict[str, Any] = {"run": one, "chart": chart, "top": top, "refused": problem}
    return page.show("run_posterior.html", title="Posterior", trail=trail, **told)


@pages.get("/runs/{run_id}/export", roles=("vendor", "viewer"))
async def export(page: Page) -> Response:
    """A run as a file."""
    return page.stream(f"/v1/runs/{page.path['run_id']}/export", format=page.query.get("format", "json"))


@pages.get("/compare", roles=("vendor", "viewer"))
async def compare(page: Page) -> Response:
    """Some runs side by side."""
    asked = list(dict.fromkeys(page.request.query_params.getlist("run")))
    found: list[tuple[wire.RunView, Sequence[wire.CurvePoint]]] = []
    for run_id in islice(asked, _COMPARED_MAX):
        one = await page.api.read(f"/v1/runs/{run_id}", wire.RunView)
        found.append((one, (await curve_of(page, run_id)).points))
    studies = {one.study_id for one, _ in found}
    chart = figures.compared(found) if found else None
    told: dict[str, Any] = {
        "runs": [one for one, _ in found],
        "chart": chart,
        "studies": studies,
        "most": _COMPARED_MAX,
    }
    return page.show("compare.html", title="Compare runs", trail=_TRAIL, asked=len(asked), **told)


# --- what a vendor may tell a run ---------------------------------------------------------------------


@pages.post("/runs/{run_id}:pause", roles=("vendor",))
async def pause(page: Page, form: Form) -> Response:
    """Halt it."""
    return await _do(page, form, "pause", "The run pauses after the query under way.")


@pages.post("/runs/{run_id}:resume", roles=("vendor",))
async def resume(page: Page, form: Form) -> Response:
    """Let it go on."""
    return await _do(page, form, "resume", "The run goes on.")


@pages.post("/runs/{run_id}:stop", roles=("vendor",))
async def stop(page: Page, form: Form) -> Response:
    """End it."""
    return await _do(page, form, "stop", "The run ends after the query under way; what was answered is kept.")


async def _do(page: Page, form: Form, what: str, message: str) -> Response:
    run_id = page.path["run_id"]
    try:
        await page.api.post(f"/v1/runs/{run_id}:{what}", key=form.key)
    except ApiProblem as problem:
        return page.go(f"/runs/{run_id}", str(problem), mood="bad")
    return page.go(f"/runs/{run_id}", message)


@pages.post("/runs/{run_id}:replace_token", roles=("vendor",))
async def replace_token(page: Page, form: Form) -> Response:
    """Go on under another token of the same grant."""
    run_id = page.path["run_id"]
    try:
        told = {"token": form.get("token")}
        await page.api.post(f"/v1/runs/{run_id}:replace_token", told, key=form.key)
    except ApiProblem as problem:
        return page.go(f"/runs/{run_id}", f"The token was not taken: {problem}", mood="bad")
    return page.go(f"/runs/{run_id}", "The run goes on under the new token.")
