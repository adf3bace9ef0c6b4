"""A file whose columns need a decision: one row for each, and one press goes on."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from blindopt import wire
from service_kit.console import ApiProblem, Form, Page, Pages

pages = Pages()
_TRAIL = [("Datasets", "/datasets")]
DATES: dict[wire.DateFormat, str] = {
    "iso": "2024-12-31",
    "d.m.y": "31.12.2024",
    "d/m/y": "31/12/2024",
    "m/d/y": "12/31/2024",
}
_LISTED = {"one_hot": "yes/no columns, one for each category", "codes": "codes 1, 2, 3 … in the order of the list"}
_NAME_MAX = 200


@pages.get("/datasets/uploads/{upload_id}", roles=("owner",))
async def decide(page: Page) -> Response:
    """The columns of a pending file, with what is proposed."""
    view = await page.api.read(f"/v1/uploads/{page.path['upload_id']}", wire.PendingUpload)
    form = proposed(view, page.query)
    read(form, view)  # what was chosen with the file may be wrong
    return await show(page, view, form)


@pages.post("/datasets/uploads/{upload_id}:discard", roles=("owner",))
async def discard(page: Page, form: Form) -> Response:
    await page.api.post(f"/v1/uploads/{page.path['upload_id']}:discard", key=form.key)
    return page.go("/datasets", "The file is deleted. Nothing was stored.")


@pages.post("/datasets/uploads/{upload_id}", roles=("owner",))
async def register(page: Page, form: Form) -> Response:
    """Register a pending file as it was decided."""
    view = await page.api.read(f"/v1/uploads/{page.path['upload_id']}", wire.PendingUpload)
    fields = read(form, view)
    if view.registered_as and not form.has("again"):
        form.wrong("again", "Tick this to register the same file again")
    if not form.ok:
        return await show(page, view, form.again(), 422)
    return await store(page, view, fields, form)


async def show(page: Page, view: wire.PendingUpload, form: Form, status: int = 200) -> Response:
    context: dict[str, Any] = {"upload": view, "form": form, "status": status, "options": options}
    context |= {"problems": [(i, c) for i, c in enumerate(view.columns) if is_problem(c)]}
    clean = [(i, c) for i, c in enumerate(view.columns) if not is_problem(c)]
    context |= {"clean": [pair for pair in clean if not pair[1].values]}
    context |= {"coded": [pair for pair in clean if pair[1].values]}
    return page.show("dataset_columns.html", title="How are the columns read?", trail=_TRAIL, **context)


async def store(page: Page, view: wire.PendingUpload, fields: dict[str, str], form: Form) -> Response:
    """Register a pending file, and go to its dataset; or show its page with the faults."""
    try:
        reply = await page.api.upload("/v1/datasets", fields | {"upload": view.id}, {}, key=form.key)
    except ApiProblem as problem:
        index = {column.name: i for i, column in enumerate(view.columns)}
        columns = {index[choice["column"]]: choice for choice in json.loads(fields["columns"])}
        names = {f"columns.{i}.{part}": f"columns.{i}.kind" for i in columns for part in ("column", "date_format")}
        names |= {f"columns.{i}.since": "since" for i in columns}
        failed = form.failed(problem, names, {"columns": columns})
        for fault in problem.problem.errors or []:
            if fault.column in index:
                failed.errors[f"columns.{index[fault.column]}.kind"] = in_words(fault)
        failed.errors.pop("", None)  # faults of columns, which stand at these
        return await show(page, view, failed, problem.status)
    made, left_out = wire.DatasetView.model_validate(reply, strict=False), ""
    if made.rows_left_out:
        left_out = f"; {_records(made.rows_left_out)} with a missing value left out"
    if made.person_rows_dropped:
        left_out += f"; {_records(made.person_rows_dropped)} left out, because their person has more"
    unread = f"; {len(made.dropped)} more in the file were neither read nor stored" if made.dropped else ""
    words = f"Registered: {_records(made.rows)}, {len(made.columns)} columns{unread}{left_out}."
    return page.go(f"/datasets/{made.id}", words)


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


def in_words(fault: Any) -> str:
    """A fault of a column in one sentence."""
    where = f" (first in row {fault.row:,})" if fault.row else ""
    return f"{fault.message}: {fault.count:,} cells{where}" if fault.count else f"{fault.message}{where}"


def is_problem(column: wire.SurveyedColumn) -> bool:
    """Whether a column cannot be read as numbers at once, just as they are."""
    return bool(column.holds != "number" or column.missing or column.unnamed or column.rounded)


def is_clear(view: wire.PendingUpload, person: str) -> bool:
    """Whether nothing has to be decided about a file."""
    return not view.registered_as and not any(is_problem(c) for c in view.columns if c.name != person)


def options(column: wire.SurveyedColumn) -> list[tuple[str, str]]:
    """The ways to read a column, of which the first is proposed."""
    ways = [("drop", "Leave the column out")]
    number = ("number", "Read it as numbers")
    listed = [(kind, f"Turn it into {words}") for kind, words in _LISTED.items()]
    if column.holds == "number":
        coded = listed if column.values else []
        return [*ways, number, *coded] if column.unnamed else [number, *ways, *coded]
    if column.holds == "date":
        words = "Days since the date below, from dates such as"
        dates = [(each, f"{words} {DATES[each]}") for each in column.date_formats]
        return [*dates, *ways] if len(dates) == 1 else [*ways, *dates]
    if column.holds == "text":
        return [*ways, *listed, number]
    return ways


def proposed(view: wire.PendingUpload, query: Mapping[str, str]) -> Form:
    """The form with what is proposed, and what was chosen with the file."""
    name = query.get("name") or view.filename.rpartition("/")[2].partition(".")[0]
    values: dict[str, object] = {"name": name, "public": query.get("public", "no"), "decimal": view.decimal}
    values |= {each: query.get(each) for each in ("person", "rows_per_person")} | {"since": "1970-01-01"}
    for i, column in enumerate(view.columns):
        listed = "\n".join(column.values or [])
        choice = {"column": column.name, "kind": options(column)[0][0], "missing": "leave_out", "fill": "0"}
        values[f"columns.{i}"] = choice | {"values": listed}
    return Form.blank(**values)


def read(form: Form, view: wire.PendingUpload) -> dict[str, str]:
    """The fields of a registration; faults are added to ``form.errors``."""
    person, rows = form.get("person"), form.get("rows_per_person")
    if person and not rows:
        form.wrong("rows_per_person", "Say how many records of one person to keep")
    elif person:
        form.integer("rows_per_person")
    if rows and not person:
        form.wrong("person", "Name the column of persons")
    columns = [
        choice
        for i, column in enumerate(view.columns)
        if column.name != person and (choice := _choice(form, i, column)) is not None
    ]
    if not columns:
        form.wrong("name", "No column is read: choose at least one")
    if any("values" in choice for choice in columns) and not form.has("lists_public"):
        form.wrong("lists_public", "Tick this, or read no column by a list: the lists are public")
    fields = {"name": form.text("name", "A name")[:_NAME_MAX], "columns": json.dumps(columns)}
    fields["public"] = "true" if form.get("public") == "yes" else "false"
    if form.get("decimal") in (".", ","):
        fields["decimal"] = form.get("decimal")
    return fields | ({"person": person, "rows_per_person": rows} if person else {})


def _choice(form: Form, i: int, column: wire.SurveyedColumn) -> dict[str, Any] | None:
    """How a column is read; None: not at all."""
    if not is_problem(column) and not column.values:
        return {"column": column.name} if form.has(f"columns.{i}.column") else None
    kind = form.get(f"columns.{i}.kind")
    if kind == "number" and not is_problem(column):
        return {"column": column.name}
    if kind not in (each for each, _ in options(column)) or kind == "drop":
        return None
    choice: dict[str, Any] = {"column": column.name, "kind": "date" if kind in DATES else kind}
    if kind in DATES:
        choice |= {"date_format": kind, "since": form.get("since") or None}
    if kind in _LISTED:
        lines = [line.strip() for line in form.get(f"columns.{i}.values").splitlines() if line.strip()]
        if not lines or len(set(lines)) < len(lines):
            form.wrong(f"columns.{i}.values", "List each category once, one on a line")
        choice["values"] = lines
    if form.get(f"columns.{i}.missing") == "fill":
        fill = form.real(f"columns.{i}.fill")
        if kind == "one_hot" and fill:
            form.wrong(f"columns.{i}.fill", "For yes/no columns only 0 is possible: no category")
        return choice | {"missing": "fill", "fill": fill}
    return choice | {"missing": "leave_out"}
