"""/v1/datasets: the owner's tables; /v1/uploads: files that wait until it is decided how their columns are read."""

from dataclasses import replace
from functools import partial
from typing import Annotated, Any, BinaryIO

from fastapi import Depends, File, Form, Path, Query, Request, UploadFile
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from blindopt import wire
from blindopt.errors import Invalid
from blindopt.faults import check_name, nearest, parse
from curator_service.curator import Curator
from curator_service.datasets.datasets import Upload
from curator_service.routes import CuratorDep, DatasetId
from service_kit.context.request import RequestContext
from service_kit.store.labels import ListFilter
from service_kit.store.stored_replies import StoredReply
from service_kit.web.dependencies import NEEDS_ROOM, RecordedReply, RequestContextDep, UnkeyedContextDep, api_router
from service_kit.web.listings import Archived, PagingDep
from service_kit.web.problems import documented

router = api_router("datasets", "owner", prefix="/v1/datasets")
_SOURCES = ("file", "import_name", "upload")
FIELDS = ("name", "public", *wire.ReadingChoice.model_fields, *_SOURCES)


async def check_fields(request: Request) -> None:
    """Raise Invalid for a form field that is unknown, repeated or empty: a typo must not widen what is stored."""
    items = (await request.form()).multi_items()
    sent = [name for name, _ in items]
    for name, value in items:
        if isinstance(value, str) and not value.strip(
            " \r\n"
        ):  # the framework takes an empty one for one that was left out
            raise Invalid.at(name[:60], "is empty: send a value or leave it out")
        if name not in FIELDS or sent.count(name) > 1:
            message = "is there twice" if name in FIELDS else f"is no field here{nearest(name, FIELDS)}"
            raise Invalid.at(name[:60], message)


@router.post(
    "",
    dependencies=[NEEDS_ROOM, Depends(check_fields)],
    status_code=201,
    response_model=wire.DatasetView,
    responses=documented(409),
)
async def register_dataset(
    caller: RequestContextDep,
    curator: CuratorDep,
    name: Annotated[wire.Name, Form(description="For people.")],
    public: Annotated[bool, Form(description="Nobody in it needs protection.")] = False,
    columns: Annotated[
        str | None,
        Form(
            min_length=1,
            description=(
                "JSON list of the columns to read and store; all others are left out. Default: all, as numbers. Each "
                'is a name, or a ColumnChoice: {"column": "cut", "kind": "one_hot", "values": ["Good", "Ideal"]}.'
            ),
        ),
    ] = None,
    person: Annotated[
        wire.Name | None,
        Form(
            description=(
                "Column that says whose each row is: text or numbers. Only a keyed digest is stored. With it, "
                "every guarantee of the dataset's studies is for a person. Default: each row is a person of its own."
            )
        ),
    ] = None,
    rows_per_person: Annotated[
        int | None,
        Form(
            ge=1,
            le=wire.ROWS_PER_PERSON_MAX,
            description="With person: so many rows of one person are kept, chosen at random; a public number.",
        ),
    ] = None,
    person_ids: Annotated[
        wire.PersonIds | None,
        Form(
            description="With person: folded_1 takes ids for one person that differ only in how they are written, as "
            "1017 and 1017.0; as_written takes these for two persons. Default: folded_1, and asked where ids differ so."
        ),
    ] = None,
    separator: Annotated[
        wire.Separator | None, Form(description="What separates cells of a CSV file. Default: detected.")
    ] = None,
    decimal: Annotated[
        wire.DecimalSign | None,
        Form(description="Decimal sign of a CSV file. Default: detected; a comma only if it does not separate cells."),
    ] = None,
    encoding: Annotated[wire.Encoding | None, Form(description="Encoding of a CSV file. Default: utf-8.")] = None,
    missing_values: Annotated[
        str | None,
        Form(
            min_length=1,
            description='JSON list of further cells that count as missing in every column: ["?", "-999"].',
        ),
    ] = None,
    file: Annotated[
        UploadFile | None, File(description="CSV in UTF-8 with a header, or *.parquet; either may be a .gz.")
    ] = None,
    import_name: Annotated[
        str | None, Form(min_length=1, description="Instead of file: one in the configured import folder.")
    ] = None,
    upload: Annotated[
        str | None, Form(min_length=1, description="Instead of file: the id of a pending upload, which ends with this.")
    ] = None,
) -> Response:
    """Register a CSV or Parquet file. It is checked whole; on any error nothing is stored.

    All registrations of one file must have the same person and rows_per_person: 409 otherwise, unless the other one is
    archived and was never used. Returns the new dataset.
    """
    check_name(name)
    if (person is None) != (rows_per_person is None):
        missing = "rows_per_person" if rows_per_person is None else "person"
        raise Invalid.at(missing, "is missing: send both person and rows_per_person, or neither")
    if person is None and person_ids is not None:
        raise Invalid.at("person", "is missing: person_ids is about its column")
    if sum(source is not None for source in (file, import_name, upload)) != 1:
        raise Invalid.at("file", f"must be there, or another of {', '.join(_SOURCES)}, and one alone")
    reading = wire.ReadingChoice(
        separator=separator,
        decimal=decimal,
        encoding=encoding,
        missing_values=_list(wire.Markers, "missing_values", missing_values, '["?", "-999"]') or [],
        columns=_list(list[wire.ChosenColumn], "columns", columns, '["age", "stay"]'),
        person=person,
        rows_per_person=rows_per_person,
        person_ids=person_ids,
    )
    request = Upload(name, public, "", reading)
    if upload is not None:
        return RecordedReply(await _pending(curator, caller, request, upload))
    if file is not None:
        return RecordedReply(
            await _registered(curator, caller, replace(request, filename=file.filename or ""), file.file)
        )
    assert import_name is not None
    path = curator.datasets.import_path(import_name)
    with path.open("rb") as opened:
        return RecordedReply(await _registered(curator, caller, replace(request, filename=path.name), opened))


