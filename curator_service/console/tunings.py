"""Tunings: private choice of hyper-parameters."""

from typing import Any

from starlette.responses import Response

from blindopt import wire
from curator_service.console import reading, tuning_form
from curator_service.console.reading import follow_job
from service_kit.console import ApiProblem, Form, Page, Pages, downloads
from service_kit.console.forms import sent

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
        form = tuning_form.again(spec.model_dump(mode="json"), columns)
    else:
        chosen = {name: page.query[name] for name in _CHOSEN if name in page.query}
        form = Form.blank(**{"score.kind": "logistic", "method.name": "grid_exponential"} | chosen)
        if page.query.get("go") is None:
            return _choice(page, form, datasets)
    _check_choice(form, datasets)
    if not form.ok:
        return _choice(page, form, datasets)
    if other is None:
        form.fill(tuning_form.defaults(form.get("method.name"), form.get("score.kind")))
    return _form(page, form, datasets)


def _check_choice(form: Form, datasets: Datasets) -> None:
    if form.get("validation_dataset_id") not in datasets:
        form.wrong("validation_dataset_id", "Choose the private records")
    if form.get("method.name") not in tuning_form.METHODS:
        form.wrong("method.name", "Choose a method")
    if form.get("score.kind") == "http":
        if form.get("method.name") in tuning_form.LIPSCHITZ:
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
    context = {"datasets": list(datasets.values()), "methods": tuning_form.OFFERED}
    status = 200 if form.ok else 422
    return page.show("tuning_new.html", title="New tuning", trail=_TRAIL, status=status, form=form, **context)


def _form(page: Page, form: Form, datasets: Datasets, status: int = 200, **preview: Any) -> Response:
    """The form of the method; ``preview`` may hold a report, and the digest of the tuning that it is about."""
    chosen = {name: form.get(name) for name in _CHOSEN}
    title = tuning_form.METHODS[chosen["method.name"]].title
    context: dict[str, Any] = {
        "private": datasets[chosen["validation_dataset_id"]],
        "public": datasets.get(chosen["score.training_dataset_id"]),
        "columns": _shared(datasets, chosen["validation_dataset_id"], chosen["score.training_dataset_id"]),
        "method_title": title,
        "chosen": chosen,
        "rules": tuning_form,
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
    body = tuning_form.body_of(form)
    if not form.ok:
        return _form(page, form.again(), datasets, 422)
    tuning_sent = sent(body)
    seen, starts = tuning_form.digest(tuning_sent), form.get("go") == "start"
    try:
        if not starts or form.get("seen") != seen:
            report = await page.api.ask("/v1/tunings:preview", wire.TuningReport, tuning_sent)
            changed = _CHANGED if starts else None
            return _form(page, form.again(), datasets, report=report, seen=seen, changed=changed)
        started = await page.api.ask("/v1/tunings", wire.TuningView, tuning_sent, key=form.key)
    except ApiProblem as problem:
        return _form(page, form.failed(problem, tuning_form.whole(form), body), datasets, problem.status)
    return page.go(f"/tunings/{started.id}", "Charged, and under way.", mood="note")


@pages.get("/tunings/{tuning_id}", roles=("owner",))
async def tuning(page: Page) -> Response:
    if page.query.get("as") == "json":
        return page.stream(_path(page))
    view = await page.api.get(_path(page))
    dataset = await page.api.get(f"/v1/datasets/{view['validation_dataset_id']}")
    title = tuning_form.METHODS[view["spec"]["method"]["name"]].title
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
