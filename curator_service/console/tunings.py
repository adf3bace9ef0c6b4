"""Tunings: private choice of hyper-parameters. The form has an input for each field of a method."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

from starlette.responses import Response

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from curator_service.console import reading
from curator_service.console.reading import follow_job
from service_kit.console import ApiProblem, Form, Page, Pages, downloads
from service_kit.console.forms import Body, inlined, sent
from service_kit.console.words import words

pages = Pages()
_TRAIL = [("Tunings", "/tunings")]
_CHOSEN = ("validation_dataset_id", "score.kind", "score.training_dataset_id", "method.name")
_CHANGED = "You changed something after the preview, so nothing was charged. This is the price and the promise now."
Datasets = dict[str, wire.DatasetView]


@pages.get("/tunings", roles=("owner",), nav="Tunings", section="Studies")
async def listed(page: Page) -> Response:
    if page.query.get("as"):
        return await downloads.listing(page, "/v1/tunings", "tunings", "tunings", wire.TuningView)
    listing = await page.api.get("/v1/tunings", page_token=page.query.get("page_token"))
    return page.show("tunings.html", title="Tunings", listing=listing)


@pages.get("/tunings/new", roles=("owner",))
async def new(page: Page) -> Response:
    """The choice of records, score and method; then the form of that method. ``?from=``: with values of another."""
    datasets = await _datasets(page)
    if (other := page.query.get("from")) is not None:
        spec = (await page.api.read(f"/v1/tunings/{other}", wire.TuningView)).spec
        training = spec.score.training_dataset_id if isinstance(spec.score, wire.LogisticScore) else None
        columns = _shared(datasets, spec.validation_dataset_id, training)
        form = again(spec.model_dump(mode="json"), columns)
    else:
        chosen = {name: page.query[name] for name in _CHOSEN if name in page.query}
        form = Form.blank(**{"score.kind": "logistic", "method.name": "grid_exponential"} | chosen)
        if page.query.get("go") is None:
            return _choice(page, form, datasets)
    _check_choice(form, datasets)
    if not form.ok:
        return _choice(page, form, datasets)
    if other is None:
        form.fill(defaults(form.get("method.name"), form.get("score.kind")))
    return _form(page, form, datasets)


def _check_choice(form: Form, datasets: Datasets) -> None:
    if form.get("validation_dataset_id") not in datasets:
        form.wrong("validation_dataset_id", "Choose the private records")
    if form.get("method.name") not in METHODS:
        form.wrong("method.name", "Choose a method")
    if form.get("score.kind") == "http":
        if form.get("method.name") in LIPSCHITZ:
            form.wrong(
                "method.name", "This method is for the built-in score alone: its promise rests on how that is trained"
            )
        return
    if form.get("score.kind") != "logistic":
        form.wrong("score.kind", "Choose where scores come from")
    training = datasets.get(form.get("score.training_dataset_id"))
    if training is None or not training.public:
        form.wrong("score.training_dataset_id", "Choose public records for the models to be trained on")
    elif form.ok and not _shared(datasets, form.get("validation_dataset_id"), form.get("score.training_dataset_id")):
        form.wrong("score.training_dataset_id", "The two datasets have no column in common")


async def _datasets(page: Page) -> Datasets:
    return {dataset.id: dataset for dataset in await reading.datasets(page.api) if dataset.state == "active"}


def _shared(datasets: Datasets, validation: str | None, training: str | None) -> list[str]:
    private, public = datasets.get(validation or ""), datasets.get(training or "")
    if private is None or public is None:
        return []
    names = {column.name for column in public.columns}
    return [column.name for column in private.columns if column.name in names]


def _choice(page: Page, form: Form, datasets: Datasets) -> Response:
    context = {"datasets": list(datasets.values()), "methods": OFFERED}
    status = 200 if form.ok else 422
    return page.show("tuning_new.html", title="New tuning", trail=_TRAIL, status=status, form=form, **context)


def _form(page: Page, form: Form, datasets: Datasets, status: int = 200, **preview: Any) -> Response:
    """The form of the method; ``preview`` may hold a report, and the digest of the tuning that it is about."""
    chosen = {name: form.get(name) for name in _CHOSEN}
    title = METHODS[chosen["method.name"]].title
    context: dict[str, Any] = {
        "private": datasets[chosen["validation_dataset_id"]],
        "public": datasets.get(chosen["score.training_dataset_id"]),
        "columns": _shared(datasets, chosen["validation_dataset_id"], chosen["score.training_dataset_id"]),
        "method_title": title,
        "chosen": chosen,
        "rules": _RULES,
        "report": None,
        "seen": None,
        "changed": None,
    }
    trail = [*_TRAIL, ("New tuning", "/tunings/new")]
    return page.show(
        "tuning_form.html", title=f"New tuning: {title}", trail=trail, form=form, status=status, **context | preview
    )


@pages.post("/tunings/new", roles=("owner",))
async def act(page: Page, form: Form) -> Response:
    """Show the cost and guarantee of a tuning, or start the tuning that was shown."""
    datasets = await _datasets(page)
    _check_choice(form, datasets)
    if not form.ok:
        return _choice(page, form.again(), datasets)
    body = body_of(form)
    if not form.ok:
        return _form(page, form.again(), datasets, 422)
    tuning_sent = sent(body)
    seen, starts = digest(tuning_sent), form.get("go") == "start"
    try:
        if not starts or form.get("seen") != seen:
            report = await page.api.ask("/v1/tunings:preview", wire.TuningReport, tuning_sent)
            changed = _CHANGED if starts else None
            return _form(page, form.again(), datasets, report=report, seen=seen, changed=changed)
        started = await page.api.ask("/v1/tunings", wire.TuningView, tuning_sent, key=form.key)
    except ApiProblem as problem:
        return _form(page, form.failed(problem, whole(form), body), datasets, problem.status)
    return page.go(f"/tunings/{started.id}", "Charged, and under way.", mood="note")


@pages.get("/tunings/{tuning_id}", roles=("owner",))
async def tuning(page: Page) -> Response:
    if page.query.get("as") == "json":
        return page.stream(_path(page))
    view = await page.api.get(_path(page))
    dataset = await page.api.get(f"/v1/datasets/{view['validation_dataset_id']}")
    title = METHODS[view["spec"]["method"]["name"]].title
    context = {"tuning": view, "dataset": dataset, "method_title": title}
    return page.show("tuning.html", title=view["name"], trail=_TRAIL, **context)


@pages.get("/tunings/{tuning_id}/events", roles=("owner",))
async def events(page: Page) -> Response:
    return await follow_job(page, _path(page))


@pages.post("/tunings/{tuning_id}:cancel", roles=("owner",))
async def cancel(page: Page, form: Form) -> Response:
    await page.api.post(f"{_path(page)}:cancel", key=form.key)
    return page.go(f"/tunings/{page.path['tuning_id']}", "Cancelled. Its charge stays.")


def _path(page: Page) -> str:
    return f"/v1/tunings/{page.path['tuning_id']}"


# --- the form -----------------------------------------------------------------------------------------

AXES = 6
"""Most hyper-parameters that the API takes."""
METHODS = wire.TUNING_METHODS
OFFERED = {name: method for name, method in METHODS.items() if name != "kusner_1"}
"""Methods in the list of a new tuning. ``kusner_1`` is no better than a random value up to epsilon 10: REST has it."""
ASSUMING = [name for name, method in METHODS.items() if "prior" in method.model_fields]
"""Rest on a declared prior, and are private but for a delta."""
LIPSCHITZ = [name for name, method in METHODS.items() if "search" in method.model_fields]
"""Rest on convex training: for the built-in score alone, with a loss that has a slope."""


@dataclass(frozen=True, slots=True)
class Input:
    """The input of a field of the API: its name is its label, and its description is its help."""

    name: str
    """Its path."""
    kind: str
    """Its type in JSON Schema, or ``choice`` if it has options."""
    options: list[str]
    help: str
    default: Any

    @property
    def label(self) -> str:
        """The name in words; symbols as they are."""
        name = self.name.rpartition(".")[2]
        return words(name).capitalize() if len(name) > 3 else name


@cache
def inputs(model: type[wire.Request], within: str) -> list[Input]:
    """An input for each field of a wire model at this path, but for constants and nested models."""
    fields = []
    for name, schema in inlined(model)["properties"].items():
        options = schema.get("enum") or schema.get("items", {}).get("enum", [])
        kind = "choice" if "enum" in schema else schema.get("type", "object")
        if kind != "object" and "const" not in schema:
            path = f"{within}.{name}"
            fields.append(Input(path, kind, options, schema["description"], schema.get("default")))
    return fields


def score_inputs(score: str) -> list[Input]:
    """The inputs of a kind of score, but for the columns of records."""
    if score == "http":
        return inputs(wire.HttpScore, "score")
    names = ("score.threshold", "score.loss", "score.clip")
    return [field for field in inputs(wire.LogisticScore, "score") if field.name in names]


def method_inputs(method: str) -> list[Input]:
    """The inputs of a method, but for those of its Gaussian process."""
    return inputs(METHODS[method], "method")


def process_inputs(method: str) -> dict[str, list[Input]]:
    """The inputs of a method's Gaussian process, by its path; empty without one."""
    models = {"prior": wire.TuningPrior, "search": wire.TuningSearch}
    paths = {f"method.{name}": model for name, model in models.items() if name in METHODS[method].model_fields}
    return {path: inputs(model, path) for path, model in paths.items()}


