"""Datasets: the list, the upload, and the columns that were read."""

from collections.abc import AsyncIterator, Sequence
from itertools import takewhile
from typing import Any

from starlette.datastructures import UploadFile
from starlette.responses import Response

from blindopt import wire
from curator_service.console import uploads
from curator_service.console.reading import every, whose
from service_kit.console import ApiProblem, Form, Page, Pages, downloads
from service_kit.console.api import Upload
from service_kit.console.housekeeping import add_housekeeping, chosen, without_ids

pages = Pages()
_CHUNK = 1 << 18
_TRAIL = [("Datasets", "/datasets")]
_WITHHOLD_BY = ("file_row", "record", "label", "person")


@pages.get("/datasets", roles=("owner",), nav="Data")
async def listed(page: Page) -> Response:
    if page.query.get("as"):
        return await downloads.listing(page, "/v1/datasets", "datasets", "datasets", wire.DatasetView, **chosen(page))
    listing = await page.api.get("/v1/datasets", page_token=page.query.get("page_token"), **chosen(page))
    pending = (await page.api.get("/v1/uploads"))["uploads"]
    read = [job for job in (await page.api.get("/v1/jobs"))["jobs"] if job["kind"] == "reading"]
    return page.show("datasets.html", title="Datasets", listing=listing, pending=pending, read=read)


@pages.get("/datasets/new", roles=("owner",))
async def new(page: Page) -> Response:
    form = Form.blank(public="no", which="all")
    return page.show("dataset_new.html", title="Upload a dataset", trail=_TRAIL, form=form, chosen=None)


@pages.post("/datasets", roles=("owner",))
async def register(page: Page, form: Form) -> Response:
    """Register a file; where its columns need a decision, keep it and go to the page of these."""
    file = form.files.get("file")
    if file is None:
        form.wrong("file", "Choose a CSV or Parquet file")
        return _again(page, form.again(), file)
    upload = Upload(file.filename or "dataset.csv", _content(file))
    try:
        kept = await page.api.upload("/v1/uploads", {}, {"file": upload}, key=form.key)
    except ApiProblem as problem:
        failed = form.failed(problem)
        failed.errors.pop("", None)  # faults of the file: a table of its own shows them
        return _again(page, failed, file, problem.status)
    try:
        view = await page.api.read(f"/v1/uploads/{kept['id']}", wire.PendingUpload)
    except ApiProblem:  # the form was sent twice
        return page.go("/datasets", "This file was taken already.", mood="note")
    chosen = {name: form.get(name) for name in ("name", "public", "person", "rows_per_person") if form.get(name)}
    proposed = uploads.proposed(view, chosen)
    choice = uploads.choice_of(proposed, view)
    if proposed.ok and form.get("which") != "some" and uploads.is_clear(view, form.get("person")):
        return await uploads.store(page, view, choice, proposed)
    return page.go(f"/datasets/uploads/{kept['id']}", which=form.get("which"), **dict[str, Any](chosen))


def _again(page: Page, form: Form, file: UploadFile | None, status: int = 422) -> Response:
    context: dict[str, Any] = {"title": "Upload a dataset", "trail": _TRAIL, "form": form, "status": status}
    return page.show("dataset_new.html", chosen=file.filename if file is not None else None, **context)


async def _content(file: UploadFile) -> AsyncIterator[bytes]:
    while part := await file.read(_CHUNK):
        yield part


@pages.get("/datasets/{dataset_id}", roles=("owner",))
async def dataset(page: Page) -> Response:
    return await _shown(page, Form.blank())


async def _shown(page: Page, form: Form, status: int = 200, named: Sequence[dict[str, Any]] = ()) -> Response:
    """``named``: the records that are to be withheld, which the page asks to confirm."""
    view = await page.api.get(f"/v1/datasets/{page.path['dataset_id']}")
    if page.query.get("as") == "csv":
        head = ("column", "type", "missing", "minimum", "maximum")
        return page.csv(
            f"columns-{view['id']}", head, [[c["name"], *(c[h] for h in head[1:])] for c in view["columns"]]
        )
    account = await page.api.get(f"/v1/datasets/{view['id']}/account", page_size=1)
    withheld = await page.api.get(f"/v1/datasets/{view['id']}/withheld")
    context = {"dataset": view, "account": account, "withheld": withheld["withheld"], "form": form, "status": status}
    in_account = {registration["dataset_id"] for registration in account["registrations"]}
    is_private = not (view["public"] or view["sandbox"] or view["erased_at"])
    datasets = await every(page.api, "/v1/datasets", "datasets") if is_private else []
    context["earlier"] = [
        (other["id"], other["name"])
        for other in takewhile(lambda other: other["id"] != view["id"], datasets)
        if not (other["public"] or other["sandbox"] or other["id"] in in_account)
    ]
    context |= {"named": named, "withhold_by": _WITHHOLD_BY}
    picture = None if view["erased_at"] else await page.api.get(f"/v1/datasets/{view['id']}/picture")
    context |= {"picture": picture, "pictures": {p["column"]: p for p in picture["columns"]} if picture else {}}
    return page.show("dataset.html", title=view["name"], trail=_TRAIL, **context)


