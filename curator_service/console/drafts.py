"""A new study, or a change of a draft, step by step.

Each step is a form that carries the values of the others; the last one creates or changes the draft.
"""

from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any

from starlette.responses import Response

from blindopt import wire
from blindopt.errors import Erased, NotFound
from curator_service.console import drafting, figures, groups, private_bounds, studies
from curator_service.console.drafting import NAMES, STEPS
from curator_service.console.reading import datasets, every
from service_kit.console import ApiProblem, Form, Page, Pages, id_of
from service_kit.console.forms import Body, fresh_key, sent

pages = Pages()
_TRAIL = [("Studies", "/studies")]
_COMPARED = 3


@pages.get("/studies/new", roles=("owner",))
async def new(page: Page) -> Response:
    """The first step: empty, with the values of another study (``?from=``), or of a draft to change (``?change=``)."""
    dataset, form = None, None
    changed = page.query.get("change")
    if (other := changed or page.query.get("from")) is not None:
        study = await page.api.read(f"/v1/studies/{id_of('std', other)}", wire.StudyOwnerView)
        dataset = await page.api.read(f"/v1/datasets/{study.spec.dataset_id}", wire.DatasetView)
        if dataset.erased_at is not None:
            raise Erased("the dataset of this study was erased, with its columns: begin a new study on another dataset")
        form = drafting.again(study.spec.model_dump(mode="json"), dataset)
        if changed is not None:
            form.fill({"change": changed, "replaces": study.spec_sha256})
        elif page.query.get("read") == "release":
            read = {"name": f"{study.spec.name} (another outcome)", "release_of": study.spec.release_of or study.id}
            form.fill(read)
        else:
            form.fill({"name": f"{study.spec.name} (again)"})
        form.values["reached"] = ["review"]
    elif (chosen := page.query.get("dataset")) is not None:
        dataset = await page.api.read(f"/v1/datasets/{id_of('ds', chosen)}", wire.DatasetView)
    chosen_step = page.query.get("step", "")
    first = "features" if other is None and dataset is not None else "data"
    step = chosen_step if changed is not None and chosen_step in NAMES else first
    if page.query.get("read") == "release":
        step = "measurement"
    if form is not None and (epsilon := page.query.get("epsilon")) is not None:  # as chosen from a forecast
        form.values["groups.epsilon" if groups.is_chosen(form) else "release.epsilon"] = [epsilon]
        step = "release"
    if form is not None and page.query.get("use") == "range":
        drafting.use_declared_range(form)
    return await _show(page, form or Form.blank(**drafting.defaults(dataset)), step, dataset)


@pages.post("/studies/new", roles=("owner",))
async def next_step(page: Page, form: Form) -> Response:
    """Show the next step, the one before, or the same step again."""
    step, go = form.get("step"), form.get("go") or "next"
    if step not in NAMES:
        step = "data"
    dataset = await _dataset(page, form)
    if dataset is None:
        return await _show(page, form.again(), "data", None)
    if step == "data":
        _take_defaults(form, dataset)
    if step == "features" and go != "none":
        drafting.tick_bounded(form, [column.name for column in dataset.columns])
    target = go.removeprefix("to:") if go.startswith("to:") and go[3:] in NAMES else ""
    if go == "back":
        target = NAMES[max(0, NAMES.index(step) - 1)]
    if go.startswith("use:"):
        drafting.use_answers(form, go[4:])
        go = "look"
    if go == "range":
        drafting.use_declared_range(form)
        return await _show(page, _fresh(form), "answers", dataset)
    if step == "release" and go == "paste":
        private_bounds.fill_in(form, dataset, None, "exceptions")
        return await _show(page, _fresh(form) if form.ok else form.again(), step, dataset)
    if step == "features" and go in ("paste", "all", "none", "private", "clips"):
        return await _help_with_features(page, form, dataset, go)
    if target and NAMES.index(target) <= NAMES.index(step):
        return await _show(page, _fresh(form), target, dataset)
    target = target or NAMES[min(NAMES.index(step) + 1, len(NAMES) - 1)]
    last = "answers" if step == "review" else NAMES[NAMES.index(target) - 1]
    body = drafting.body_of(form, dataset, last)
    if not form.ok:
        return await _show(page, form.again(), _first_wrong(form, step), dataset)
    if go == "create":
        return await _create(page, form, dataset, body)
    shown: dict[str, Any] = {}
    if last in ("release", "answers"):
        try:
            shown = await _effect(page, form, dataset, body, last, forecast=step in ("release", "answers"))
        except ApiProblem as problem:
            failed = form.failed(problem, drafting.derived(form), body)
            return await _show(page, failed, _first_wrong(failed, step), dataset)
    if go == "look":
        return await _show(page, _fresh(form), step, dataset, shown)
    return await _show(page, _fresh(form), target, dataset, {"checked": shown.get("checked")})