def defaults(method: str, score: str) -> dict[str, object]:
    """The initial values of a form. Assumptions of a guarantee are left empty: only the owner can know them."""
    process = process_inputs(method)
    # Simulated neighbours must be 7 / delta or more.
    delta = 0.005 if method == "gp_ucb_simulated" else 1e-6
    return {
        **({"grid.0.values": "0.001, 0.01, 0.1, 1, 10", "grid.0.scale": "log10"} if score == "logistic" else {}),
        **{field.name: field.default for field in chain(score_inputs(score), method_inputs(method), *process.values())},
        **({"score.loss": "ramp"} if method in LIPSCHITZ else {}),
        **{f"{path}.lengthscale": 1.0 for path in process},
        "budget.epsilon": "1",
        "budget.index_share": "0.5",
        "budget.delta": delta,
        "caps.epsilon": "2",
        "caps.delta": 2 * delta if method in ASSUMING else None,
    }


def body_of(form: Form) -> Body:
    """The tuning that a form makes; faults are added to ``form.errors``."""
    method = form.get("method.name")
    without = {"grid", "score.features.*.hidden_change", "score.features.*.scale"}
    without |= set() if method in ASSUMING else {"budget.delta"}
    without |= set() if METHODS[method].releases_choice else {"budget.index_share"}
    body = form.read(wire.TuningCreate, without)
    axes = form.items("grid", "name", "values")
    if not axes:
        form.wrong("grid.0.name", "At least one hyper-parameter is needed")
    # First its values: where an error about a whole axis stands.
    body["grid"] = {i: {"values": []} | form.read(wire.TuningAxis, within=f"grid.{i}") for i in axes}
    if form.get("score.kind") == "logistic":
        _check_logistic(form, body)
    return body


