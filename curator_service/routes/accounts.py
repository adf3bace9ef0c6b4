"""Ledger, exposure and accounting of studies, accounts of datasets, and countersignatures of modelers."""

from typing import Annotated, Literal

from fastapi import Query, Request
from starlette.responses import Response

from blindopt import wire
from curator_service.budget.ledger_lines import LineFilter
from curator_service.routes import CuratorDep, DatasetId, StudyId
from service_kit.store.base import stamp
from service_kit.web.dependencies import RecordedReply, RequestContextDep, allowed, api_router
from service_kit.web.listings import Order, PagingDep, Time
from service_kit.web.problems import documented

router = api_router("accounts")
_READ = [allowed("owner", "auditor")]


@router.get("/v1/studies/{study_id}/ledger", dependencies=_READ)
def get_ledger(
    study_id: StudyId,
    curator: CuratorDep,
    paging: PagingDep,
    order: Order = "oldest",
    row: Annotated[int | None, Query(ge=0, le=2**31, description="Only lines about this candidate.")] = None,
    kind: Annotated[wire.LedgerKind | None, Query(description="Only lines of this kind.")] = None,
    since: Annotated[Time | None, Query(description="Only lines from this time on.")] = None,
    until: Annotated[Time | None, Query(description="Only lines before this time.")] = None,
) -> wire.LedgerPage:
    """List every charge and refusal of a study, and its balance."""
    shown = LineFilter(row, kind, stamp(since) if since else None, stamp(until) if until else None)
    newest = order == "newest"
    entries, balance = curator.accounts.ledger(study_id, paging.token, paging.limit, newest=newest, shown=shown)
    entries, token = paging.cut(entries, lambda entry: entry.seq)
    return balance.model_copy(update={"entries": entries, "next_page_token": token})


@router.get("/v1/studies/{study_id}/exposure", dependencies=_READ)
def get_exposure(
    request: Request,
    study_id: StudyId,
    curator: CuratorDep,
    paging: PagingDep,
    order: Annotated[
        Literal["smallest", "largest"], Query(description="Which candidate numbers come first: the same for each page.")
    ] = "smallest",
) -> wire.ExposurePage:
    """List queried candidates, with the number of their queries and the epsilon used.

    The owner sees which records they are. `page_token` may be any candidate number: the page begins after it, or before
    it in the order `largest`.
    """
    largest = order == "largest"
    with_records = request.state.principal.role == "owner"
    rows, release = curator.accounts.exposure(
        study_id, paging.token, paging.limit, largest=largest, with_records=with_records
    )
    rows, token = paging.cut(rows, lambda row: row.row)
    return wire.ExposurePage(rows=rows, release_epsilon=release, next_page_token=token)


@router.get("/v1/studies/{study_id}/groups", dependencies=[allowed("owner")], responses=documented(409))
def get_groups(study_id: StudyId, curator: CuratorDep, paging: PagingDep) -> wire.GroupPage:
    """List the groups of a groups study: place, noisy number of records, epsilon used.

    `page_token` may be any candidate number: the page begins after it.
    """
    groups, token = paging.cut(curator.accounts.groups(study_id, paging.token, paging.limit), lambda entry: entry.row)
    return wire.GroupPage(groups=groups, next_page_token=token)


@router.get("/v1/studies/{study_id}/accounting", dependencies=_READ)
def get_accounting(
    study_id: StudyId,
    curator: CuratorDep,
    delta: Annotated[
        float | None,
        Query(
            ge=1e-18, le=0.1, description="Failure probability; default: the study's own, or 1e-6 where it has none."
        ),
    ] = None,
) -> wire.Accounting:
    """Compute the epsilon that a study has used: as a sum, and tightly at a delta."""
    return curator.accounts.accounting(study_id, delta)


@router.get("/v1/datasets/{dataset_id}/account", dependencies=_READ)
def get_dataset_account(
    request: Request, dataset_id: DatasetId, curator: CuratorDep, paging: PagingDep
) -> wire.DatasetAccount:
    """Get the account of a dataset's file: its uses, the epsilon used, the caps.

    Files that continue the account of an earlier one share it. The owner sees the number of a record that has lost
    most. Returns the account of the file.
    """
    with_records = request.state.principal.role == "owner"
    account = curator.dataset_accounts.account(dataset_id, paging.after, paging.limit, with_records=with_records)
    uses, token = paging.cut(account.uses, lambda use: use.seq)
    return account.model_copy(update={"uses": uses, "next_page_token": token})


@router.put(
    "/v1/datasets/{dataset_id}/account/caps",
    response_model=wire.DatasetAccount,
    responses=documented(409),
    dependencies=[allowed("owner")],
)
def change_dataset_caps(
    dataset_id: DatasetId, caps: wire.DatasetCaps, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Declare, lower or raise the caps of the account of a dataset's file. Returns the account with its new caps."""
    return RecordedReply(curator.dataset_accounts.change_caps(caller, dataset_id, caps))


@router.post(
    "/v1/audit/countersignatures",
    status_code=201,
    response_model=wire.Countersigned,
    responses=documented(409),
    dependencies=[allowed("modeler")],
)
def countersign(countersigning: wire.Countersigning, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Store a modeler's confirmation that the shared log of its grant has only grown up to a checkpoint."""
    return RecordedReply(curator.grants.countersign(caller, countersigning))
