"""A file that waits for its owner: how it was read, what each column is, and how many records remain."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from blindopt import wire
from blindopt.display import counted
from blindopt.formats.column_ways import (
    DATES,
    DROP,
    LABEL,
    LISTED,
    NUMBER,
    SEPARATORS,
    categories,
    contents,
    is_problem,
    key_of,
    ways,
)
from service_kit.console import ApiProblem, Form, Page, Pages

pages = Pages()
_TRAIL = [("Datasets", "/datasets")]
_NAME_MAX = 200


@pages.get("/datasets/uploads/{upload_id}", roles=("owner",))
async def decide(page: Page) -> Response:
    view = await _pending(page)
    form = proposed(view, page.query)
    choice_of(form, view)  # what was chosen with the file may be wrong
    return await show(page, view, form)


@pages.post("/datasets/uploads/{upload_id}:discard", roles=("owner",))
async def discard(page: Page, form: Form) -> Response:
    await page.api.post(f"/v1/uploads/{page.path['upload_id']}:discard", key=form.key)
    return page.go("/datasets", "The file is deleted. Nothing was stored.")


@pages.post("/datasets/uploads/{upload_id}:read", roles=("owner",))
async def read_differently(page: Page, form: Form) -> Response:
    """Read the file with another separator, decimal sign, encoding or other cells that count as missing."""
    view = await _pending(page)
    markers = [line.strip() for line in form.get("missing_values").splitlines() if line.strip()]
    signs: dict[str, str | None] = {name: form.get(name) or None for name in ("decimal", "encoding")}
    signs |= {"separator": next((sign for sign, words in SEPARATORS.items() if words == form.get("separator")), None)}
    try:
        await page.api.post(_path(view, ":read"), signs | {"missing_values": markers})
    except ApiProblem as problem:
        failed = proposed(view, {}).failed(problem)
        failed.fill({name: form.get(name) for name in (*signs, "missing_values")} | {"reading": "yes"})
        return await show(page, view, failed, problem.status)
    return page.go(f"/datasets/uploads/{view.id}", "The file was read again. Nothing is stored yet.")


@pages.post("/datasets/uploads/{upload_id}", roles=("owner",))
async def register(page: Page, form: Form) -> Response:
    """Count what remains of a pending file as it was decided, or register it."""
    view = await _pending(page)
    choice = choice_of(form, view)
    if form.get("go") == "count":
        return await _count(page, view, choice, form)
    if view.registered_as and not form.has("again"):
        form.wrong("again", "Tick this to register the same file again")
    if view.unsure and choice["decimal"] is None:
        form.wrong("sign", "Say which sign is decimal")
    if view.samples and not form.has("samples_right"):
        form.wrong("samples_right", "Tick this if the words are right, or read the file differently")
    form.text("name", "A name")
    if not form.ok:
        return await show(page, view, form.again(), 422)
    return await store(page, view, choice, form)


async def _pending(page: Page) -> wire.PendingUpload:
    return await page.api.read(f"/v1/uploads/{page.path['upload_id']}", wire.PendingUpload)


def _path(view: wire.PendingUpload, act: str = "") -> str:
    return f"/v1/uploads/{view.id}{act}"


async def _count(page: Page, view: wire.PendingUpload, choice: dict[str, Any], form: Form) -> Response:
    if not form.ok:
        return await show(page, view, form.again(), 422)
    try:
        counted = await page.api.post(_path(view, ":read"), choice)
    except ApiProblem as problem:
        return await show(page, view, _failed(form, problem, view, choice), problem.status)
    return await show(page, wire.PendingUpload.model_validate(counted, strict=False), form.again())


async def show(page: Page, view: wire.PendingUpload, form: Form, status: int = 200) -> Response:
    if form.problem is not None:
        readings = [cell for fault in form.problem.problem.errors or [] for cell in fault.readings or []]
        view = view.model_copy(update={"unsure": readings or view.unsure})
    context: dict[str, Any] = {"upload": view, "form": form, "status": status, "ways": ways, "separators": SEPARATORS}
    context |= {"contents": contents, "categories": categories}
    context |= {"problems": [(i, c) for i, c in enumerate(view.columns) if is_problem(c)]}
    clean = [(i, c) for i, c in enumerate(view.columns) if not is_problem(c)]
    context |= {"clean": [pair for pair in clean if not pair[1].values]}
    context |= {"coded": [pair for pair in clean if pair[1].values]}
    context |= {"has_gaps": bool(view.gaps) or any(c.holds == "text" for c in view.columns)}
    context |= {"with_gaps": sum(bool(c.missing or c.odd) and c.holds != "empty" for c in view.columns)}
    return page.show("dataset_columns.html", title="How are the columns read?", trail=_TRAIL, **context)


async def store(page: Page, view: wire.PendingUpload, choice: dict[str, Any], form: Form) -> Response:
    """Register a pending file, and go to its dataset; or show its page with the faults."""
    public = "true" if form.get("public") == "yes" else "false"
    fields = {"name": form.get("name")[:_NAME_MAX], "public": public, "upload": view.id}
    sent = {name: value for name, value in choice.items() if value not in (None, [])}
    fields |= {name: value if isinstance(value, str) else json.dumps(value) for name, value in sent.items()}
    try:
        reply = await page.api.upload("/v1/datasets", fields, {}, key=form.key)
    except ApiProblem as problem:
        return await show(page, view, _failed(form, problem, view, choice), problem.status)
    made, left_out = wire.DatasetView.model_validate(reply, strict=False), ""
    if made.rows_left_out:
        left_out = f"; {counted(made.rows_left_out, 'record')} with a missing value left out"
    if made.person_rows_dropped:
        left_out += f"; {counted(made.person_rows_dropped, 'record')} left out, because their person has more"
    unread = f"; {len(made.dropped)} more in the file were neither read nor stored" if made.dropped else ""
    words = f"Registered: {counted(made.rows, 'record')}, {len(made.columns)} columns{unread}{left_out}."
    return page.go(f"/datasets/{made.id}", words)


def _failed(form: Form, problem: ApiProblem, view: wire.PendingUpload, choice: dict[str, Any]) -> Form:
    index = {column.name: i for i, column in enumerate(view.columns)}
    columns = {index[column["column"]]: column for column in choice["columns"]}
    names = {f"columns.{i}.{field}": f"columns.{i}.kind" for i in columns for field in ("column", "date_format")}
    names |= {f"columns.{i}.since": "since" for i in columns} | {"decimal": "sign"}
    failed = form.failed(problem, names, {"columns": columns})
    for fault in problem.problem.errors or []:
        if fault.column in index:
            failed.errors[f"columns.{index[fault.column]}.kind"] = in_words(fault)
        if fault.spellings:
            pairs = "; ".join(" and ".join(pair) for pair in fault.spellings)
            failed.errors["person_ids"] = f"Say whether these are one person: {pairs}"
    failed.errors.pop("", None)  # faults of columns, which stand at these
    return failed


def in_words(fault: Any) -> str:
    cell = f": {fault.cell}" if fault.cell else ""
    where = f" (first in row {fault.row + (fault.line is not None)} of the file{cell})" if fault.row else ""
    return f"{fault.message}: {fault.count:,} cells{where}" if fault.count else f"{fault.message}{where}"


def is_clear(view: wire.PendingUpload, person: str) -> bool:
    problems = (is_problem(column) for column in view.columns if column.name != person)
    return not view.registered_as and not view.samples and not view.unsure and not any(problems)


def proposed(view: wire.PendingUpload, query: Mapping[str, str]) -> Form:
    """The form with how the file is read so far, and what was chosen with the file."""
    reading = view.reading or wire.ReadingChoice()
    choices = {choice.column: choice for choice in _choices(view)}
    name = query.get("name") or view.filename.rpartition("/")[2].partition(".")[0]
    values: dict[str, object] = {"name": name, "public": query.get("public", "no"), "since": "1970-01-01"}
    values |= {"separator": view.separator and SEPARATORS[view.separator], "encoding": view.encoding}
    values |= {"missing_values": "\n".join(reading.missing_values)}
    values |= {
        field: query.get(field) or getattr(reading, field) for field in ("person", "rows_per_person", "person_ids")
    }
    is_filled = any(choice.missing == "fill" for choice in choices.values())
    values |= {"gaps": "each" if is_filled else "leave_out"}
    values |= {"lists_public": any(choice.values for choice in choices.values())}  # it was ticked then
    for i, column in enumerate(view.columns):
        choice = choices.get(column.name)
        fields: dict[str, Any] = {"column": column.name, "kind": key_of(choice), "missing": "leave_out", "fill": "0"}
        fields |= {"values": "\n".join(categories(column))}
        if choice is not None and choice.missing == "fill":
            fields |= {"missing": "fill", "fill": choice.fill}
        if choice is not None and choice.values is not None:
            fields |= {"values": "\n".join(choice.values)}
        if choice is not None and choice.since is not None:
            values["since"] = choice.since.isoformat()
        if choice is None and not is_problem(column) and not column.values:
            del fields["column"]  # it has a tick
        values[f"columns.{i}"] = fields
    return Form.blank(**values)


def _choices(view: wire.PendingUpload) -> list[wire.ColumnChoice]:
    """How the columns of a file are read so far; a bare name is a column of numbers."""
    columns = (view.reading and view.reading.columns) or []
    return [wire.ColumnChoice(column=column) if isinstance(column, str) else column for column in columns]


def choice_of(form: Form, view: wire.PendingUpload) -> dict[str, Any]:
    """How the file is to be read, as a body of the API; faults are added to ``form.errors``."""
    person, rows = form.get("person"), form.get("rows_per_person")
    per_person = None
    if person and not rows:
        form.wrong("rows_per_person", "Say how many records of one person to keep")
    elif person:
        per_person = form.integer("rows_per_person")
    if rows and not person:
        form.wrong("person", "Name the column of persons")
    columns = [
        choice
        for i, column in enumerate(view.columns)
        if column.name != person and (choice := _choice(form, i, column)) is not None
    ]
    if all(choice.get("kind") == "label" for choice in columns):
        form.wrong("name", "No column of numbers is read: choose at least one")
    if any("values" in choice for choice in columns) and not form.has("lists_public"):
        form.wrong("lists_public", "Tick this, or read no column by a list: the lists are public")
    markers = view.reading.missing_values if view.reading is not None else []
    signs: dict[str, Any] = {"separator": view.separator, "decimal": form.get("sign") or None}
    signs["encoding"] = view.encoding
    said_by = {before.column for before in _choices(view) if before.kind == "number"}
    numbers = {each["column"] for each in columns if each.get("kind", "number") == "number"}
    if not view.unsure and signs["decimal"] is None and said_by <= numbers:
        signs["decimal"] = view.decimal
    ids = form.get("person_ids") or None
    of_persons = {"person": person, "rows_per_person": per_person, "person_ids": ids} if person else {}
    return signs | {"missing_values": markers, "columns": columns} | of_persons


def _choice(form: Form, i: int, column: wire.SurveyedColumn) -> dict[str, Any] | None:
    """How a column is read; None: not at all."""
    if not is_problem(column) and not column.values:
        return {"column": column.name} if form.has(f"columns.{i}.column") else None
    way = next((way for way in ways(column) if way.key == form.get(f"columns.{i}.kind")), DROP)
    if way is DROP:
        return None
    if way is NUMBER and not is_problem(column):
        return {"column": column.name}
    choice: dict[str, Any] = {"column": column.name} | way.fields
    if way is LABEL:
        return choice
    if way.key in DATES:
        choice |= {"since": form.get("since") or None}
    if way.key in LISTED:
        lines = [line.strip() for line in form.get(f"columns.{i}.values").splitlines() if line.strip()]
        if not lines or len(set(lines)) < len(lines):
            form.wrong(f"columns.{i}.values", "List each category once, one on a line")
        choice["values"] = lines
    if form.get("gaps") == "each" and form.get(f"columns.{i}.missing") == "fill":
        fill = form.real(f"columns.{i}.fill")
        if way.key == "one_hot" and fill:
            form.wrong(f"columns.{i}.fill", "For yes/no columns only 0 is possible: no category")
        return choice | {"missing": "fill", "fill": fill}
    return choice | {"missing": "leave_out"}
