"""/v1/notices: what was told by webhook, and a test of its receiver."""

from fastapi import APIRouter, Request

from blindopt import wire
from service_kit.identity.tokens import Role
from service_kit.notices.delivery import Courier
from service_kit.web.dependencies import PageSize, PageToken, allowed, page_of
from service_kit.web.problems import documented


def router(readers: tuple[Role, ...], testers: tuple[Role, ...]) -> APIRouter:
    """The notices for ``readers``; ``testers`` may send one."""
    routes = APIRouter(tags=["notices"])

    @routes.get(
        "/v1/notices",
        response_model=wire.NoticePage,
        responses=documented(),
        dependencies=[allowed(*readers)],
        operation_id="list_notices",
    )
    def listed(request: Request, page_size: PageSize = 50, page_token: PageToken = None) -> wire.NoticePage:
        """What was told, when, and how its delivery stands. What arrived is kept for 30 days."""
        found = _courier(request).page(int(page_token or 0), page_size + 1)
        shown, token = page_of(found, page_size, lambda item: item[0])
        return wire.NoticePage(notices=[view for _, view in shown], next_page_token=token)

    @routes.post(
        "/v1/notices:test",
        response_model=wire.NoticeTest,
        responses=documented(),
        dependencies=[allowed(*testers)],
        operation_id="test_notices",
    )
    def test(request: Request) -> wire.NoticeTest:
        """Send a test notice now, and say in plain words what is wrong with the receiver.

        One is sent at a time; while another's is on its way, the answer is 503 `busy`.
        """
        return _courier(request).test()

    return routes


def _courier(request: Request) -> Courier:
    courier: Courier = request.app.state.courier
    return courier
