"""/v1/studies/{study_id}/forecasts: forecasts of quality at several privacy levels, for the owner."""

from functools import partial
from typing import Annotated

from fastapi import Path
from starlette.responses import Response

from blindopt import wire
from curator_service.routes import CuratorDep, StudyId
from service_kit.web.dependencies import NEEDS_ROOM, RecordedReply, RequestContextDep, api_router
from service_kit.web.listings import PagingDep
from service_kit.web.openapi import header
from service_kit.web.problems import documented

router = api_router("forecasts", "owner", prefix="/v1/studies/{study_id}/forecasts")
ForecastId = Annotated[str, Path(description="fct_...")]
_LOCATION = {"Location": header("Path of the forecast.")}


@router.post(
    "",
    dependencies=[NEEDS_ROOM],
    status_code=202,
    response_model=wire.ForecastView,
    responses={202: {"headers": _LOCATION, "description": "Under way, or waiting for its turn."}, **documented(409)},
)
def start_forecast(
    study_id: StudyId, forecast: wire.ForecastCreate, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Simulate how good a search would be at each epsilon, on public values or on the records.

    By default no record is read. Releases and charges nothing.
    """
    reply = curator.forecasts.start(caller, study_id, forecast)
    response = RecordedReply(reply)
    forecast_id = wire.ForecastView.model_validate_json(reply.body).id
    response.headers["Location"] = f"/v1/studies/{study_id}/forecasts/{forecast_id}"
    return response


@router.get("")
def list_forecasts(study_id: StudyId, curator: CuratorDep, paging: PagingDep) -> wire.ForecastPage:
    """List forecasts of a study in the order of their creation."""
    forecasts, token = paging.read(partial(curator.forecasts.page, study_id))
    return wire.ForecastPage(forecasts=forecasts, next_page_token=token)


@router.get("/{forecast_id}")
def get_forecast(study_id: StudyId, forecast_id: ForecastId, curator: CuratorDep) -> wire.ForecastView:
    """Get a forecast: its progress, and its results once it has ended. Returns the forecast."""
    return curator.forecasts.view(study_id, forecast_id)


@router.post("/{forecast_id}:cancel", response_model=wire.ForecastView, responses=documented(409))
def cancel_forecast(
    study_id: StudyId, forecast_id: ForecastId, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Cancel a forecast that runs or waits. Returns the cancelled forecast."""
    return RecordedReply(curator.forecasts.cancel(caller, study_id, forecast_id))
