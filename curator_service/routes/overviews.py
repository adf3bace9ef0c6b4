"""What the owner's people look at before they act: a draft that is not made yet, and what studies have spent."""

from typing import Annotated

from fastapi import APIRouter, Query

from blindopt import wire
from curator_service.routes.common import CuratorDep, StudyId
from service_kit.web.dependencies import PageSize, PageToken, allowed, page_of
from service_kit.web.problems import documented

router = APIRouter(tags=["overviews"])
_READ = [allowed("owner", "auditor")]


@router.post(
    "/v1/studies:check",
    response_model=wire.StudyCheck,
    responses=documented(409),
    dependencies=[allowed("owner")],
    operation_id="check_study",
)
def check(study: wire.StudyCreate, curator: CuratorDep) -> wire.StudyCheck:
    """What a draft would promise and cost, from public values alone. Makes and changes nothing."""
    return curator.overviews.check(study)


@router.get(
    "/v1/accounts",
    response_model=wire.StudyAccountPage,
    responses=documented(),
    dependencies=_READ,
    operation_id="list_accounts",
)
def accounts(curator: CuratorDep, page_size: PageSize = 50, page_token: PageToken = None) -> wire.StudyAccountPage:
    """What each study has spent, beside its caps."""
    found = curator.overviews.accounts(int(page_token or 0), page_size + 1)
    shown, token = page_of(found, page_size, lambda item: item[0])
    return wire.StudyAccountPage(accounts=[view for _, view in shown], next_page_token=token)


@router.get(
    "/v1/studies/{study_id}/account",
    response_model=wire.StudyAccount,
    responses=documented(),
    dependencies=_READ,
    operation_id="get_account",
)
def account(study_id: StudyId, curator: CuratorDep) -> wire.StudyAccount:
    """What a study has spent, beside its caps."""
    return curator.overviews.account(study_id)


@router.get(
    "/v1/studies/{study_id}/exposure/histogram",
    response_model=wire.ExposureHistogram,
    responses=documented(),
    dependencies=_READ,
    operation_id="get_exposure_histogram",
)
def histogram(study_id: StudyId, curator: CuratorDep) -> wire.ExposureHistogram:
    """How many rows were measured how often."""
    return curator.overviews.histogram(study_id)


@router.get(
    "/v1/studies/{study_id}/ledger/curve",
    response_model=wire.LedgerCurve,
    responses=documented(),
    dependencies=_READ,
    operation_id="get_ledger_curve",
)
def curve(
    study_id: StudyId,
    curator: CuratorDep,
    points: Annotated[int, Query(ge=2, le=1_000, description="Most points.")] = 200,
) -> wire.LedgerCurve:
    """What a study had spent over time, thinned for a chart."""
    return curator.overviews.curve(study_id, points)


@router.get(
    "/v1/jobs",
    response_model=wire.JobList,
    responses=documented(),
    dependencies=[allowed("owner")],
    operation_id="list_jobs",
)
def jobs(curator: CuratorDep) -> wire.JobList:
    """Releases, forecasts and tunings that are under way or wait, of all studies."""
    return curator.under_way()