async def _registered(curator: Curator, caller: RequestContext, request: Upload, file: BinaryIO) -> StoredReply:
    return await curator.readings.run(request.filename, file, partial(curator.datasets.register, caller, request, file))


async def _pending(curator: Curator, caller: RequestContext, request: Upload, upload_id: str) -> StoredReply:
    earlier = await run_in_threadpool(curator.datasets.earlier_pending, caller, request, upload_id)
    if earlier is not None:
        return earlier
    with curator.uploads.opened(caller.principal, upload_id) as (pending, file):
        register = partial(curator.datasets.register_pending, caller, request, pending, file)
        return await curator.readings.run(pending.filename, file, register)


def _list(kind: Any, field: str, sent: str | None, example: str) -> Any:
    """A list that was sent as JSON in a form. Raises Invalid."""
    if sent is None:
        return None
    try:
        return parse(kind, sent, lambda path: f"{field}.{path}")
    except Invalid as error:
        if error.errors[0]["field"] == f"{field}.body":
            raise Invalid.at(field, f"must be a JSON list, such as {example}") from None
        raise


@router.get("")
def list_datasets(
    curator: CuratorDep,
    paging: PagingDep,
    archived: Archived = None,
    undecided: Annotated[
        bool, Query(description="Only those with people of earlier ones, about whom their owner has not decided.")
    ] = False,
) -> wire.DatasetPage:
    """List datasets in the order of their registration."""
    read = curator.datasets.undecided if undecided else partial(curator.datasets.page, list_filter=ListFilter(archived))
    datasets, token = paging.read(read)
    return wire.DatasetPage(datasets=datasets, next_page_token=token)


@router.get("/{dataset_id}")
def get_dataset(dataset_id: DatasetId, curator: CuratorDep) -> wire.DatasetView:
    """Get a dataset with its columns. Returns the dataset."""
    return curator.datasets.view(dataset_id)