@pages.post("/studies/new/effect", roles=("owner",))
async def effect(page: Page, form: Form) -> Response:
    """What a step promises, costs and finds as it stands, as a part of the page: computed from public values."""
    dataset, step = await _dataset(page, form), "answers" if form.get("step") == "answers" else "release"
    body = {} if dataset is None else drafting.body_so_far(form, dataset, step)
    context: dict[str, Any] = {"problem": next(iter(form.errors.values()), None), "checked": None, "live": True}
    context["spec"] = None
    if form.ok and dataset is not None:
        try:
            context |= await _effect(page, form, dataset, body, step)
        except ApiProblem as problem:
            context["problem"] = problem.in_words
    return page.fragment("answers_part.html" if step == "answers" else "effect_part.html", **context)


async def _effect(
    page: Page, form: Form, dataset: wire.DatasetView, body: Body, step: str, *, forecast: bool = True
) -> dict[str, Any]:
    """The check of a draft, and its public forecast, which this starts if it is wanted.

    Answers are exact until their step was reached. The forecast of that step is at levels of answers.
    """
    if step == "release" and form.get("reached") in NAMES[NAMES.index("answers") :]:
        probe = replace(form, errors={}, problem=None)
        whole = drafting.body_of(probe, dataset, "answers")
        body = whole if probe.ok else body
    spec = {"answers": {"mechanism": "none"}} | await _sent(page, form, body)
    made = None
    if forecast:
        with suppress(ApiProblem):  # such as of a dataset of one record, or of a release without noise
            made = await page.api.ask(
                "/v1/studies:forecast", wire.PublicForecast, spec, of_answers="true" if step == "answers" else None
            )
    # Second: what it says of a search reads the forecast, if that has ended.
    checked = protected = await page.api.ask("/v1/studies:check", wire.StudyCheck, spec)
    alone = None
    if "answers" not in body:  # their step is still to come: only the release has a figure
        with suppress(ApiProblem, ArithmeticError):
            little = drafting.with_little_answers(form) | await _sent(page, form, body)
            protected = await page.api.ask("/v1/studies:check", wire.StudyCheck, little)
            figures_of_both = protected.epsilon_hidden, protected.epsilon_whole
            alone = [float(Decimal(repr(figure)) - drafting.LITTLE) for figure in figures_of_both if figure is not None]
    return {
        "spec": spec,
        "alone": alone,
        "checked": checked,
        "protected": protected,
        "forecast": made,
        "gaps": figures.gaps(made),
    }


async def _sent(page: Page, form: Form, body: Body) -> Body:
    """A body as the API takes it. If it reads the release of a study, all that made the candidates is that study's."""
    sent_body: Body = sent(body)
    if not form.get("release_of"):
        return sent_body
    source = f"/v1/studies/{id_of('std', form.get('release_of'))}"
    study = await page.api.read(source, wire.StudyOwnerView)
    return sent_body | study.spec.model_copy(update={"release_of": study.id}).model_dump(
        mode="json", include={"dataset_id", "features", "release", "rows_per_person", "release_of"}
    )


