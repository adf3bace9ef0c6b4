"""Datasets: the list, the upload, and the columns that were read."""

import json
from collections.abc import AsyncIterator
from pathlib import PurePath
from typing import Any

from starlette.datastructures import UploadFile
from starlette.responses import Response

from blindopt import wire
from service_kit.console import ApiProblem, Form, Page, Pages, downloads
from service_kit.console.api import Upload

pages = Pages()
_CHUNK = 1 << 18
_NAME_MAX = 200
_TRAIL = [("Datasets", "/datasets")]


@pages.get("/datasets", roles=("owner",), nav="Data")
async def listed(page: Page) -> Response:
    """The list of datasets."""
    if page.query.get("as"):
        return await downloads.listing(page, "/v1/datasets", "datasets", "datasets", wire.DatasetView)
    listing = await page.api.get("/v1/datasets", page_token=page.query.get("page_token"))
    return page.show("datasets.html", title="Datasets", listing=listing)


@pages.get("/datasets/new", roles=("owner",))
async def new(page: Page) -> Response:
    """The form for a file."""
    form = Form.blank(public="no", which="all")
    return page.show("dataset_new.html", title="Upload a dataset", trail=_TRAIL, form=form, chosen=None)


@pages.post("/datasets", roles=("owner",))
async def register(page: Page, form: Form) -> Response:
    """Register a file, or show its faults cell by cell."""
    file = form.files.get("file")
    if file is None:
        form.wrong("file", "Choose a CSV or Parquet file")
    columns = [line.strip() for line in form.get("columns").splitlines() if line.strip()]
    if form.get("which") == "some" and not columns:
        form.wrong("columns", "Name at least one column, or take all")
    person, rows = form.get("person").strip(), form.get("rows_per_person").strip()
    if person and not rows:
        form.wrong("rows_per_person", "Say how many rows of one person are kept")
    if rows and not person:
        form.wrong("person", "Name the column that says whose each row is")
    if file is None or not form.ok:
        return _again(page, form.again(), file)
    named = form.get("name") or PurePath(file.filename or "dataset").stem
    fields = {"name": named[:_NAME_MAX], "public": "true" if form.get("public") == "yes" else "false"}
    if form.get("which") == "some":
        fields["columns"] = json.dumps(columns)
    if person:
        fields |= {"person": person, "rows_per_person": rows}
    upload = Upload(file.filename or "dataset.csv", _content(file))
    try:
        made = await page.api.upload("/v1/datasets", fields, {"file": upload}, key=form.key)
    except ApiProblem as problem:
        failed = form.failed(problem)
        failed.errors.pop("", None)  # cells of the file: a table of its own shows them
        return _again(page, failed, file, problem.status)
    read, dropped = len(made["columns"]), len(made["dropped"])
    unread = f"; {dropped} more in the file were neither read nor stored" if dropped else ""
    left_out = f"; {made['person_rows_dropped']:,} rows left out, whose person has more" if person else ""
    words = f"Registered: {made['rows']:,} rows, {read} columns{unread}{left_out}."
    return page.go(f"/datasets/{made['id']}", words)


def _again(page: Page, form: Form, file: UploadFile | None, status: int = 422) -> Response:
    """The form with all that was typed; a browser never fills in the file again."""
    context: dict[str, Any] = {"title": "Upload a dataset", "trail": _TRAIL, "form": form, "status": status}
    return page.show("dataset_new.html", chosen=file.filename if file is not None else None, **context)


async def _content(file: UploadFile) -> AsyncIterator[bytes]:
    while part := await file.read(_CHUNK):
        yield part


@pages.get("/datasets/{dataset_id}", roles=("owner",))
async def dataset(page: Page) -> Response:
    """One dataset with its columns."""
    return await _shown(page, Form.blank())


async def _shown(page: Page, form: Form, status: int = 200) -> Response:
    view = await page.api.get(f"/v1/datasets/{page.path['dataset_id']}")
    if page.query.get("as") == "csv":
        head = ("column", "type", "missing", "minimum", "maximum")
        return page.csv(
            f"columns-{view['id']}", head, [[c["name"], *(c[h] for h in head[1:])] for c in view["columns"]]
        )
    account = await page.api.get(f"/v1/datasets/{view['id']}/account", page_size=1)
    withheld = await page.api.get(f"/v1/datasets/{view['id']}/withheld")
    context = {"dataset": view, "account": account, "withheld": withheld["withheld"], "form": form, "status": status}
    return page.show("dataset.html", title=view["name"], trail=_TRAIL, **context)


@pages.post("/datasets/{dataset_id}:withhold", roles=("owner",))
async def withhold(page: Page, form: Form) -> Response:
    """Withhold a record."""
    where = f"/datasets/{page.path['dataset_id']}"
    person = form.get("person")
    record = None if person else form.integer("record")
    if not form.ok:
        return await _shown(page, form.again(), 422)
    try:
        await page.api.post(f"/v1{where}:withhold", {"record": record, "person": person or None}, key=form.key)
    except ApiProblem as problem:
        return await _shown(page, form.failed(problem), problem.status)
    whose = f"Record {record} is" if record else "This person's records are"
    return page.go(where, f"{whose} withheld: measured and released no more.")


@pages.post("/datasets/{dataset_id}:archive", roles=("owner",))
async def archive(page: Page, form: Form) -> Response:
    """Refuse new studies on a dataset."""
    where = f"/datasets/{page.path['dataset_id']}"
    await page.api.post(f"/v1{where}:archive", key=form.key)
    return page.go(where, "Archived: no new study can be made on it. Studies that exist go on.")
