"""/v1/notices: the notices sent by webhook, and a test of their receiver."""

from functools import cache

from fastapi import APIRouter, Request

from blindopt import wire
from service_kit.identity.tokens import Role
from service_kit.notices.delivery import NoticeDelivery
from service_kit.web.dependencies import allowed, api_router
from service_kit.web.listings import PagingDep


@cache  # routes have no state: applications of one process share them
def router(readers: tuple[Role, ...], testers: tuple[Role, ...]) -> APIRouter:
    """Routes that list notices for ``readers``, and send a test notice for ``testers``."""
    routes = api_router("notices")

    @routes.get("/v1/notices", dependencies=[allowed(*readers)])
    def list_notices(request: Request, paging: PagingDep) -> wire.NoticePage:
        """Notices with the state of their delivery. A notice is kept for 30 days after it was delivered."""
        notices, token = paging.read(_delivery(request).page)
        return wire.NoticePage(notices=notices, next_page_token=token)

    @routes.post("/v1/notices:test", dependencies=[allowed(*testers)])
    def test_notices(request: Request) -> wire.NoticeTest:
        """Send a test notice now, and say in plain words what is wrong with the receiver.

        One is sent at a time; while another is on its way, the reply is 503 `busy`.
        """
        return _delivery(request).test()

    return routes


def _delivery(request: Request) -> NoticeDelivery:
    delivery: NoticeDelivery = request.app.state.notice_delivery
    return delivery