async def _compared(page: Page, dataset: wire.DatasetView, changed: str) -> list[dict[str, Any]]:
    studies = await every(page.api, "/v1/studies", "studies")
    alike = (s for s in studies if s["spec"]["dataset_id"] == dataset.id and s["id"] != changed)
    return list(alike)[: -_COMPARED - 1 : -1]


async def _help_with_features(page: Page, form: Form, dataset: wire.DatasetView, go: str) -> Response:
    """Tick columns, fill in bounds, or count what they clip, and show the features again."""
    clips: wire.ClipsView | None = None
    if go == "paste":
        file = form.files.get("bounds_file")
        private_bounds.fill_in(form, dataset, None if file is None else await file.read())
    elif go == "clips":
        clips = await _clips(page, form, dataset)
    else:
        ranges = await private_bounds.latest(page.api, dataset.id) if go == "private" else {}
        for i, column in enumerate(dataset.columns):
            if column.name in ranges:
                lower, upper = ranges[column.name]
                form.fill({"features": {i: {"lower": lower, "upper": upper}}})
            if go == "all":
                form.values[f"features.{i}.column"] = [column.name]
            elif go == "none":
                form.values.pop(f"features.{i}.column", None)
    return await _show(page, _fresh(form) if form.ok else form.again(), "features", dataset, clips=clips)


async def _clips(page: Page, form: Form, dataset: wire.DatasetView) -> wire.ClipsView | None:
    """What the bounds of the chosen features clip; faults are added to ``form.errors``."""
    features = drafting.body_of(form, dataset, "features")["features"]
    form.errors.pop("name", None)
    if not form.ok:
        return None
    wanted = [{"column": f["column"], "outer": [f["lower"], f["upper"]]} for f in features.values()]
    return await page.api.ask(f"/v1/datasets/{dataset.id}:clips", wire.ClipsView, {"columns": wanted})


async def _at_extremes(page: Page, form: Form, dataset: wire.DatasetView) -> list[str]:
    """Features with a bound that is exactly an extreme of the records, where nothing else says that it is public."""
    if dataset.public:
        return []
    try:
        clips = await _clips(page, replace(form, errors={}, problem=None), dataset)
    except ApiProblem:
        return []
    is_public = private_bounds.encoded(dataset)
    columns = clips.columns if clips else []
    return [c.column for c in columns if (c.is_smallest or c.is_largest) and c.column not in is_public]


async def _create(page: Page, form: Form, dataset: wire.DatasetView, body: Body) -> Response:
    changed = form.get("change")
    try:
        if changed:
            change = await _sent(page, form, body) | {"replaces": form.get("replaces")}
            made = await page.api.put(f"/v1/studies/{changed}", change, key=form.key)
        else:
            made = await page.api.post("/v1/studies", await _sent(page, form, body), key=form.key)
    except ApiProblem as problem:
        failed = form.failed(problem, drafting.derived(form), body)
        return await _show(page, failed, _first_wrong(failed, "review"), dataset)
    studies.start_check(page, made)
    done = "The draft is changed." if changed else "The draft is made."
    return page.go(f"/studies/{made['id']}", f"{done} Nothing has been released or charged yet.")


async def _dataset(page: Page, form: Form) -> wire.DatasetView | None:
    dataset_id = form.text("dataset_id", "A dataset")
    if not dataset_id:
        return None
    try:
        return await page.api.read(f"/v1/datasets/{id_of('ds', dataset_id)}", wire.DatasetView)
    except (ApiProblem, NotFound):
        form.wrong("dataset_id", "There is no such dataset")
        return None


def _take_defaults(form: Form, dataset: wire.DatasetView) -> None:
    """Fill in values that follow from the dataset, if the first step was shown without it."""
    if form.get("dataset_before") != dataset.id:
        form.values.pop("name", None)
        values = drafting.defaults(dataset)
        form.fill({name: values[name] for name in ("release.mechanism", "answers.mechanism", "measurement.shown")})


def _fresh(form: Form) -> Form:
    return replace(form, key=fresh_key(), errors={}, problem=None)


