"""Private bounds: the form, the bounds of a dataset, and offers of them to the form of a study."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from curator_service.console.reading import every
from service_kit.console import Api, ApiProblem, Form, Page, Pages

pages = Pages()
PrivateRanges = Mapping[str, tuple[str, str]]
"""Lower and upper bound of each column, as a form shows them."""


@pages.get("/datasets/{dataset_id}/bounds", roles=("owner",))
async def listed(page: Page) -> Response:
    """The private bounds of a dataset, and a form for more."""
    return await _shown(page, Form.blank(epsilon="0.5"))


@pages.post("/datasets/{dataset_id}/bounds", roles=("owner",))
async def find(page: Page, form: Form) -> Response:
    """Find bounds of the chosen columns."""
    where = f"/datasets/{page.path['dataset_id']}"
    dataset = await page.api.get(f"/v1{where}")
    chosen = [i for i in range(len(dataset["columns"])) if form.has(f"use_{i}")]
    if not chosen:
        form.wrong("use_0", "Choose at least one column")
    columns = [
        {"column": dataset["columns"][i]["name"], "outer": [form.real(f"lower_{i}"), form.real(f"upper_{i}")]}
        for i in chosen
    ]
    for i, column in zip(chosen, columns, strict=True):
        lower, upper = column["outer"]
        if lower is not None and upper is not None and not lower < upper:
            form.wrong(f"upper_{i}", "Must be larger than the smallest value that can be")
    outermost = form.real("outermost", needed=False)
    if outermost is not None and not 0.1 <= outermost < 50:
        form.wrong("outermost", "Write a number from 0.1 to 49, or leave it empty")
    body = {
        "columns": columns,
        "epsilon": form.text("epsilon", "epsilon"),
        "quantiles": None if outermost is None else [outermost / 100, 1 - outermost / 100],
    }
    if not form.ok:
        return await _shown(page, form.again(), 422)
    try:
        made = await page.api.post(f"/v1{where}:bounds", body, key=form.key)
    except ApiProblem as problem:
        names = {f"columns.{j}.{part}": f"lower_{i}" for j, i in enumerate(chosen) for part in ("column", "outer")}
        failed = form.failed(problem, names)
        if problem.status >= 500:  # it may have been charged: the same key is not charged again
            failed = replace(failed, key=form.key)
        return await _shown(page, failed, problem.status)
    return page.go(f"{where}/bounds", f"Found, for epsilon {made['epsilon']}. A new study on this dataset offers them.")


async def _shown(page: Page, form: Form, status: int = 200) -> Response:
    where = f"/datasets/{page.path['dataset_id']}"
    dataset = await page.api.get(f"/v1{where}")
    bounds = await every(page.api, f"/v1{where}/bounds", "bounds")
    trail = [("Datasets", "/datasets"), (dataset["name"], where)]
    context = {"dataset": dataset, "bounds": bounds, "form": form, "status": status}
    return page.show("dataset_bounds.html", title="Private bounds", trail=trail, **context)


async def latest(api: Api, dataset_id: str) -> PrivateRanges:
    """The latest private bounds of each column."""
    bounds = await every(api, f"/v1/datasets/{dataset_id}/bounds", "bounds")
    return of_columns([column for each in bounds for column in each["columns"]])


def of_columns(columns: Sequence[Mapping[str, Any]]) -> PrivateRanges:
    """Bounds by column as a form shows them; of several for one column, the last.

    >>> of_columns([{"column": "age", "lower": 20.5, "upper": 80.0}])
    {'age': ('20.5', '80')}
    """
    shown = (Form.blank(lower=column["lower"], upper=column["upper"]) for column in columns)
    return {c["column"]: (form.get("lower"), form.get("upper")) for c, form in zip(columns, shown, strict=True)}
