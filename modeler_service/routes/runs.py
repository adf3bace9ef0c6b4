"""/v1/runs: optimizations and their trials; /v1/connections."""

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Depends, Header, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from blindopt import bodies, wire
from blindopt.errors import Invalid
from modeler_service.store import TrialFilter
from modeler_service.use_cases import exports, imports, run_events
from modeler_service.use_cases.modeler import Modeler, check_ended
from service_kit.web.dependencies import (
    JSON,
    NEEDS_ROOM,
    IdempotencyKey,
    RecordedReply,
    RequestContextDep,
    allowed,
    api_router,
    media_of,
    request_context,
)
from service_kit.web.listings import ListFilterDep, Order, PagingDep
from service_kit.web.problems import documented

router = api_router("runs", prefix="/v1/runs")
connections = api_router("runs", "vendor")
"""Trying a curator before a run is started."""
_READ = [allowed("vendor", "viewer")]
_WRITE = [allowed("vendor")]
_LARGEST = 2**31
PARQUET = "application/vnd.apache.parquet"
EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": ["trial", "correction", "run"]},
        "id": {"type": "string"},
        "data": {"type": "string", "description": "A TrialView or a RunView as JSON."},
    },
    "required": ["event", "data"],
}
BINARY: dict[str, Any] = {"type": "string", "format": "binary"}


async def modeler_of(request: Request) -> Modeler:
    """The use cases of the service that a request belongs to."""
    modeler: Modeler = request.app.state.modeler
    return modeler


ModelerDep = Annotated[Modeler, Depends(modeler_of)]
RunId = Annotated[str, Path(description="run_...")]


@router.post(
    "", status_code=201, response_model=wire.RunView, responses=documented(409), dependencies=[*_WRITE, NEEDS_ROOM]
)
def start_run(run: wire.RunCreate, caller: RequestContextDep, modeler: ModelerDep) -> Response:
    """Queue a run against a study of a curator. Returns the queued run."""
    return RecordedReply(modeler.start(caller, run))


@router.get("", dependencies=_READ)
def list_runs(
    modeler: ModelerDep, paging: PagingDep, list_filter: ListFilterDep, order: Order = "oldest"
) -> wire.RunPage:
    """List runs in the order of their creation, or the newest first."""
    numbered = modeler.runs(paging.token, paging.limit, newest=order == "newest", list_filter=list_filter)
    numbered, token = paging.cut(numbered, lambda pair: pair[0])
    runs = [run for _, run in numbered]
    return wire.RunPage(runs=runs, counts=modeler.counts(), tags=modeler.tags(), next_page_token=token)


@router.get("/{run_id}", dependencies=_READ)
async def get_run(
    run_id: RunId,
    modeler: ModelerDep,
    wait: Annotated[float, Query(ge=0, le=60, description="Seconds to wait for its end, or its pause.")] = 0.0,
) -> wire.RunView:
    """Get a run and its progress. Returns the run."""
    return await modeler.halted(run_id, wait)


@router.post("/{run_id}:stop", response_model=wire.RunView, responses=documented(409), dependencies=_WRITE)
def stop_run(run_id: RunId, caller: RequestContextDep, modeler: ModelerDep) -> Response:
    """End a run after the query under way; its answers are kept. Returns the run, which ends."""
    return RecordedReply(modeler.stop(caller, run_id))


@router.post("/{run_id}:pause", response_model=wire.RunView, responses=documented(409), dependencies=_WRITE)
def pause_run(run_id: RunId, caller: RequestContextDep, modeler: ModelerDep) -> Response:
    """Pause a run after the query under way, until it is resumed. Returns the run, which pauses."""
    return RecordedReply(modeler.pause(caller, run_id))


@router.post("/{run_id}:resume", response_model=wire.RunView, responses=documented(409), dependencies=_WRITE)
def resume_run(run_id: RunId, caller: RequestContextDep, modeler: ModelerDep) -> Response:
    """Resume a paused run, or retry one that did not reach its curator. Returns the run, which goes on."""
    return RecordedReply(modeler.resume(caller, run_id))


@router.post("/{run_id}:archive", response_model=wire.RunView, responses=documented(409), dependencies=_WRITE)
def archive_run(run_id: RunId, caller: RequestContextDep, modeler: ModelerDep) -> Response:
    """Archive an ended run: it keeps all that it has, and is no longer counted. Returns the archived run."""
    return RecordedReply(modeler.housekeeping.archive(caller, run_id, check_ended, archived=True))


@router.post("/{run_id}:unarchive", response_model=wire.RunView, responses=documented(409), dependencies=_WRITE)
def unarchive_run(run_id: RunId, caller: RequestContextDep, modeler: ModelerDep) -> Response:
    """Take a run out of the archive. Returns the run, out of the archive."""
    return RecordedReply(modeler.housekeeping.archive(caller, run_id, check_ended, archived=False))


