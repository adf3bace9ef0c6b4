"""/v1/tunings: private choice of hyper-parameters, for the owner; what it spent also for auditors."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from blindopt import wire
from curator_service.routes.common import CuratorDep, DatasetId, TuningId
from service_kit.web.dependencies import PageSize, PageToken, RequestContextDep, allowed, answer, page_of
from service_kit.web.problems import documented

router = APIRouter(tags=["tunings"])
_OWNER = [allowed("owner")]
_LOCATION = {"Location": {"description": "Path of the tuning.", "schema": {"type": "string"}}}


@router.post(
    "/v1/tunings",
    dependencies=_OWNER,
    status_code=202,
    response_model=wire.TuningView,
    responses={
        202: {"headers": _LOCATION, "description": "Charged, and under way or waiting for its turn."},
        **documented(409),
    },
    operation_id="start_tuning",
)
def start(request: Request, tuning: wire.TuningCreate, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Charge a tuning, then score hyper-parameters on the private records and release the choice and its score."""
    reply = curator.tunings.start(caller, tuning)
    response = answer(request, reply)
    response.headers["Location"] = f"/v1/tunings/{wire.TuningView.model_validate_json(reply.body).id}"
    return response


@router.post(
    "/v1/tunings:preview",
    dependencies=_OWNER,
    response_model=wire.TuningReport,
    responses=documented(409),
    operation_id="preview_tuning",
)
def preview(tuning: wire.TuningCreate, curator: CuratorDep) -> wire.TuningReport:
    """What a tuning would cost, promise and be expected to find: from public values alone. Spends nothing."""
    return curator.tunings.preview(tuning)


@router.get(
    "/v1/tunings",
    dependencies=_OWNER,
    response_model=wire.TuningPage,
    responses=documented(),
    operation_id="list_tunings",
)
def listed(curator: CuratorDep, page_size: PageSize = 50, page_token: PageToken = None) -> wire.TuningPage:
    """Tunings in the order of their creation."""
    shown, token = page_of(curator.tunings.page(int(page_token or 0), page_size + 1), page_size, lambda item: item[0])
    return wire.TuningPage(tunings=[view for _, view in shown], next_page_token=token)


@router.get(
    "/v1/tunings/{tuning_id}",
    dependencies=_OWNER,
    response_model=wire.TuningView,
    responses=documented(),
    operation_id="get_tuning",
)
def one(tuning_id: TuningId, curator: CuratorDep) -> wire.TuningView:
    """One tuning: how far it is, and what it released once it is completed."""
    return curator.tunings.one(tuning_id)


@router.post(
    "/v1/tunings/{tuning_id}:cancel",
    dependencies=_OWNER,
    response_model=wire.TuningView,
    responses=documented(409),
    operation_id="cancel_tuning",
)
def cancel(request: Request, tuning_id: TuningId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """End a tuning that runs or waits; what it was charged stays spent."""
    return answer(request, curator.tunings.cancel(caller, tuning_id))


@router.get(
    "/v1/datasets/{dataset_id}/ledger",
    dependencies=[allowed("owner", "auditor")],
    response_model=wire.TuningLedger,
    responses=documented(),
    operation_id="dataset_ledger",
)
def ledger(
    dataset_id: DatasetId, curator: CuratorDep, page_size: PageSize = 50, page_token: PageToken = None
) -> wire.TuningLedger:
    """What tunings spent on a dataset's file: every charge and refusal, however often it was registered."""
    found, totals = curator.tunings.ledger(dataset_id, int(page_token or 0), page_size + 1)
    shown, token = page_of(found, page_size, lambda line: line.seq)
    return totals.model_copy(update={"charges": shown, "next_page_token": token})
