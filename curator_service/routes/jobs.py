"""Work that takes long, for the owner: forecasts of quality at several privacy levels, and private tunings."""

from functools import partial
from typing import Annotated, Any

from fastapi import Path
from starlette.responses import Response

from blindopt import wire
from curator_service.routes import CuratorDep, StudyId, TuningId
from service_kit.web.dependencies import NEEDS_ROOM, RecordedReply, RequestContextDep, allowed, api_router
from service_kit.web.listings import PagingDep
from service_kit.web.openapi import header
from service_kit.web.problems import documented


def _started(noun: str, description: str) -> dict[int | str, dict[str, Any]]:
    headers = {"Location": header(f"Path of the {noun}.")}
    return {202: {"headers": headers, "description": description}, **documented(409)}


forecasts = api_router("forecasts", "owner", prefix="/v1/studies/{study_id}/forecasts")
ForecastId = Annotated[str, Path(description="fct_...")]


@forecasts.post(
    "",
    dependencies=[NEEDS_ROOM],
    status_code=202,
    response_model=wire.ForecastView,
    responses=_started("forecast", "Under way, or waiting for its turn."),
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


@forecasts.get("")
def list_forecasts(study_id: StudyId, curator: CuratorDep, paging: PagingDep) -> wire.ForecastPage:
    """List forecasts of a study in the order of their creation."""
    views, token = paging.read(partial(curator.forecasts.page, study_id))
    return wire.ForecastPage(forecasts=views, next_page_token=token)


@forecasts.get("/{forecast_id}")
def get_forecast(study_id: StudyId, forecast_id: ForecastId, curator: CuratorDep) -> wire.ForecastView:
    """Get a forecast: its progress, and its results once it has ended. Returns the forecast."""
    return curator.forecasts.view(study_id, forecast_id)


@forecasts.post("/{forecast_id}:cancel", response_model=wire.ForecastView, responses=documented(409))
def cancel_forecast(
    study_id: StudyId, forecast_id: ForecastId, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Cancel a forecast that runs or waits. Returns the cancelled forecast."""
    return RecordedReply(curator.forecasts.cancel(caller, study_id, forecast_id))


tunings = api_router("tunings")
_OWNER = [allowed("owner")]


@tunings.post(
    "/v1/tunings",
    dependencies=[*_OWNER, NEEDS_ROOM],
    status_code=202,
    response_model=wire.TuningView,
    responses=_started("tuning", "Charged, and under way or waiting for its turn."),
)
def start_tuning(tuning: wire.TuningCreate, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Charge a tuning, then score hyper-parameters on the private records and release the choice and its score."""
    reply = curator.tunings.start(caller, tuning)
    response = RecordedReply(reply)
    response.headers["Location"] = f"/v1/tunings/{wire.TuningView.model_validate_json(reply.body).id}"
    return response


@tunings.post("/v1/tunings:preview", dependencies=_OWNER, responses=documented(409))
def preview_tuning(tuning: wire.TuningCreate, curator: CuratorDep) -> wire.TuningReport:
    """Compute price, guarantee and expected quality of a tuning from public values alone. Spends nothing."""
    return curator.tunings.preview(tuning)


@tunings.get("/v1/tunings", dependencies=_OWNER)
def list_tunings(curator: CuratorDep, paging: PagingDep) -> wire.TuningPage:
    """List tunings in the order of their creation."""
    views, token = paging.read(curator.tunings.page)
    return wire.TuningPage(tunings=views, next_page_token=token)


@tunings.get("/v1/tunings/{tuning_id}", dependencies=_OWNER)
def get_tuning(tuning_id: TuningId, curator: CuratorDep) -> wire.TuningView:
    """Get a tuning: its progress, and its result once it is completed. Returns the tuning."""
    return curator.tunings.view(tuning_id)


@tunings.post(
    "/v1/tunings/{tuning_id}:cancel", dependencies=_OWNER, response_model=wire.TuningView, responses=documented(409)
)
def cancel_tuning(tuning_id: TuningId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Cancel a tuning that runs or waits: its charge stays. Returns the cancelled tuning."""
    return RecordedReply(curator.tunings.cancel(caller, tuning_id))
