"""Bounds for the form of a study: private ones and their page, those of categories, and pasted ones."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from math import isfinite

from starlette.responses import Response

from blindopt import wire
from blindopt.errors import Invalid
from blindopt.formats.numbers import DecimalSigns, either, number_of
from blindopt.formats.tables import SmallTable
from curator_service.console.reading import every
from service_kit.console import Api, ApiProblem, Form, Page, Pages
from service_kit.console.forms import Body, filled_in, sent

pages = Pages()
PrivateRanges = Mapping[str, tuple[str, str]]
"""Lower and upper bound of each column, as a form shows them."""
PUBLIC_ENDS = {"age": ("0", "120"), "hour": ("0", "24"), "month": ("1", "12"), "kg": ("0", "300"), "cm": ("0", "250")}
PUBLIC_ENDS |= {"bmi": ("10", "80"), "systolic": ("50", "260"), "diastolic": ("20", "160")}
PUBLIC_ENDS |= dict.fromkeys(("percent", "percentage"), ("0", "100"))
"""Public ranges by the word in a column's name; of kilograms and centimetres, a person's."""
_SAYING = {*PUBLIC_ENDS, "years", "year", "yrs", "of", "at", "in", "the", "day", "patient", "weight", "height"}
_SAYING |= {"mmhg", "bp", "blood", "pressure"}
"""With another word, such as months, a name is not understood."""
CATEGORY_CHANGES = {"euclidean": 1.42, "one_feature": 2.0}
"""The hidden change of a yes/no column that hides which category a record has: another moves two of them by 1 each."""


@pages.get("/datasets/{dataset_id}/bounds", roles=("owner",))
async def listed(page: Page) -> Response:
    return await _shown(page, Form.blank(epsilon="0.5"))


@pages.post("/datasets/{dataset_id}/bounds", roles=("owner",))
async def find(page: Page, form: Form) -> Response:
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
        bounds = await page.api.ask(f"/v1{where}:bounds", wire.PrivateBounds, sent(body), key=form.key)
    except ApiProblem as problem:
        failed = form.failed(problem, {"quantiles": "outermost"}, body)
        if problem.status >= 500:  # it may have been charged: the same key is not charged again
            failed = replace(failed, key=form.key)
        return await _shown(page, failed, problem.status)
    return page.go(f"{where}/bounds", f"Found, for epsilon {bounds.epsilon}. A new study on this dataset offers them.")


async def _shown(page: Page, form: Form, status: int = 200) -> Response:
    where = f"/datasets/{page.path['dataset_id']}"
    dataset = await page.api.read(f"/v1{where}", wire.DatasetView)
    bounds = await _stored_bounds(page.api, dataset.id)
    trail = [("Datasets", "/datasets"), (dataset.name, where)]
    context = {"dataset": dataset, "bounds": bounds, "form": form}
    return page.show("dataset_bounds.html", title="Private bounds", trail=trail, status=status, **context)


async def latest(api: Api, dataset_id: str) -> PrivateRanges:
    columns = (column for bounds in await _stored_bounds(api, dataset_id) for column in bounds.columns)
    return {column.column: (filled_in(column.lower), filled_in(column.upper)) for column in columns}


async def _stored_bounds(api: Api, dataset_id: str) -> list[wire.PrivateBounds]:
    listing = await every(api, f"/v1/datasets/{dataset_id}/bounds", "bounds")
    return [wire.PrivateBounds.model_validate(bounds, strict=False) for bounds in listing]


def lists(dataset: wire.DatasetView) -> dict[str, list[str]]:
    """The yes/no columns that were made from each column of categories."""
    choices = dataset.reading.columns if dataset.reading else []
    listed = ((choice.column, choice.values) for choice in choices if choice.kind == "one_hot" and choice.values)
    return {column: [f"{column}={value.strip()}" for value in values] for column, values in listed}


def encoded(dataset: wire.DatasetView) -> dict[str, tuple[str, str, str]]:
    """Public bounds and hidden change, as a form shows them, of columns that were made from categories.

    Yes/no columns have no change of their own: the list that they are of has one.
    """
    made = {name: ("0", "1", "") for names in lists(dataset).values() for name in names}
    for choice in dataset.reading.columns if dataset.reading else []:
        if choice.kind == "codes" and choice.values:
            ends = [1.0, float(len(choice.values)), *([choice.fill] if choice.fill is not None else [])]
            if min(ends) < max(ends):
                made[choice.column] = (filled_in(min(ends)), filled_in(max(ends)), filled_in(max(ends) - min(ends)))
    return made


def suggested(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Public ranges of columns whose names say what they hold: no record is read.

    >>> suggested(["Age (years)", "hour_of_day", "weight_kg", "age_months", "page"])
    {'Age (years)': ('0', '120'), 'hour_of_day': ('0', '24'), 'weight_kg': ('0', '300')}
    """
    words = {name: set(re.findall("[a-z]+|%", name.lower())) for name in names}
    return {
        name: ends
        for name, said in words.items()
        for word, ends in PUBLIC_ENDS.items()
        if word in said and said <= _SAYING
    }


def fill_in(form: Form, dataset: wire.DatasetView, file: bytes | None, area: str = "pasted") -> None:
    """Fill in the features of a file, or those pasted: a name, both bounds and perhaps a hidden change on each line.

    In the area ``exceptions``, a line has the name of a feature and its hidden change.
    """
    field, is_exception = area if file is None else "bounds_file", area == "exceptions"
    counts, needed = ((1,), "one number") if is_exception else ((2, 3), "two numbers, or three with the hidden change")
    content = form.get(field).encode() if file is None else file
    columns = ((i, column.name) for i, column in enumerate(dataset.columns))
    index = {name: i for i, name in columns if not is_exception or form.has(f"features.{i}.column")}
    filled: list[tuple[int, list[str]]] = []
    sign: wire.DecimalSign = "."
    try:
        sheet = SmallTable(content)
        filled = [(line, cells) for line, cells in sheet if any(cells)]
        signs = DecimalSigns(cell.strip() for _, cells in filled for cell in cells[1:])
        if (decimal := signs.of_file(sheet.separator)) is None:
            form.wrong(field, either(signs.unsure[0]))
            return
        sign = decimal
    except Invalid:
        form.wrong(field, "Write name, smallest, largest on each line")
    for line, (name, *cells) in filled:
        numbers = [number_of(cell, sign) for cell in cells if cell.strip()]
        i = index.get(name.strip())
        if line == 1 and i is None and all(number is None for number in numbers):
            continue  # a header
        if i is None:
            near = get_close_matches(name.strip(), index, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else " in this dataset"
            form.wrong(field, f'Line {line}: no column "{name.strip()}"{hint}')
        elif len(numbers) not in counts or not all(number is not None and isfinite(number) for number in numbers):
            form.wrong(field, f"Line {line}: write a name and {needed}")
        else:
            parts = ("hidden_change",) if is_exception else ("lower", "upper", "hidden_change")
            feature = dict(zip(parts, numbers, strict=False))
            form.fill({"features": {i: {"column": name.strip()} | feature}})
    if form.ok:
        form.values.pop(area, None)
