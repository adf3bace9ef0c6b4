"""/v1/runs: optimizations and their trials."""

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from blindopt import wire
from modeler_service.use_cases import exports, imports
from modeler_service.use_cases.modeler import Modeler
from service_kit.web.dependencies import (
    IdempotencyKey,
    PageSize,
    PageToken,
    RequestContextDep,
    allowed,
    answer,
    body_of,
    page_of,
    request_context,
)
from service_kit.web.problems import documented

router = APIRouter(prefix="/v1/runs", tags=["runs"])
_READ = [allowed("vendor", "viewer")]
_WRITE = [allowed("vendor")]
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
    """The service behind a request."""
    modeler: Modeler = request.app.state.modeler
    return modeler


ModelerDep = Annotated[Modeler, Depends(modeler_of)]
RunId = Annotated[str, Path(description="run_...")]


@router.post(
    "",
    status_code=201,
    response_model=wire.RunView,
    responses=documented(409),
    dependencies=_WRITE,
    operation_id="start_run",
)
def start(request: Request, run: wire.RunCreate, caller: RequestContextDep, modeler: ModelerDep) -> Response:
    """Queue an optimization against a study of a curator."""
    return answer(request, modeler.start(caller, run))


@router.get("", response_model=wire.RunPage, responses=documented(), dependencies=_READ, operation_id="list_runs")
def listed(
    modeler: ModelerDep,
    page_size: PageSize = 50,
    page_token: PageToken = None,
    order: Annotated[Literal["oldest", "newest"], Query(description="Which come first.")] = "oldest",
) -> wire.RunPage:
    """Runs in the order of their creation, or the newest first."""
    after = None if page_token is None else int(page_token)
    listed = modeler.runs(after, page_size + 1, newest=order == "newest")
    found, token = page_of(listed, page_size, lambda item: item[0])
    return wire.RunPage(runs=[view for _, view in found], counts=modeler.counts(), next_page_token=token)


@router.get(
    "/{run_id}", response_model=wire.RunView, responses=documented(), dependencies=_READ, operation_id="get_run"
)
def one(run_id: RunId, modeler: ModelerDep) -> wire.RunView:
    """A run and how far it is."""
    return modeler.run(run_id)


@router.post(
    "/{run_id}:stop",
    response_model=wire.RunView,
    responses=documented(409),
    dependencies=_WRITE,
    operation_id="stop_run",
)
def stop(request: Request, run_id: RunId, caller: RequestContextDep, modeler: ModelerDep) -> Response:
    """End it after the query under way; what was answered is kept."""
    return answer(request, modeler.stop(caller, run_id))


@router.post(
    "/{run_id}:pause",
    response_model=wire.RunView,
    responses=documented(409),
    dependencies=_WRITE,
    operation_id="pause_run",
)
def pause(request: Request, run_id: RunId, caller: RequestContextDep, modeler: ModelerDep) -> Response:
    """Halt it after the query under way, until it is resumed."""
    return answer(request, modeler.pause(caller, run_id))


@router.post(
    "/{run_id}:resume",
    response_model=wire.RunView,
    responses=documented(409),
    dependencies=_WRITE,
    operation_id="resume_run",
)
def resume(request: Request, run_id: RunId, caller: RequestContextDep, modeler: ModelerDep) -> Response:
    """Let a paused run go on; one that waits for its curator tries at once."""
    return answer(request, modeler.resume(caller, run_id))


@router.post(
    "/{run_id}:replace_token",
    response_model=wire.RunView,
    responses=documented(409),
    dependencies=_WRITE,
    operation_id="replace_token",
)
def replace_token(
    request: Request,
    run_id: RunId,
    token: wire.TokenReplacement,
    caller: RequestContextDep,
    modeler: ModelerDep,
) -> Response:
    """Go on under another token of the same grant."""
    return answer(request, modeler.replace_token(caller, run_id, token))


@router.get(
    "/{run_id}/trials",
    response_model=wire.TrialPage,
    responses=documented(),
    dependencies=_READ,
    operation_id="list_trials",
)
def trials(
    run_id: RunId,
    modeler: ModelerDep,
    page_size: PageSize = 50,
    page_token: PageToken = None,
    order: Annotated[Literal["oldest", "newest"], Query(description="Which come first.")] = "oldest",
) -> wire.TrialPage:
    """Chosen rows with their answers, in the order of their choice, or the newest first."""
    after = None if page_token is None else int(page_token)
    found = modeler.trials(run_id, after, page_size + 1, newest=order == "newest")
    shown, token = page_of(found, page_size, lambda trial: trial.number)
    return wire.TrialPage(trials=shown, next_page_token=token)


@router.get(
    "/{run_id}/curve",
    response_model=wire.RunCurve,
    responses=documented(),
    dependencies=_READ,
    operation_id="get_run_curve",
)
def curve(
    run_id: RunId,
    modeler: ModelerDep,
    points: Annotated[int, Query(ge=2, le=5_000, description="At most so many.")] = 500,
) -> wire.RunCurve:
    """How a run went, thinned for a chart: y, the best y so far, and what was expected of the row."""
    return modeler.curve(run_id, points)


