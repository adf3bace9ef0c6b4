"""/v1/advisories: withdrawals of release mechanisms."""

from starlette.responses import Response

from blindopt import wire
from curator_service.routes.common import CuratorDep
from service_kit.web.dependencies import RecordedReply, RequestContextDep, allowed, api_router
from service_kit.web.listings import PagingDep
from service_kit.web.problems import documented

router = api_router("advisories", prefix="/v1/advisories")


@router.post(
    "", status_code=201, response_model=wire.AdvisoryView, responses=documented(409), dependencies=[allowed("owner")]
)
def withdraw_mechanism(advisory: wire.AdvisoryCreate, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Withdraw a version of a release mechanism, for good: no new release uses it. Open studies stay open."""
    return RecordedReply(curator.advisories.withdraw(caller, advisory))


@router.get("", dependencies=[allowed("owner", "auditor")])
def list_advisories(curator: CuratorDep, paging: PagingDep) -> wire.AdvisoryPage:
    """Withdrawn mechanisms, and the studies that released with them."""
    advisories, token = paging.read(curator.advisories.page)
    return wire.AdvisoryPage(advisories=advisories, next_page_token=token)