@router.post("/{run_id}:delete", response_model=wire.Deleted, responses=documented(409), dependencies=_WRITE)
def delete_run(run_id: RunId, caller: RequestContextDep, modeler: ModelerDep) -> Response:
    """Delete an ended run with its answers and messages, and its candidates where no other run has them.

    The logs of both parties stay, and so does what the owner counted.
    """
    return RecordedReply(modeler.delete(caller, run_id))


@router.put("/{run_id}/labels", response_model=wire.RunView, responses=documented(409), dependencies=_WRITE)
def label_run(run_id: RunId, labels: wire.Labels, caller: RequestContextDep, modeler: ModelerDep) -> Response:
    """Replace note and tags of a run, which stay in this service. Returns the run with its new labels."""
    return RecordedReply(modeler.housekeeping.label(caller, run_id, labels))


@router.post("/{run_id}:replace_token", response_model=wire.RunView, responses=documented(409), dependencies=_WRITE)
def replace_token(
    run_id: RunId, token: wire.TokenReplacement, caller: RequestContextDep, modeler: ModelerDep
) -> Response:
    """Replace the token of a run by another one of the same grant. Returns the run, which uses the new token."""
    return RecordedReply(modeler.replace_token(caller, run_id, token))


async def _trial_filter(
    first: Annotated[int | None, Query(ge=1, le=_LARGEST, description="Smallest trial number.")] = None,
    last: Annotated[int | None, Query(ge=1, le=_LARGEST, description="Largest trial number.")] = None,
    row: Annotated[int | None, Query(ge=0, le=_LARGEST, description="Only trials of this candidate.")] = None,
    phase: Annotated[Literal["initial", "algorithm"] | None, Query(description="Only trials of this phase.")] = None,
    state: Annotated[
        Literal["answered", "declined", "open"] | None,
        Query(description="Only trials in this state; open: no answer yet."),
    ] = None,
) -> TrialFilter:
    return TrialFilter(first, last, row, phase, state)


@router.get("/{run_id}/trials", dependencies=_READ)
def list_trials(
    run_id: RunId,
    modeler: ModelerDep,
    paging: PagingDep,
    trial_filter: Annotated[TrialFilter, Depends(_trial_filter)],
    order: Order = "oldest",
    sort: Annotated[
        Literal["number", "row", "mean", "sd", "acquisition", "y"],
        Query(description="Sort by this field, with `offset`. The order `newest` sorts the largest first."),
    ] = "number",
    offset: Annotated[
        int | None,
        Query(ge=0, le=_LARGEST, description="Skip this many trials. Replaces page_token, and counts the trials."),
    ] = None,
) -> wire.TrialPage:
    """List trials with their answers, in order or the newest first, filtered and sorted."""
    newest = order == "newest"
    if offset is not None:
        if paging.token is not None:
            raise Invalid("a request has an offset or a page_token, not both")
        return modeler.sorted_trials(run_id, trial_filter, sort=sort, largest=newest, offset=offset, limit=paging.size)
    if sort != "number":
        raise Invalid("trials sorted by a field other than their number are read with an offset")
    trials = modeler.trials(run_id, paging.token, paging.limit, newest=newest, trial_filter=trial_filter)
    trials, token = paging.cut(trials, lambda trial: trial.number)
    return wire.TrialPage(trials=trials, next_page_token=token)


@router.get("/{run_id}/curve", dependencies=_READ)
def get_run_curve(
    run_id: RunId,
    modeler: ModelerDep,
    points: Annotated[int, Query(ge=2, le=5_000, description="Largest number of points.")] = 500,
    first: Annotated[int, Query(ge=1, le=_LARGEST, description="First trial of the chart.")] = 1,
    last: Annotated[int | None, Query(ge=1, le=_LARGEST, description="Last trial of the chart.")] = None,
) -> wire.RunCurve:
    """Get the course of a run for a chart: answers, the best so far, and what was expected."""
    return modeler.curve(run_id, points, first, last)


@router.get(
    "/{run_id}/export",
    response_model=wire.RunExport,
    responses={
        200: {"content": {"text/csv": {"schema": {"type": "string"}}, PARQUET: {"schema": BINARY}}},
        **documented(),
    },
    dependencies=_READ,
)
def export_run(
    run_id: RunId,
    modeler: ModelerDep,
    form: Annotated[
        Literal["json", "csv", "parquet"],
        Query(
            alias="format",
            description="json: the run, its trials and what it began with; csv: the trials; parquet: the trials, and "
            "all else as metadata.",
        ),
    ] = "json",
) -> Response:
    """Export everything needed to redo a run (json, parquet), or its trials alone (csv)."""
    exported = modeler.export(run_id)
    headers = {"Content-Disposition": f'attachment; filename="{run_id}.{form}"'}
    if form == "csv":
        return Response(exports.as_csv(exported), headers=headers, media_type="text/csv")
    if form == "parquet":
        return Response(exports.as_parquet(exported), headers=headers, media_type=PARQUET)
    return Response(exported.model_dump_json(), media_type="application/json")