@router.get("/{dataset_id}/picture")
def get_picture(dataset_id: DatasetId, curator: CuratorDep) -> wire.DatasetPicture:
    """Get a histogram of each column, and how many records are copies: for the owner alone, stored nowhere."""
    return curator.datasets.picture(dataset_id)


@router.post("/{dataset_id}:withhold", response_model=wire.WithheldReply, responses=documented(409))
def withhold_record(
    dataset_id: DatasetId, body: wire.WithholdCreate, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Withhold a record in every study of its file: modelers see it declined.

    What has left stays with the modelers. The log says that a record is withheld, not which. A dry run names the
    records, with their labels.
    """
    if body.dry_run:
        return JSONResponse(curator.withholding.named(dataset_id, body).model_dump(mode="json"))
    return RecordedReply(curator.withholding.withhold(caller, dataset_id, body))


@router.post("/{dataset_id}:decide", response_model=wire.DatasetView, responses=documented(409))
def decide_overlap(
    dataset_id: DatasetId, body: wire.OverlapDecision, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Decide whose account a dataset continues that has people of earlier ones.

    Until then its releases, tunings and bounds get 409 overlap_undecided. Returns the dataset with its account.
    """
    return RecordedReply(curator.datasets.decide(caller, dataset_id, body))


@router.get("/{dataset_id}/withheld")
def list_withheld(dataset_id: DatasetId, curator: CuratorDep, paging: PagingDep) -> wire.WithheldPage:
    """List the withheld records of a dataset's file, in the order of their withholding."""
    rows, token = paging.read(lambda after, limit: curator.withholding.page(dataset_id, after, limit))
    return wire.WithheldPage(withheld=rows, next_page_token=token)


@router.post("/{dataset_id}:report")
def report_dataset(dataset_id: DatasetId, curator: CuratorDep) -> wire.SignedPrivacyReport:
    """Write a privacy report on every study of a dataset's file, signed with the key of the log.

    It has no attacks. Returns the report on the dataset and its signature.
    """
    return curator.privacy_reports.of_dataset(dataset_id)


@router.post("/{dataset_id}:letter")
def write_letter(
    dataset_id: DatasetId, body: wire.LetterCreate, caller: UnkeyedContextDep, curator: CuratorDep
) -> wire.SignedLetter:
    """Write a letter to a person: what left of her records, when, to whom, and what anyone can become sure of.

    Stored nowhere. Logged as `letter.written`, with the digest of the letter, and not whose it is.
    """
    return curator.letters.write(caller, dataset_id, body)


@router.post("/{dataset_id}:bounds", response_model=wire.PrivateBounds, responses=documented(403, 409))
def find_bounds(
    dataset_id: DatasetId, body: wire.BoundsCreate, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Find quantiles of columns privately, for public bounds, or for centre and bound of outcomes.

    epsilon is charged to every record of the dataset's file before the draw. After a crash the same request under its
    key is not charged again.
    """
    return RecordedReply(curator.bounds.find(caller, dataset_id, body))


@router.post("/{dataset_id}:clips")
def count_clips(dataset_id: DatasetId, body: wire.ClipsRequest, curator: CuratorDep) -> wire.ClipsView:
    """Count the values that bounds would clip: exactly, for the owner alone, stored and logged nowhere.

    Bounds may be checked by it, and not chosen: what choosing by it leaks is not counted.
    """
    return curator.datasets.clips(dataset_id, body)


@router.get("/{dataset_id}/bounds")
def list_bounds(dataset_id: DatasetId, curator: CuratorDep, paging: PagingDep) -> wire.BoundsPage:
    """List private bounds of a dataset's file, in the order of their charges."""
    bounds, token = paging.read(lambda after, limit: curator.bounds.page(dataset_id, after, limit))
    return wire.BoundsPage(bounds=bounds, next_page_token=token)


@router.post("/{dataset_id}:archive", response_model=wire.DatasetView, responses=documented(409))
def archive_dataset(dataset_id: DatasetId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Archive a dataset: refuse new studies on it. Returns the archived dataset."""
    return RecordedReply(curator.datasets.archive(caller, dataset_id, archived=True))


@router.post("/{dataset_id}:unarchive", response_model=wire.DatasetView, responses=documented(409))
def unarchive_dataset(dataset_id: DatasetId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Allow new studies on a dataset again.

    409 where another registration of its file counts other persons. Returns the dataset, out of the archive.
    """
    return RecordedReply(curator.datasets.archive(caller, dataset_id, archived=False))


@router.post("/{dataset_id}:erase", response_model=wire.DatasetErased, responses=documented(409))
def erase_dataset(dataset_id: DatasetId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Erase an archived dataset for good: its records, and of its studies candidates, answers, and what was measured.

    Ids, sizes, charges, the ledger and both logs stay. Requests for what was erased get 410. 409 names the studies that
    are open and the work that is under way.
    """
    return RecordedReply(curator.erasures.erase(caller, dataset_id))


@router.post("/{dataset_id}:delete", response_model=wire.Deleted, responses=documented(409))
def delete_dataset(dataset_id: DatasetId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Delete a dataset that nothing charged: its values, what was made from them, and its columns.

    What the file was charged, its caps and its withheld records stay with the digest of the file, and count again when
    the file is registered again. 409 names what uses it. Returns the id of the deleted dataset.
    """
    return RecordedReply(curator.datasets.delete(caller, dataset_id))


uploads_router = api_router("uploads", "owner", prefix="/v1/uploads")
UploadId = Annotated[str, Path(description="upl_...")]


@uploads_router.post(
    "", status_code=201, response_model=wire.UploadCreated, responses=documented(409), dependencies=[NEEDS_ROOM]
)
async def upload_file(
    caller: RequestContextDep,
    curator: CuratorDep,
    file: Annotated[UploadFile, File(description="CSV in UTF-8 with a header, or *.parquet; either may be a .gz.")],
) -> Response:
    """Keep a file for 24 hours, to see what its columns hold and decide how each is read; then register it by its id.

    Only its owner sees it. At most 10 files of an owner are kept: 409 for one more. A broken one is refused.
    A large file waits for its turn: two are read at once, and `GET /v1/jobs` lists them.
    """
    name = file.filename or ""
    keep = partial(curator.uploads.keep, caller, name, file.file)
    return RecordedReply(await curator.readings.run(name, file.file, keep))


@uploads_router.get("")
def list_uploads(caller: UnkeyedContextDep, curator: CuratorDep) -> wire.UploadPage:
    """List your pending files, oldest first: all of them."""
    return wire.UploadPage(uploads=curator.uploads.all(caller.principal), next_page_token=None)


@uploads_router.get("/{upload_id}")
def get_upload(upload_id: UploadId, caller: UnkeyedContextDep, curator: CuratorDep) -> wire.PendingUpload:
    """Show what the columns of a pending file hold. It is made from the records: do not pass it on."""
    return curator.uploads.view(caller.principal, upload_id)


@uploads_router.post("/{upload_id}:read")
async def read_upload(
    upload_id: UploadId, body: wire.ReadingChoice, caller: UnkeyedContextDep, curator: CuratorDep
) -> wire.PendingUpload:
    """Read a pending file in another way, and count what a registration would then store. Nothing is stored.

    Without columns those that can be read without a question are proposed. The choice stays with the file. Returns how
    the file is read now.
    """
    with curator.uploads.lent(caller.principal, upload_id) as (pending, file):
        work = partial(curator.uploads.read, caller.principal, pending, file, body)
        return await curator.readings.run(pending.filename, file, work)


@uploads_router.post("/{upload_id}:discard", response_model=wire.UploadDiscarded, responses=documented(409))
def discard_upload(upload_id: UploadId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Delete a pending file."""
    return RecordedReply(curator.uploads.discard(caller, upload_id))
