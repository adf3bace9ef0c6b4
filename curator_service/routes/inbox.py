"""/v1/inbox and /v1/queries: measurements by the owner's people and systems."""

from functools import partial
from typing import Annotated

from fastapi import Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from blindopt import wire
from curator_service.queries.inbox.inbox import Corrections, Filter
from curator_service.queries.inbox.spreadsheet import Commas
from curator_service.routes import CuratorDep, QueryId
from service_kit.web.dependencies import (
    IdempotencyKey,
    RecordedReply,
    RequestContextDep,
    allowed,
    api_router,
    media_of,
    request_context,
)
from service_kit.web.listings import PagingDep
from service_kit.web.problems import documented

router = api_router("inbox", "owner", "measurer")
MeasurementId = Annotated[str, Path(description="msr_...")]
OfStudy = Annotated[str | None, Query(max_length=100, description="Of this study alone.")]
OfQuery = Annotated[str | None, Query(max_length=100, description="Of this query alone.")]
CSV = "text/csv"
IMPORT_PATH = "/v1/inbox:import"
LARGE = (IMPORT_PATH,)
LARGE_BYTES = 32 << 20
"""Paths that take larger bodies than others do."""
_FILE = {"schema": {"type": "string", "example": "measurement_id,value\nmsr_0123456789abcdef,0.25\n"}}
_EVENT = {
    "schema": {
        "type": "object",
        "properties": {
            "event": {"type": "string", "enum": ["inbox"]},
            "data": {"type": "string", "description": "How many wait, and a number that grows: InboxNews as JSON."},
        },
        "required": ["event", "data"],
    }
}


@router.get("/v1/inbox")
def list_inbox(
    curator: CuratorDep,
    paging: PagingDep,
    study_id: OfStudy = None,
    query_id: OfQuery = None,
    state: Annotated[Filter, Query(description="In this state alone.")] = "open",
    system: Annotated[
        wire.MeasurerState | None, Query(description="Of these, those to which the owner's system stands so.")
    ] = None,
) -> wire.InboxPage:
    """List requested measurements, oldest first: the open ones by default."""
    items, waiting = curator.inbox.page(state, study_id, query_id, paging.after, paging.limit, system)
    items, token = paging.cut(items, lambda item: item.seq)
    return wire.InboxPage(items=items, open=waiting, next_page_token=token)


@router.get("/v1/inbox/measurements/{measurement_id}")
def get_measurement(measurement_id: MeasurementId, curator: CuratorDep) -> wire.InboxItem:
    """Get a measurement with its last entry."""
    return curator.inbox.view(measurement_id)