@router.get(
    "/{run_id}/export",
    response_model=wire.RunExport,
    responses={
        200: {"content": {"text/csv": {"schema": {"type": "string"}}, PARQUET: {"schema": BINARY}}},
        **documented(),
    },
    dependencies=_READ,
    operation_id="export_run",
)
def export(
    run_id: RunId,
    modeler: ModelerDep,
    form: Annotated[
        Literal["json", "csv", "parquet"],
        Query(
            alias="format",
            description=(
                "json: the run, its trials and what it began with; csv: the trials; parquet: the trials, and all "
                "else as metadata."
            ),
        ),
    ] = "json",
) -> Response:
    """Everything needed to redo the run (json, parquet), or its trials alone (csv)."""
    found = modeler.export(run_id)
    headers = {"Content-Disposition": f'attachment; filename="{run_id}.{form}"'}
    if form == "csv":
        return Response(exports.as_csv(found), headers=headers, media_type="text/csv")
    if form == "parquet":
        return Response(exports.as_parquet(found), headers=headers, media_type=PARQUET)
    return Response(found.model_dump_json(), media_type="application/json")


@router.get(
    "/{run_id}/recommendation",
    response_model=wire.Recommendation,
    responses=documented(409),
    dependencies=_READ,
    operation_id="get_recommendation",
)
def recommendation(
    run_id: RunId,
    modeler: ModelerDep,
    over: Annotated[
        Literal["asked", "all"], Query(description="asked: the best of the rows asked; all: the best of all rows.")
    ] = "asked",
) -> wire.Recommendation:
    """The row to take by the answers so far, and how sure that is."""
    return modeler.recommendation(run_id, over)


@router.get(
    "/{run_id}/posterior",
    response_model=wire.PosteriorPage,
    responses=documented(409),
    dependencies=_READ,
    operation_id="get_posterior",
)
def posterior(
    run_id: RunId,
    modeler: ModelerDep,
    page_size: PageSize = 50,
    page_token: PageToken = None,
    top: Annotated[
        int | None, Query(ge=1, le=1_000, description="So many rows of the best means instead of a page.")
    ] = None,
) -> wire.PosteriorPage:
    """What is believed of f after the answers so far: by row, or the best rows."""
    if top is not None:
        outcomes, points = modeler.beliefs.top(run_id, top)
        return wire.PosteriorPage(outcomes=outcomes, points=points)
    after = min(int(page_token or -1), 2**31) + 1
    outcomes, points = modeler.beliefs.posterior(run_id, after, page_size + 1)
    shown, token = page_of(points, page_size, lambda point: point.row)
    return wire.PosteriorPage(outcomes=outcomes, points=shown, next_page_token=token)


@router.get(
    "/{run_id}/map",
    response_model=wire.PosteriorMap,
    responses=documented(409),
    dependencies=_READ,
    operation_id="get_map",
)
def posterior_map(
    run_id: RunId,
    modeler: ModelerDep,
    points: Annotated[int, Query(ge=1, le=5_000, description="About how many rows besides those asked.")] = 1_000,
) -> wire.PosteriorMap:
    """What is believed of f over the first two principal axes of Z: to draw."""
    return modeler.beliefs.map(run_id, points)


@router.get(
    "/{run_id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": EVENT}}}, **documented()},
    dependencies=_READ,
    operation_id="follow_run",
)
async def events(
    request: Request,
    run_id: RunId,
    modeler: ModelerDep,
    last_event_id: Annotated[
        str | None, Header(pattern=r"^[0-9]{1,9}$", description="Number of the last trial that was told.")
    ] = None,
) -> Response:
    """News as server-sent events: `trial` (id: its number) for each answer or decline, `run` when its state changes.

    `correction` (without an id) tells a trial again whose answer was corrected, or came late. Ends with the run. A
    connection that breaks, or is ended after ten minutes, goes on by Last-Event-ID.
    """
    look = partial(modeler.news, run_id)
    told = await modeler.streams.follow(request.state.principal.id, look, int(last_event_id or 0))
    return StreamingResponse(told, media_type="text/event-stream")


@router.post(
    "/{run_id}/observations",
    status_code=201,
    response_model=wire.ImportReport,
    responses={
        200: {"model": wire.ImportReport, "description": "A dry run: nothing was stored."},
        **documented(409, 502),
    },
    dependencies=_WRITE,
    operation_id="import_observations",
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
async def observe(
    request: Request,
    run_id: RunId,
    modeler: ModelerDep,
    idempotency_key: IdempotencyKey = None,
    dry_run: Annotated[bool, Query(description="Check every line and store nothing.")] = False,
) -> Response:
    """Give a run that was created with `hold` what was measured before, as JSON or CSV. The curator never sees it."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media == "text/csv":
        found = await run_in_threadpool(imports.of_csv, await request.body())
    else:
        found = imports.of_json(await body_of(request, wire.ObservationImport))
    one = await request_context(request, idempotency_key)  # its digest needs the whole body, which is read by now
    if dry_run:
        report = await run_in_threadpool(modeler.check_import, one, run_id, found)
        return Response(report.model_dump_json(), media_type="application/json")
    return answer(request, await run_in_threadpool(modeler.observe, one, run_id, found))
