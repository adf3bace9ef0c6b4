"""/v1/studies/{study_id}/forecasts: what a privacy level costs in quality, for the owner."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from blindopt import wire
from curator_service.routes.common import CuratorDep, StudyId
from service_kit.web.dependencies import PageSize, PageToken, RequestContextDep, allowed, answer, page_of
from service_kit.web.problems import documented

router = APIRouter(prefix="/v1/studies/{study_id}/forecasts", tags=["forecasts"], dependencies=[allowed("owner")])
ForecastId = Annotated[str, Path(description="fct_...")]
_LOCATION = {"Location": {"description": "Path of the forecast.", "schema": {"type": "string"}}}


@router.post(
    "",
    status_code=202,
    response_model=wire.ForecastView,
    responses={202: {"headers": _LOCATION, "description": "Under way, or waiting for its turn."}, **documented(409)},
    operation_id="start_forecast",
)
def start(
    request: Request,
    study_id: StudyId,
    forecast: wire.ForecastCreate,
    caller: RequestContextDep,
    curator: CuratorDep,
) -> Response:
    """Simulate, on the study's records, what its optimization would find at each privacy level. Releases nothing."""
    reply = curator.forecasts.start(caller, study_id, forecast)
    response = answer(request, reply)
    identity = wire.ForecastView.model_validate_json(reply.body).id
    response.headers["Location"] = f"/v1/studies/{study_id}/forecasts/{identity}"
    return response


@router.get("", response_model=wire.ForecastPage, responses=documented(), operation_id="list_forecasts")
def listed(
    study_id: StudyId, curator: CuratorDep, page_size: PageSize = 50, page_token: PageToken = None
) -> wire.ForecastPage:
    """Forecasts of a study in the order of their creation."""
    found = curator.forecasts.page(study_id, int(page_token or 0), page_size + 1)
    shown, token = page_of(found, page_size, lambda item: item[0])
    return wire.ForecastPage(forecasts=[view for _, view in shown], next_page_token=token)


@router.get("/{forecast_id}", response_model=wire.ForecastView, responses=documented(), operation_id="get_forecast")
def one(study_id: StudyId, forecast_id: ForecastId, curator: CuratorDep) -> wire.ForecastView:
    """One forecast: how far it is, and what it found once it has ended."""
    return curator.forecasts.one(study_id, forecast_id)


@router.post(
    "/{forecast_id}:cancel",
    response_model=wire.ForecastView,
    responses=documented(409),
    operation_id="cancel_forecast",
)
def cancel(
    request: Request,
    study_id: StudyId,
    forecast_id: ForecastId,
    caller: RequestContextDep,
    curator: CuratorDep,
) -> Response:
    """End a forecast that runs or waits."""
    return answer(request, curator.forecasts.cancel(caller, study_id, forecast_id))
