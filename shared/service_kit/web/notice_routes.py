"""/v1/notices: what was told by webhook, and a test of its receiver."""

from fastapi import APIRouter, Request

from blindopt import wire
from service_kit.identity.tokens import Role
from service_kit.notices.delivery import Courier
from service_kit.web.dependencies import allowed, api_router
from service_kit.web.listings import PagingDep


def router(readers: tuple[Role, ...], testers: tuple[Role, ...]) -> APIRouter:
    """The notices for ``readers``; ``testers`` may send one."""
    routes = api_router("notices")

    @routes.get("/v1/notices", dependencies=[allowed(*readers)])
    def list_notices(request: Request, paging: PagingDep) -> wire.NoticePage:
        """What was told, when, and how its delivery stands. What arrived is kept for 30 days."""
        notices, token = paging.read(_courier(request).page)
        return wire.NoticePage(notices=notices, next_page_token=token)

    @routes.post("/v1/notices:test", dependencies=[allowed(*testers)])
    def test_notices(request: Request) -> wire.NoticeTest:
        """Send a test notice now, and say in plain words what is wrong with the receiver.

        One is sent at a time; while another's is on its way, the answer is 503 `busy`.
        """
        return _courier(request).test()

    return routes


def _courier(request: Request) -> Courier:
    courier: Courier = request.app.state.courier
    return courier
