"""Overviews: checks of drafts, accounts of studies, jobs; version and limits of this curator, and its links."""

from typing import Annotated

from fastapi import APIRouter, Query, Request

from blindopt import wire
from blindopt.version import VERSION
from curator_service.releases.mechanisms.registry import MECHANISMS
from curator_service.routes import CuratorDep, StudyId
from service_kit.web.dependencies import allowed, api_router
from service_kit.web.listings import PagingDep
from service_kit.web.problems import documented

router = api_router("overviews")
_READ = [allowed("owner", "auditor")]


@router.post("/v1/studies:check", responses=documented(409), dependencies=[allowed("owner")])
def check_study(study: wire.StudyCreate, curator: CuratorDep) -> wire.StudyCheck:
    """Compute guarantee, price and cautions of a draft from public values, but for `record_cautions`.

    Changes nothing.
    """
    return curator.accounts.check(study)


@router.post("/v1/studies:forecast", responses=documented(409), dependencies=[allowed("owner")])
def forecast_draft(
    study: wire.StudyCreate,
    curator: CuratorDep,
    of_answers: Annotated[
        bool, Query(description="Whether epsilon of answers varies, in place of that of the release.")
    ] = False,
) -> wire.PublicForecast:
    """Forecast a draft on public values: the first request for its public inputs starts the forecast.

    Reads no record. It has the draft's answers, and as many queries as its caps allow, up to 100. It holds for every
    epsilon of the release, name and timing; of groups, for that division of epsilon between release and answers, and
    that cap on a record. Ask again until it has ended.
    """
    return curator.public_forecasts.view(study, of_answers=of_answers)


@router.get("/v1/accounts", dependencies=_READ)
def list_accounts(curator: CuratorDep, paging: PagingDep) -> wire.StudyAccountPage:
    """List the epsilon that each study has used, with its caps."""
    accounts, token = paging.read(curator.accounts.accounts)
    return wire.StudyAccountPage(accounts=accounts, next_page_token=token)


@router.get("/v1/studies/{study_id}/account", dependencies=_READ)
def get_account(study_id: StudyId, curator: CuratorDep) -> wire.StudyAccount:
    """Get the epsilon that a study has used, with its caps."""
    return curator.accounts.account(study_id)


@router.get("/v1/studies/{study_id}/exposure/histogram", dependencies=_READ)
def get_exposure_histogram(study_id: StudyId, curator: CuratorDep) -> wire.ExposureHistogram:
    """Count candidates by the number of their measurements."""
    return curator.accounts.histogram(study_id)


@router.get("/v1/studies/{study_id}/results", dependencies=[allowed("owner")])
def get_results(study_id: StudyId, curator: CuratorDep) -> wire.StudyResults:
    """Get answers beside the features of their records, and the relevance of each feature. Computed at each request.

    For the owner alone: neither stored, nor logged, nor sent to a vendor. 503 while another is computed.
    """
    return curator.feature_results.view(study_id)


@router.get("/v1/studies/{study_id}/ledger/curve", dependencies=_READ)
def get_ledger_curve(
    study_id: StudyId,
    curator: CuratorDep,
    points: Annotated[int, Query(ge=2, le=1_000, description="Most points.")] = 200,
) -> wire.LedgerCurve:
    """Get the epsilon that a study has used over time, thinned for a chart."""
    return curator.accounts.curve(study_id, points)


@router.get("/v1/jobs", dependencies=[allowed("owner")])
def list_jobs(curator: CuratorDep) -> wire.JobList:
    """List previews, releases, forecasts and tunings that run or wait, of all studies."""
    return curator.under_way()


meta_router = APIRouter(tags=["health"])


@meta_router.get("/v1/meta", operation_id="meta")
def meta(curator: CuratorDep) -> wire.CuratorMeta:
    """Get version, release mechanisms with their status, and limits."""
    return wire.CuratorMeta(
        service="blindopt-curator",
        version=VERSION,
        log_key=curator.context.signer.verifier.vkey,
        mechanisms=[
            wire.MechanismView(name=m.name, version=m.version, status=m.status, claim=m.claim) for m in MECHANISMS
        ],
        limits=curator.limits,
    )


links_router = api_router("links", "owner")


@links_router.get("/v1/links", response_model=wire.LinkStatusList)
def list_links(request: Request) -> wire.LinkStatusList:
    """List links over which this curator takes requests, and what keeps one from being connected."""
    return wire.LinkStatusList(links=request.app.state.links.status())