@router.post(
    "/v1/inbox/measurements/{measurement_id}:try_again", response_model=wire.TriedAgain, responses=documented(409)
)
def try_measurement_again(measurement_id: MeasurementId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Send a measurement that waits or was given up to the owner's system now. Returns the time of the call."""
    return RecordedReply(curator.webhook_measurer.try_again(caller, measurement_id))


@router.get("/v1/inbox/system")
def get_measuring_system(curator: CuratorDep) -> wire.MeasuringSystem:
    """Get the state of the owner's measuring system, and how many measurements wait for it."""
    return curator.webhook_measurer.system()


@router.post("/v1/inbox/system:try_again", response_model=wire.TriedAgain, responses=documented(409))
def try_measurements_again(caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Send measurements that wait or were given up (10,000 at most) to the owner's system. Returns their number."""
    return RecordedReply(curator.webhook_measurer.try_again(caller, None))


@router.get("/v1/inbox.csv", response_class=Response, responses={200: {"content": {CSV: _FILE}}})
def export_inbox(curator: CuratorDep, study_id: OfStudy = None) -> Response:
    """Export the oldest 10,000 open measurements: fill in value or decline_reason, and import the file.

    UTF-8 with a byte order mark. Text that a spreadsheet would take for a formula begins with an apostrophe. Returns a
    CSV file.
    """
    headers = {"Content-Disposition": 'attachment; filename="inbox.csv"'}
    return Response(curator.inbox.export(study_id), media_type=f"{CSV}; charset=utf-8", headers=headers)


@router.post(
    IMPORT_PATH,
    status_code=201,
    response_model=wire.InboxImport,
    responses={200: {"model": wire.InboxImport, "description": "A dry run: nothing was stored."}, **documented(409)},
    openapi_extra={"requestBody": {"required": True, "content": {CSV: _FILE}}},
)
async def import_inbox(
    request: Request,
    curator: CuratorDep,
    idempotency_key: IdempotencyKey = None,
    dry_run: Annotated[bool, Query(description="Check every line and store nothing.")] = False,
    commas: Annotated[
        Commas,
        Query(
            description="Whether the decimal sign is a comma, or commas group thousands; ask: the sheet's numbers say "
            "it, or it is refused with both readings."
        ),
    ] = "ask",
    corrections: Annotated[
        Corrections,
        Query(description="What to do with another value than the stored one; ask: the line is refused."),
    ] = "ask",
    consent: Annotated[
        bool, Query(description="Must be true where an item has a consent: it was read to each person, who agreed.")
    ] = False,
) -> Response:
    """Import a filled-in spreadsheet: all of it, or nothing if a line is wrong. `errors` has line and column.

    Cells may be separated by commas, semicolons, tabs or bars, and numbers have one decimal sign.
    Only measurement_id, value, decline_reason and note are read; a line with neither value nor reason is left open.
    A line with what is stored already changes nothing (nor does its note), so that a file can be imported again when
    more of it is filled in. A value of a withheld record is skipped, and counted. A dry run lists lines with another
    value or reason, and epsilon that correcting them would use.
    """
    if body := await request.body():
        media_of(request, CSV)
    caller = await request_context(request, idempotency_key)
    import_ = partial(curator.inbox.import_, dry_run=dry_run, commas=commas, corrections=corrections, agreed=consent)
    reply = await run_in_threadpool(import_, caller, body)
    if isinstance(reply, wire.InboxImport):
        return Response(reply.model_dump_json(), 200, media_type="application/json")
    return RecordedReply(reply)


@router.get(
    "/v1/inbox/events", response_class=StreamingResponse, responses={200: {"content": {"text/event-stream": _EVENT}}}
)
async def follow_inbox(
    request: Request,
    curator: CuratorDep,
    seconds: Annotated[float, Query(ge=0, le=600, description="When the stream ends.")] = 300.0,
) -> Response:
    """Follow the inbox by server-sent events: `inbox` now and after each change. Returns a stream that may end."""
    stream = await curator.inbox.follow(request.state.principal.id, seconds)
    return StreamingResponse(stream, media_type="text/event-stream")


@router.post("/v1/queries/{query_id}:answer", response_model=wire.QueryMeasurements, responses=documented(409))
def answer_query(
    query_id: QueryId, answers: wire.AnswerCreate, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Enter measured values of a query, of declined and overdue ones too. Returns them with the new values."""
    return RecordedReply(curator.inbox.answer(caller, query_id, answers))


@router.post("/v1/queries/{query_id}:decline", response_model=wire.QueryMeasurements, responses=documented(409))
def decline_query(
    query_id: QueryId, decline: wire.DeclineCreate, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Decline measurements that will not be made.

    The modeler learns that the row has no answer, and not why. Returns the measurements of the query, with those that
    were declined.
    """
    return RecordedReply(curator.inbox.decline(caller, query_id, decline))


@router.post("/v1/queries/{query_id}:correct", response_model=wire.QueryMeasurements, responses=documented(409))
def correct_query(
    query_id: QueryId, corrections: wire.CorrectCreate, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Correct entered values of a query.

    If y is private, an answer that was released is released again, and charged. `void` takes answers back: they are
    declined from now on, which releases and costs nothing, so no cap refuses it. A mean of several measurements is
    declined whole when one of them is void: `:release_mean` releases the mean of the others. A new answer instead of a
    void one is charged as a correction. Answers that did not change stay as they were released. 403 with `budget` if
    the budget does not allow a value: then nothing changes, so send `void` alone. Returns the measurements of the
    query, with the corrected values.
    """
    return RecordedReply(curator.inbox.correct(caller, query_id, corrections))


@router.post(
    "/v1/queries/{query_id}:release_mean",
    response_model=wire.QueryMeasurements,
    responses=documented(409),
    dependencies=[allowed("owner")],
)
def release_mean(
    query_id: QueryId, means: wire.MeanRelease, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Release means that are held back since a measurement was retracted, over the others.

    Each is a new number about the same record, and charged as a correction. 409 if nothing is held back. 403 with
    `budget` if the budget does not allow it: then nothing changes, and what was taken back stays declined. Returns the
    measurements of the query, with the released means.
    """
    return RecordedReply(curator.inbox.release_means(caller, query_id, means))
