"""Tunings: choosing hyper-parameters by private records, at a price."""

from typing import Any

from starlette.responses import Response

from curator_service.console.live import follow
from curator_service.console.reading import every
from shared import wire
from shared.serving.console import ApiProblem, Form, Page, Pages, downloads

pages = Pages()
_TRAIL = [("Tunings", "/tunings")]
LOSSES = (
    ("zero_one", "Share of wrong labels (zero-one)"),
    ("ramp", "Ramp: (1 - margin) / 2"),
    ("clipped_logistic", "Logistic, clipped at 1"),
)


@pages.get("/tunings", roles=("owner",), nav="Tunings")
async def listed(page: Page) -> Response:
    """All of them."""
    if page.query.get("as"):
        return await downloads.listing(page, "/v1/tunings", "tunings", "tunings", wire.TuningView)
    found = await page.api.get("/v1/tunings", page_token=page.query.get("page_token"))
    return page.show("tunings.html", title="Tunings", found=found)


@pages.get("/tunings/new", roles=("owner",))
async def new(page: Page) -> Response:
    """The datasets first: their columns are what the rest is about."""
    chosen = {"validation": page.query.get("dataset"), "training": page.query.get("training")}
    blank = Form.blank(
        **chosen,
        values="0.001, 0.01, 0.1, 1, 10",
        threshold=0.5,
        loss="zero_one",
        epsilon="1",
        index_share="0.5",
        cap_epsilon="2",
    )
    return await _form(page, blank)


async def _form(page: Page, form: Form, report: dict[str, Any] | None = None, status: int = 200) -> Response:
    datasets = [d for d in await every(page.api, "/v1/datasets", "datasets") if d["state"] == "active"]
    by_id = {d["id"]: d for d in datasets}
    private, public = by_id.get(form.get("validation")), by_id.get(form.get("training"))
    shared: list[str] = []
    if private is not None and public is not None:
        known = {column["name"] for column in public["columns"]}
        shared = [column["name"] for column in private["columns"] if column["name"] in known]
    told: dict[str, Any] = {"datasets": datasets, "columns": shared, "report": report, "losses": LOSSES}
    return page.show("tuning_new.html", title="New tuning", trail=_TRAIL, form=form, status=status, **told)


@pages.post("/tunings/new", roles=("owner",))
async def act(page: Page, form: Form) -> Response:
    """Show what it would cost and promise, or begin."""
    body = _body(form)
    if not form.ok:
        return await _form(page, form.again(), status=422)
    preview = form.get("go") != "start"
    try:
        if preview:
            return await _form(page, form.again(), await page.api.post("/v1/tunings:preview", body))
        made = await page.api.post("/v1/tunings", body, key=form.key)
    except ApiProblem as problem:
        return await _form(page, form.failed(problem, _fields(problem, form)), status=problem.status)
    return page.go(f"/tunings/{made['id']}", "Charged, and under way.", mood="note")


def _body(form: Form) -> dict[str, Any]:
    """The tuning as the API takes it: the built-in score over one grid, by the exponential mechanism."""
    values = []
    for part in form.text("values", "At least one value").replace(";", ",").split(","):
        try:
            values.append(float(part))
        except ValueError:
            form.wrong("values", "Write numbers, separated by commas")
    features = []
    for name in _chosen(form):
        place = name.rpartition("_")[2]
        bounds = {part: form.real(f"{part}_{place}") for part in ("lower", "upper")}
        features.append({"column": form.get(f"column_{place}"), **bounds})
    if not features:
        form.wrong("use_0", "Choose at least one feature")
    is_log = len(values) > 1 and all(value > 0 for value in values)
    return {
        "name": form.text("name", "A name"),
        "grid": [{"name": "lambda", "values": values, "scale": "log10" if is_log else "linear"}],
        "score": {
            "kind": "logistic",
            "training_dataset_id": form.text("training", "A public dataset"),
            "features": features,
            "label": form.text("label", "A column"),
            "threshold": form.real("threshold"),
            "loss": form.get("loss") or "zero_one",
        },
        "validation_dataset_id": form.text("validation", "A dataset"),
        "method": {"name": "grid_exponential", "use_weights": form.has("use_weights")},
        "budget": {"epsilon": form.text("epsilon", "epsilon"), "index_share": form.get("index_share") or None},
        "caps": {"epsilon": form.text("cap_epsilon", "A cap")},
    }


def _chosen(form: Form) -> list[str]:
    return [name for name in form.values if name.startswith("use_") and name != "use_weights"]


def _fields(problem: ApiProblem, form: Form) -> dict[str, str]:
    known = {
        "validation_dataset_id": "validation",
        "score.training_dataset_id": "training",
        "caps.epsilon": "cap_epsilon",
    }
    found = dict(known)
    for error in problem.problem.errors or []:
        where = error.field or ""
        parts = where.split(".")
        if "features" in parts and parts[-1] in ("column", "lower", "upper"):
            place = _chosen(form)[int(parts[parts.index("features") + 1])].rpartition("_")[2]
            found[where] = f"{'use' if parts[-1] == 'column' else parts[-1]}_{place}"
        elif where.startswith("grid"):
            found[where] = "values"
        elif parts[-1] in ("training_dataset_id", "label", "threshold", "loss"):
            found[where] = "training" if parts[-1] == "training_dataset_id" else parts[-1]
    return found


@pages.get("/tunings/{tuning_id}", roles=("owner",))
async def one(page: Page) -> Response:
    """One tuning: how far it is, or what it released."""
    tuning = await page.api.get(_path(page))
    if page.query.get("as") == "json":
        return page.stream(_path(page))
    return page.show("tuning.html", title=tuning["name"], trail=_TRAIL, tuning=tuning)


@pages.get("/tunings/{tuning_id}/part", roles=("owner",))
async def part(page: Page) -> Response:
    """The same, as a part of the page."""
    return page.fragment("tuning_part.html", tuning=await page.api.get(_path(page)))


@pages.get("/tunings/{tuning_id}/events", roles=("owner",))
async def events(page: Page) -> Response:
    """Whenever it has moved."""

    async def look() -> object:
        tuning = await page.api.get(_path(page))
        return tuning["state"], tuning["progress"]

    return follow(page, look)


@pages.post("/tunings/{tuning_id}:cancel", roles=("owner",))
async def cancel(page: Page, form: Form) -> Response:
    """End it; what it was charged stays spent."""
    await page.api.post(f"{_path(page)}:cancel", key=form.key)
    return page.go(f"/tunings/{page.path['tuning_id']}", "Cancelled. What it was charged stays spent.")


def _path(page: Page) -> str:
    return f"/v1/tunings/{page.path['tuning_id']}"
