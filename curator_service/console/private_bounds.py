"""Bounds for the form of a study: private ones and their page, those of categories, and pasted ones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from starlette.responses import Response

from blindopt.errors import Invalid
from blindopt.formats.numbers import readings
from blindopt.formats.tables import SmallTable
from curator_service.console.reading import every
from service_kit.console import Api, ApiProblem, Form, Page, Pages
from service_kit.console.forms import Body, sent, shown

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
    chosen = form.items("columns", "column")
    if not chosen:
        form.wrong("columns.0.column", "Choose at least one column")
    columns: Body = {}
    for i in chosen:
        ends = form.interval(f"columns.{i}.outer.0", f"columns.{i}.outer.1", "the smallest value that can be")
        columns[i] = {"column": form.get(f"columns.{i}.column"), "outer": dict(enumerate(ends))}
    outermost = form.real("outermost", needed=False)
    if outermost is not None and not 0.1 <= outermost < 50:
        form.wrong("outermost", "Write a number from 0.1 to 49, or leave it empty")
    quantiles = None if outermost is None else [outermost / 100, 1 - outermost / 100]
    body = {"columns": columns, "epsilon": form.text("epsilon", "epsilon"), "quantiles": quantiles}
    if not form.ok:
        return await _shown(page, form.again(), 422)
    try:
        made = await page.api.post(f"/v1{where}:bounds", sent(body), key=form.key)
    except ApiProblem as problem:
        failed = form.failed(problem, {"quantiles": "outermost"}, body)
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
    return {column["column"]: (shown(column["lower"]), shown(column["upper"])) for column in columns}


def encoded(dataset: Mapping[str, Any]) -> dict[str, tuple[str, str, str]]:
    """Public bounds and hidden change, as a form shows them, of columns that were made from categories.

    Another category moves two columns of yes and no by 1 each, which is one scaled unit for a hidden change of sqrt(2).
    """
    made: dict[str, tuple[str, str, str]] = {}
    for choice in (dataset["reading"] or {"columns": []})["columns"]:
        if choice["kind"] == "one_hot":
            made |= {f"{choice['column']}={value.strip()}": ("0", "1", "1.42") for value in choice["values"]}
        elif choice["kind"] == "codes":
            ends = [1.0, float(len(choice["values"])), *([choice["fill"]] if choice["missing"] == "fill" else [])]
            if min(ends) < max(ends):
                made[choice["column"]] = (shown(min(ends)), shown(max(ends)), shown(max(ends) - min(ends)))
    return made


def fill_in(form: Form, dataset: Mapping[str, Any], file: bytes | None) -> None:
    """Fill in the features of a file, or those pasted: a name, both bounds and perhaps a hidden change on each line."""
    field = "pasted" if file is None else "bounds_file"
    content = form.get(field).encode() if file is None else file
    index = {column["name"]: i for i, column in enumerate(dataset["columns"])}
    lines: list[tuple[int, list[str]]] = []
    try:
        lines = [(line, cells) for line, cells in SmallTable(content) if any(cells)]
    except Invalid:
        form.wrong(field, "Write name, smallest, largest on each line")
    for line, (name, *cells) in lines:
        meant = [readings(cell.strip()) for cell in cells if cell.strip()]
        i = index.get(name.strip())
        if line == 1 and i is None and not any(meant):
            continue  # a header
        if i is None:
            near = get_close_matches(name.strip(), index, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else " in this dataset"
            form.wrong(field, f'Line {line}: no column "{name.strip()}"{hint}')
        elif len(meant) not in (2, 3) or any(len(values) != 1 for values in meant):
            form.wrong(field, f"Line {line}: write a name and two numbers, or three with the hidden change")
        else:
            numbers = (values[0] for values in meant)
            feature = dict(zip(("lower", "upper", "hidden_change"), numbers, strict=False))
            form.fill({"features": {i: {"column": name.strip()} | feature}})
    if form.ok:
        form.values.pop("pasted", None)
