"""/v1/advisories: release mechanisms that are withdrawn."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from blindopt import wire
from curator_service.routes.common import CuratorDep
from service_kit.web.dependencies import PageSize, PageToken, RequestContextDep, allowed, answer, page_of
from service_kit.web.problems import documented

router = APIRouter(prefix="/v1/advisories", tags=["advisories"])


@router.post(
    "",
    status_code=201,
    response_model=wire.AdvisoryView,
    responses=documented(409),
    dependencies=[allowed("owner")],
    operation_id="withdraw_mechanism",
)
def withdraw(
    request: Request, advisory: wire.AdvisoryCreate, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Withdraw a version of a release mechanism, for good: no new release uses it. Open studies stay open."""
    return answer(request, curator.advisories.withdraw(caller, advisory))


@router.get(
    "",
    response_model=wire.AdvisoryPage,
    responses=documented(),
    dependencies=[allowed("owner", "auditor")],
    operation_id="list_advisories",
)
def listed(curator: CuratorDep, page_size: PageSize = 50, page_token: PageToken = None) -> wire.AdvisoryPage:
    """Withdrawn mechanisms, and the studies that released with them."""
    after = int(page_token or 0)
    found, token = page_of(curator.advisories.page(after, page_size + 1), page_size, lambda item: item[0])
    return wire.AdvisoryPage(advisories=[view for _, view in found], next_page_token=token)
