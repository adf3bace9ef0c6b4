"""What a study has spent, and what modelers countersigned."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from blindopt import wire
from curator_service.routes.common import CuratorDep, StudyId
from service_kit.web.dependencies import PageSize, PageToken, RequestContextDep, allowed, answer, page_of
from service_kit.web.problems import documented

router = APIRouter(tags=["accounts"])
_READ = [allowed("owner", "auditor")]


@router.get(
    "/v1/studies/{study_id}/ledger",
    response_model=wire.LedgerPage,
    responses=documented(),
    dependencies=_READ,
    operation_id="get_ledger",
)
def ledger(
    study_id: StudyId, curator: CuratorDep, page_size: PageSize = 50, page_token: PageToken = None
) -> wire.LedgerPage:
    """Every charge and every refusal of a study, and what it has spent."""
    found, balance = curator.accounts.ledger(study_id, int(page_token or 0), page_size + 1)
    shown, token = page_of(found, page_size, lambda entry: entry.seq)
    return balance.model_copy(update={"entries": shown, "next_page_token": token})


@router.get(
    "/v1/studies/{study_id}/exposure",
    response_model=wire.ExposurePage,
    responses=documented(),
    dependencies=_READ,
    operation_id="get_exposure",
)
def exposure(
    request: Request,
    study_id: StudyId,
    curator: CuratorDep,
    page_size: PageSize = 50,
    page_token: PageToken = None,
) -> wire.ExposurePage:
    """Rows that were asked: how often, and what it cost. The owner sees which records they are."""
    after = -1 if page_token is None else int(page_token)
    with_records = request.state.principal.role == "owner"
    found, release = curator.accounts.exposure(study_id, after, page_size + 1, with_records=with_records)
    shown, token = page_of(found, page_size, lambda row: row.row)
    return wire.ExposurePage(rows=shown, release_epsilon=release, next_page_token=token)


@router.get(
    "/v1/studies/{study_id}/accounting",
    response_model=wire.Accounting,
    responses=documented(),
    dependencies=_READ,
    operation_id="get_accounting",
)
def accounting(
    study_id: StudyId,
    curator: CuratorDep,
    delta: Annotated[
        float | None,
        Query(
            ge=1e-18, le=0.1, description="Failure probability; default: the study's own, or 1e-6 where it has none."
        ),
    ] = None,
) -> wire.Accounting:
    """What a study has cost so far: by pure composition, as the ledger adds up, and tightly at a delta."""
    return curator.accounts.accounting(study_id, delta)


@router.post(
    "/v1/audit/countersignatures",
    status_code=201,
    response_model=wire.Countersigned,
    responses=documented(409),
    dependencies=[allowed("modeler")],
    operation_id="countersign",
)
def countersign(
    request: Request, countersigning: wire.Countersigning, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """A modeler's word that the shared log of its grant has only grown up to a checkpoint."""
    return answer(request, curator.witnesses.countersign(caller, countersigning))
