"""/v1/runs: optimizations and their trials."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from modeler_service.service import Modeler
from shared import wire
from shared.serving.problems import documented
from shared.serving.routing import AskedDep, PageSize, PageToken, allowed, answer, page_of

router = APIRouter(prefix="/v1/runs", tags=["runs"])
_READ = [allowed("vendor", "viewer")]
_WRITE = [allowed("vendor")]


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
def start(request: Request, run: wire.RunCreate, asked: AskedDep, modeler: ModelerDep) -> Response:
    """Queue an optimization against a study of a curator."""
    return answer(request, modeler.start(asked, run))


@router.get("", response_model=wire.RunPage, responses=documented(), dependencies=_READ, operation_id="list_runs")
def listed(modeler: ModelerDep, page_size: PageSize = 50, page_token: PageToken = None) -> wire.RunPage:
    """Runs in the order of their creation."""
    found, token = page_of(modeler.runs(int(page_token or 0), page_size + 1), page_size, lambda item: item[0])
    return wire.RunPage(runs=[view for _, view in found], next_page_token=token)


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
def stop(request: Request, run_id: RunId, asked: AskedDep, modeler: ModelerDep) -> Response:
    """End it after the query under way; what was answered is kept."""
    return answer(request, modeler.stop(asked, run_id))


@router.post(
    "/{run_id}:pause",
    response_model=wire.RunView,
    responses=documented(409),
    dependencies=_WRITE,
    operation_id="pause_run",
)
def pause(request: Request, run_id: RunId, asked: AskedDep, modeler: ModelerDep) -> Response:
    """Halt it after the query under way, until it is resumed."""
    return answer(request, modeler.pause(asked, run_id))


@router.post(
    "/{run_id}:resume",
    response_model=wire.RunView,
    responses=documented(409),
    dependencies=_WRITE,
    operation_id="resume_run",
)
def resume(request: Request, run_id: RunId, asked: AskedDep, modeler: ModelerDep) -> Response:
    """Let a paused run go on; one that waits for its curator tries at once."""
    return answer(request, modeler.resume(asked, run_id))


@router.post(
    "/{run_id}:replace_token",
    response_model=wire.RunView,
    responses=documented(409),
    dependencies=_WRITE,
    operation_id="replace_token",
)
def replace_token(
    request: Request, run_id: RunId, token: wire.TokenReplacement, asked: AskedDep, modeler: ModelerDep
) -> Response:
    """Go on under another token of the same grant."""
    return answer(request, modeler.replace_token(asked, run_id, token))


@router.get(
    "/{run_id}/trials",
    response_model=wire.TrialPage,
    responses=documented(),
    dependencies=_READ,
    operation_id="list_trials",
)
def trials(
    run_id: RunId, modeler: ModelerDep, page_size: PageSize = 50, page_token: PageToken = None
) -> wire.TrialPage:
    """Chosen rows with their answers."""
    found = modeler.trials(run_id, int(page_token or 0), page_size + 1)
    shown, token = page_of(found, page_size, lambda trial: trial.number)
    return wire.TrialPage(trials=shown, next_page_token=token)


@router.get(
    "/{run_id}/export",
    response_model=wire.RunExport,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}, **documented()},
    dependencies=_READ,
    operation_id="export_run",
)
def export(
    run_id: RunId,
    modeler: ModelerDep,
    form: Annotated[
        Literal["json", "csv"], Query(alias="format", description="json: the run and its trials; csv: the trials.")
    ] = "json",
) -> Response:
    """Everything needed to redo the run (json), or its trials alone (csv)."""
    if form == "csv":
        headers = {"Content-Disposition": f'attachment; filename="{run_id}.csv"'}
        return Response(modeler.export_csv(run_id), headers=headers, media_type="text/csv")
    return Response(modeler.export(run_id).model_dump_json(), media_type="application/json")
