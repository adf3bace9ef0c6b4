"""Forecasts of a study: its quality at several privacy levels."""

from contextlib import suppress
from typing import Any

from starlette.responses import Response

from blindopt import wire
from curator_service.console import figures, groups
from curator_service.console.reading import datasets, follow, follow_job
from service_kit.console import ApiProblem, Form, Page, Pages, downloads

pages = Pages()
_MECHANISMS = ("auto", "planar_laplace", "gaussian", "gaussian_projection", "po_gp_ucb")


def _trail(page: Page, name: str) -> list[tuple[str, str]]:
    return [("Studies", "/studies"), (name, f"/studies/{page.path['study_id']}")]


@pages.get("/studies/{study_id}/forecasts", roles=("owner",))
async def listed(page: Page) -> Response:
    if page.query.get("as"):
        study_id = page.path["study_id"]
        where = f"/v1/studies/{study_id}/forecasts"
        return await downloads.listing(page, where, "forecasts", f"forecasts-{study_id}", wire.ForecastView)
    form = Form.blank(epsilons="0.5, 1, 2, 4, 8", functions=20, rows="public", rows_max=1_000, mechanisms=["auto"])
    return await _listed(page, form)


@pages.get("/studies/{study_id}/forecast/events", roles=("owner",))
async def draft_events(page: Page) -> Response:
    async def look() -> object:
        made = await _of_draft(page, await page.api.get(f"/v1/studies/{page.path['study_id']}"))
        return made and (made.state, made.progress)

    return await follow(page, look)


async def _of_draft(page: Page, study: dict[str, Any]) -> wire.PublicForecast | None:
    """The forecast of a draft, which this starts unless it was made; None of another, or of a release without noise."""
    if study["state"] == "draft":
        with suppress(ApiProblem):
            return await page.api.ask("/v1/studies:forecast", wire.PublicForecast, study["spec"])
    return None


async def _listed(page: Page, form: Form, status: int = 200) -> Response:
    where = f"/v1/studies/{page.path['study_id']}"
    study = await page.api.get(where)
    listing = await page.api.get(f"{where}/forecasts", page_token=page.query.get("page_token"))
    listed = await datasets(page.api)
    context = {"study": study, "listing": listing, "form": form, "mechanisms": _MECHANISMS, "status": status}
    context["tab"] = "Forecast"
    context |= {**_own(study), "forecast": await _of_draft(page, study)}
    if "queries" not in form.values:
        form.fill({"queries": max(2, min(study["spec"]["budget"]["queries"] or 50, 500))})
    context["samples"] = [d for d in listed if d.public and d.id != study["spec"]["dataset_id"]]
    context["is_public"] = any(d.public and d.id == study["spec"]["dataset_id"] for d in listed)
    return page.show("forecasts.html", title="Forecasts", trail=_trail(page, study["spec"]["name"]), **context)


@pages.post("/studies/{study_id}/forecasts", roles=("owner",))
async def start(page: Page, form: Form) -> Response:
    epsilons = [part.strip() for part in form.text("epsilons", "At least one epsilon").replace(";", ",").split(",")]
    mechanisms = form.all("mechanisms")
    if not mechanisms:
        form.wrong("mechanisms", "Choose at least one mechanism")
    numbers = {name: form.integer(name) for name in ("functions", "queries", "rows_max")}
    rows = form.get("rows") or "public"
    sample = form.text("sample_dataset_id", "A dataset") if rows == "sample" else None
    if not form.ok:
        return await _listed(page, form.again(), 422)
    body: dict[str, object] = {"epsilons": [part for part in epsilons if part], "mechanisms": mechanisms, **numbers}
    body |= {"rows": "public" if rows == "sample" else rows, "sample_dataset_id": sample}
    where = f"/studies/{page.path['study_id']}/forecasts"
    try:
        made = await page.api.post(f"/v1{where}", body, key=form.key)
    except ApiProblem as problem:
        return await _listed(page, form.failed(problem, {"kernel": "rows"}, body), problem.status)
    return page.go(f"{where}/{made['id']}")


@pages.get("/studies/{study_id}/forecasts/{forecast_id}", roles=("owner",))
async def forecast(page: Page) -> Response:
    study = await page.api.get(f"/v1/studies/{page.path['study_id']}")
    view = await page.api.get(_path(page))
    if page.query.get("as") == "json":
        return page.stream(_path(page))
    trail = [*_trail(page, study["spec"]["name"]), ("Forecasts", f"/studies/{study['id']}/forecasts")]
    return page.show("forecast.html", title="Forecast", trail=trail, study=study, tab="Forecast", **_shown(view, study))


def _shown(view: dict[str, Any], study: dict[str, Any]) -> dict[str, Any]:
    points = [wire.ForecastPoint.model_validate(point) for point in view["points"]]
    return {"forecast": view, "points": points, "chart": figures.regret(view) if points else None, **_own(study)}


def _own(study: dict[str, Any]) -> dict[str, Any]:
    """The epsilon of a study, of groups that of a record in all, and whether it can still be changed."""
    spec, of_groups = study["spec"], study["spec"]["release"]["mechanism"] == groups.MECHANISM
    own = groups.epsilon_of(spec) if of_groups else spec["release"].get("epsilon") or "0"
    return {"own": own, "draft": study["state"] == "draft", "of_groups": of_groups}


@pages.get("/studies/{study_id}/forecasts/{forecast_id}/events", roles=("owner",))
async def events(page: Page) -> Response:
    return await follow_job(page, _path(page))


@pages.post("/studies/{study_id}/forecasts/{forecast_id}:cancel", roles=("owner",))
async def cancel(page: Page, form: Form) -> Response:
    await page.api.post(f"{_path(page)}:cancel", key=form.key)
    return page.go(f"/studies/{page.path['study_id']}/forecasts", "Cancelled.")


def _path(page: Page) -> str:
    return f"/v1/studies/{page.path['study_id']}/forecasts/{page.path['forecast_id']}"
