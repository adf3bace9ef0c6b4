"""/v1/tunings: private choice of hyper-parameters, for the owner."""

from starlette.responses import Response

from blindopt import wire
from curator_service.routes import CuratorDep, TuningId
from service_kit.web.dependencies import NEEDS_ROOM, RecordedReply, RequestContextDep, allowed, api_router
from service_kit.web.listings import PagingDep
from service_kit.web.openapi import header
from service_kit.web.problems import documented

router = api_router("tunings")
_OWNER = [allowed("owner")]
_LOCATION = {"Location": header("Path of the tuning.")}


@router.post(
    "/v1/tunings",
    dependencies=[*_OWNER, NEEDS_ROOM],
    status_code=202,
    response_model=wire.TuningView,
    responses={
        202: {"headers": _LOCATION, "description": "Charged, and under way or waiting for its turn."},
        **documented(409),
    },
)
def start_tuning(tuning: wire.TuningCreate, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Charge a tuning, then score hyper-parameters on the private records and release the choice and its score."""
    reply = curator.tunings.start(caller, tuning)
    response = RecordedReply(reply)
    response.headers["Location"] = f"/v1/tunings/{wire.TuningView.model_validate_json(reply.body).id}"
    return response


@router.post("/v1/tunings:preview", dependencies=_OWNER, responses=documented(409))
def preview_tuning(tuning: wire.TuningCreate, curator: CuratorDep) -> wire.TuningReport:
    """Compute price, guarantee and expected quality of a tuning from public values alone. Spends nothing."""
    return curator.tunings.preview(tuning)


@router.get("/v1/tunings", dependencies=_OWNER)
def list_tunings(curator: CuratorDep, paging: PagingDep) -> wire.TuningPage:
    """List tunings in the order of their creation."""
    tunings, token = paging.read(curator.tunings.page)
    return wire.TuningPage(tunings=tunings, next_page_token=token)


@router.get("/v1/tunings/{tuning_id}", dependencies=_OWNER)
def get_tuning(tuning_id: TuningId, curator: CuratorDep) -> wire.TuningView:
    """Get a tuning: its progress, and its result once it is completed. Returns the tuning."""
    return curator.tunings.view(tuning_id)


@router.post(
    "/v1/tunings/{tuning_id}:cancel", dependencies=_OWNER, response_model=wire.TuningView, responses=documented(409)
)
def cancel_tuning(tuning_id: TuningId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Cancel a tuning that runs or waits: its charge stays. Returns the cancelled tuning."""
    return RecordedReply(curator.tunings.cancel(caller, tuning_id))