@router.get("/{run_id}/recommendation", responses=documented(409), dependencies=_READ)
def get_recommendation(
    run_id: RunId,
    modeler: ModelerDep,
    over: Annotated[
        Literal["asked", "all"], Query(description="asked: the best of the queried candidates; all: the best of all.")
    ] = "asked",
) -> wire.Recommendation:
    """Get the recommended candidate after the answers so far, with an interval."""
    return modeler.recommendation(run_id, over)


@router.get("/{run_id}/posterior", responses=documented(409), dependencies=_READ)
def get_posterior(
    run_id: RunId,
    modeler: ModelerDep,
    paging: PagingDep,
    top: Annotated[
        int | None,
        Query(ge=1, le=1_000, description="Return this many rows, those of the best means, instead of a page."),
    ] = None,
    by: Annotated[
        Literal["mean", "improvement"],
        Query(description="With top: the best posterior means, or the largest expected improvements."),
    ] = "mean",
) -> wire.PosteriorPage:
    """Get the posterior after the answers so far: by candidate, or the best candidates."""
    if top is not None:
        outcomes, points = modeler.posteriors.top(run_id, top, by)
        return wire.PosteriorPage(outcomes=outcomes, points=points)
    after = -1 if paging.token is None else min(paging.token, 2**31)
    outcomes, points = modeler.posteriors.posterior(run_id, after + 1, paging.limit)
    points, token = paging.cut(points, lambda point: point.row)
    return wire.PosteriorPage(outcomes=outcomes, points=points, next_page_token=token)


@router.get("/{run_id}/map", responses=documented(409), dependencies=_READ)
def get_map(
    run_id: RunId,
    modeler: ModelerDep,
    points: Annotated[
        int, Query(ge=1, le=5_000, description="Approximate number of candidates besides those queried.")
    ] = 1_000,
) -> wire.PosteriorMap:
    """Get the posterior over the first two principal axes of the candidates, for a chart."""
    return modeler.posteriors.map(run_id, points)


@router.get("/{run_id}/slices", responses=documented(409), dependencies=_READ)
def get_slices(
    run_id: RunId,
    modeler: ModelerDep,
    points: Annotated[int, Query(ge=1, le=5_000, description="Approximate number of candidates.")] = 1_000,
) -> wire.PosteriorSlices:
    """Get how the posterior mean changes along each axis, and how much each axis explains."""
    return modeler.posteriors.slices(run_id, points)


@router.get(
    "/{run_id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": EVENT}}}, **documented()},
    dependencies=_READ,
)
async def follow_run(
    request: Request,
    run_id: RunId,
    modeler: ModelerDep,
    last_event_id: Annotated[
        str | None, Header(pattern=r"^[0-9]{1,9}$", description="Number of the last trial that was sent.")
    ] = None,
) -> Response:
    """Follow a run by server-sent events: `trial` for each answer or decline, `run` for each new state.

    `correction` (without an id) repeats a trial whose answer was corrected or came late. The stream ends with the run.
    A connection that breaks, or is ended after ten minutes, goes on by Last-Event-ID. Returns a stream of events.
    """
    load = partial(modeler.update, run_id)
    batches = run_events.batches(load, int(last_event_id or 0), modeler.wakeups)
    stream = await modeler.streams.open(request.state.principal.id, batches)
    return StreamingResponse(stream, media_type="text/event-stream")


@router.post(
    "/{run_id}/observations",
    status_code=201,
    response_model=wire.ImportReport,
    responses={
        200: {"model": wire.ImportReport, "description": "A dry run: nothing was stored."},
        **documented(409, 502),
    },
    dependencies=_WRITE,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"$ref": "#/components/schemas/ObservationImport"}},
                "text/csv": {"schema": {"type": "string", "example": "row,y,noise_variance\n17,0.25,\n"}},
            },
        }
    },
)
async def import_observations(
    request: Request,
    run_id: RunId,
    modeler: ModelerDep,
    idempotency_key: IdempotencyKey = None,
    dry_run: Annotated[bool, Query(description="Check every line and store nothing.")] = False,
) -> Response:
    """Add past measurements to a run that was created with `hold`, as JSON or CSV. The curator never sees them."""
    body = await request.body()
    if body and media_of(request, JSON, "text/csv") == "text/csv":
        past = await run_in_threadpool(imports.of_csv, body)
    else:
        past = imports.of_json(await bodies.parse_beside(body, wire.ObservationImport))
    context = await request_context(request, idempotency_key)  # its digest needs the whole body, which is read by now
    if dry_run:
        report = await run_in_threadpool(modeler.check_import, context, run_id, past)
        return Response(report.model_dump_json(), media_type="application/json")
    return RecordedReply(await run_in_threadpool(modeler.observe, context, run_id, past))


@connections.post("/v1/connections:test")
def test_connection(request: Request, access: wire.StudyAccess, modeler: ModelerDep) -> wire.ConnectionReport:
    """Test whether a run could be started with these settings. Creates and spends nothing: no key is needed.

    Each principal has one test at a time: another gets 503 `busy`.
    """
    return modeler.try_connection(access, request.state.principal)