def _check_logistic(form: Form, body: Body) -> None:
    features = body["score"]["features"]
    for i in features:
        form.interval(f"score.features.{i}.lower", f"score.features.{i}.upper", "the smallest")
    if not features:
        form.wrong("score.features.0.column", "Choose at least one feature")
    needs_slope = form.get("method.name") in LIPSCHITZ or body["method"].get("use_weights")
    if needs_slope and body["score"]["loss"] == "zero_one":
        form.wrong("score.loss", "This needs a loss that has a slope: ramp, or clipped logistic")


def whole(form: Form) -> dict[str, str]:
    """The inputs where errors about a whole object stand, by its path."""
    return {
        "score": "score.lower" if form.get("score.kind") == "http" else "score.label",
        "method": "method.whole_grid",
    }


def digest(body: Mapping[str, Any]) -> str:
    """A digest of a tuning as it was typed, so that only the tuning that was shown is started."""
    return sha256(json.dumps(body, sort_keys=True).encode())


def again(spec: Mapping[str, Any], columns: Sequence[str]) -> Form:
    """The form of another tuning like this one; ``columns`` are those of both datasets."""
    score = dict(spec["score"])
    if "features" in score:
        score["features"] = {columns.index(f["column"]): f for f in score["features"] if f["column"] in columns}
    grid = {i: axis | {"values": ", ".join(map(_plain, axis["values"]))} for i, axis in enumerate(spec["grid"])}
    form = Form.blank(**{"budget.index_share": "0.5"})
    form.fill({**spec, "name": f"{spec['name']} (again)", "score": score, "grid": grid})
    return form


def _plain(value: float) -> str:
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


_RULES = {
    "ASSUMING": ASSUMING,
    "METHODS": METHODS,
    "AXES": AXES,
    "score_inputs": score_inputs,
    "method_inputs": method_inputs,
    "process_inputs": process_inputs,
}
"""What the template of the form asks of a method and a score."""