def _first_wrong(form: Form, step: str) -> str:
    """The first step with a wrong field, or else the step that was shown."""
    wrong = {drafting.step_of(field) for field in form.errors}
    return next((name for name in NAMES if name in wrong), step)


async def _show(
    page: Page,
    form: Form,
    step: str,
    dataset: wire.DatasetView | None,
    shown: dict[str, Any] | None = None,
    clips: wire.ClipsView | None = None,
) -> Response:
    ranges: private_bounds.PrivateRanges = {}
    if dataset is not None and step in ("features", "answers"):
        ranges = await private_bounds.latest(page.api, dataset.id)
    made = {} if dataset is None else private_bounds.encoded(dataset)
    names = [] if dataset is None else [column.name for column in dataset.columns]
    lists = {} if dataset is None else private_bounds.lists(dataset)
    drafting.suggest(form, step, names, ranges, made, lists)
    if dataset is not None and step == "release":
        groups.suggest(form, dataset.rows)
    form.labels.update(drafting.labels(dataset) if dataset is not None else {})
    context: dict[str, Any] = {"form": form, "step": step, "dataset": dataset, "checked": None, "spec": None}
    context |= {"clips": clips, "ranges": ranges, "private_y": drafting.private_y(form, ranges)} | (shown or {})
    context["extremes"] = await _at_extremes(page, form, dataset) if dataset and step == "measurement" else []
    if dataset is not None and step == "features" and "name" not in form.values:
        before = sum(s["spec"]["dataset_id"] == dataset.id for s in await every(page.api, "/v1/studies", "studies"))
        form.values["name"] = [f"Study {before + 1} on {dataset.name}"[:200]]
    if step == "data":
        context["datasets"] = [d for d in await datasets(page.api) if d.state == "active"]
    if step in ("release", "review"):
        context["mechanisms"] = (await page.api.read("/v1/meta", wire.CuratorMeta)).mechanisms
    if dataset is not None and step in ("release", "answers"):
        context |= {"dial": drafting.DIAL, "forecast": context.get("forecast"), "live": False, "problem": None}
        context["gaps"] = context.get("gaps")
    if dataset is not None and step == "answers" and "forecast" not in (shown or {}):
        probe = replace(form, errors={}, problem=None)
        body = drafting.body_so_far(probe, dataset, "answers")
        with suppress(ApiProblem):
            context |= await _effect(page, form, dataset, body, step) if probe.ok else {"checked": None}
    if dataset is not None and step == "release":
        used = {names[i] for i in form.items("features", "column") if i < len(names)}
        context["lists"] = {column: columns for column, columns in lists.items() if used.intersection(columns)}
        context["samples"] = [d for d in await datasets(page.api) if d.public and d.id != dataset.id]
        context["compared"] = await _compared(page, dataset, form.get("change"))
    if dataset is not None and step in ("release", "answers", "review"):
        probe = replace(form, errors={}, problem=None)
        context["spec"] = await _sent(page, form, drafting.body_of(probe, dataset, "answers"))
    if step == "review" and context["checked"] is None and dataset is not None and form.problem is None:
        context["checked"] = await page.api.ask("/v1/studies:check", wire.StudyCheck, context["spec"])
    context |= {"row_cap": drafting.row_cap(form), "of_groups": groups.is_chosen(form)}
    current, before = NAMES.index(step), form.get("reached")
    reached = max(current, NAMES.index(before) if before in NAMES else 0)
    context["bounded"] = drafting.bounded(form, names)
    context |= {"columns": names, "carried": drafting.carried(form, step), "reached": NAMES[reached]}
    context["steps"] = [
        (name, title, "current" if i == current else "done" if i <= reached else "next")
        for i, (name, title) in enumerate(STEPS)
    ]
    changed = form.get("change")
    trail = [*_TRAIL, ("The draft", f"/studies/{changed}")] if changed else _TRAIL
    title = f"{'Change the draft' if changed else 'New study'}: {STEPS[current][1]}"
    status = 200 if form.ok else 422
    return page.show(f"draft_{step}.html", title=title, trail=trail, status=status, **context)