@pages.post("/datasets/{dataset_id}:withhold", roles=("owner",))
async def withhold(page: Page, form: Form) -> Response:
    where = f"/datasets/{page.path['dataset_id']}"
    body: dict[str, object] = {name: form.get(name) for name in ("label", "person") if form.get(name)}
    body |= {name: form.integer(name) for name in ("file_row", "record") if form.get(name)}
    if len(body) != 1:
        form.wrong("", "Fill in one of the fields")
    if not form.ok:
        return await _shown(page, form.again(), 422)
    try:
        named = (await page.api.post(f"/v1{where}:withhold", body | {"dry_run": True}))["named"]
        if not form.has("sure"):
            return await _shown(page, form.again(), named=named)
        await page.api.post(f"/v1{where}:withhold", body, key=form.key)
    except ApiProblem as problem:
        return await _shown(page, form.failed(problem), problem.status)
    records = ", ".join(whose(record) for record in named[:3]) + (", …" if len(named) > 3 else "")
    return page.go(where, f"Withheld: {records}. No study measures or releases it from now on.")


@pages.post("/datasets/{dataset_id}:decide", roles=("owner",))
async def decide(page: Page, form: Form) -> Response:
    where = f"/datasets/{page.path['dataset_id']}"
    continues = [dataset_id for dataset_id in form.all("continues") if dataset_id]
    decision = {"continues": continues, "separate": form.get("separate") or None}
    try:
        await page.api.post(
            f"/v1{where}:decide", decision | {"pseudonyms_differ": form.has("pseudonyms_differ")}, key=form.key
        )
    except ApiProblem as problem:
        return await _shown(page, form.failed(problem), problem.status)
    is_apart = not decision["continues"]
    return page.go(where, "The account is apart." if is_apart else "This file continues the account of an earlier one.")


@pages.get("/datasets/{dataset_id}/erasure", roles=("owner",))
async def erasure(page: Page) -> Response:
    return await _erasure(page, Form.blank())


async def _erasure(page: Page, form: Form, status: int = 200) -> Response:
    where = f"/datasets/{page.path['dataset_id']}"
    view = await page.api.get(f"/v1{where}")
    account = await page.api.get(f"/v1{where}/account")
    studies = [use for use in account["uses"] if use["kind"] == "study"]
    others = [other for other in account["registrations"] if other["dataset_id"] != view["id"]]
    context = {"dataset": view, "studies": studies, "others": others, "form": form, "status": status}
    trail = [*_TRAIL, (view["name"], where)]
    return page.show("dataset_erasure.html", title="Erase this dataset", trail=trail, **context)


@pages.post("/datasets/{dataset_id}:erase", roles=("owner",))
async def erase(page: Page, form: Form) -> Response:
    where = f"/datasets/{page.path['dataset_id']}"
    view = await page.api.get(f"/v1{where}")
    if form.get("name").strip() != view["name"].strip():
        form.wrong("name", "Type the name of the dataset as it is shown")
        return await _erasure(page, form.again(), 422)
    try:
        done = await page.api.post(f"/v1{where}:erase", key=form.key)
    except ApiProblem as problem:
        return page.go(f"{where}/erasure", without_ids(problem), mood="bad")
    counts = f"{done['replies']} replies and {done['measurements']} measurements"
    return page.go(where, f"Erased, with {counts}. Backups keep what they have until you delete them.")


add_housekeeping(
    pages,
    "/datasets",
    "dataset_id",
    "owner",
    {
        "archive": "Archived: you cannot make a new study on it. Existing studies continue.",
        "unarchive": "Out of the archive: you can make new studies on it.",
        "delete": "The dataset is deleted. The account of its file stays.",
    },
)
