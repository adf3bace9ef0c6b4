"""/v1/links: curators that open no port take their requests here, and bring the replies."""

import base64
from contextlib import suppress
from typing import Annotated

from fastapi import Path, Query, Request

from blindopt import bodies, wire
from blindopt.client.mailbox import SCHEME
from blindopt.errors import Busy, Invalid, NotFound
from modeler_service.routes.runs import ModelerDep
from modeler_service.runs.curator_session import MAILBOXES
from service_kit.context.context import ServiceContext
from service_kit.store.tokens import is_live
from service_kit.web.dependencies import allowed, api_router, media_of
from service_kit.web.metrics import Figures, gauge
from service_kit.web.problems import documented
from service_kit.web.wakeups import while_connected

PATHS = "/v1/links/"
router = api_router("links")
Link = Annotated[str, Path(pattern=r"^usr_[0-9a-f]{16}$", description="The link.")]


@router.get("/v1/links", response_model=wire.LinkList, dependencies=[allowed("vendor", "viewer")])
def list_links(modeler: ModelerDep) -> wire.LinkList:
    """List links to curators that only open connections, and whether each is connected."""
    return wire.LinkList(links=views(modeler.context))


@router.post("/v1/links/{link_id}:pull", response_model=wire.LinkRequests, dependencies=[allowed("link")])
async def pull_requests(
    request: Request,
    link_id: Link,
    modeler: ModelerDep,
    pull: wire.LinkPull,
    wait: Annotated[float, Query(ge=0, le=30, description="Seconds to wait for a request.")] = 0.0,
) -> wire.LinkRequests:
    """Take the requests that wait for the curator of this link, each at least once.

    No key is needed: nothing is stored. A request that was delivered and is not in `working` is delivered again.
    """
    _check_own(request, link_id)
    mailbox = MAILBOXES.of(link_id)
    if pull.carried is not None:
        with suppress(NotFound, Busy):  # it was given up, or is sent again
            mailbox.reply(pull.carried.head, _decoded(pull.carried.body))
    seconds = 0.0 if modeler.wakeups.closing else wait
    requests = await while_connected(request, mailbox.pull(frozenset(pull.working), seconds))
    return wire.LinkRequests(requests=requests or [])


@router.post(
    "/v1/links/{link_id}:reply",
    response_model=wire.LinkReceived,
    responses=documented(404),
    dependencies=[allowed("link")],
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": "A line of JSON (LinkReply), and after it the bytes of this part of the reply.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def send_reply(request: Request, link_id: Link) -> wire.LinkReceived:
    """Send a reply to a request that was pulled, or a part of one. A part that is sent again changes nothing."""
    _check_own(request, link_id)
    media_of(request, "application/octet-stream")
    line, _, body = (await request.body()).partition(b"\n")
    head = bodies.parse(line, wire.LinkReply, wire.LINK_HEAD_BYTES)
    return wire.LinkReceived(next_part=MAILBOXES.of(link_id).reply(head, body))


def _decoded(body: str) -> bytes:
    try:
        return base64.b64decode(body, validate=True)
    except ValueError:
        raise Invalid.at("carried.body", "must be base64") from None


def _check_own(request: Request, link_id: str) -> None:
    if request.state.principal.id != link_id:
        raise NotFound("this is no link of yours")


def views(context: ServiceContext) -> list[wire.LinkView]:
    """Every link, oldest first: one for each holder of a token of the role ``link``."""
    rows = [row for row in context.authentication.tokens() if row.role == "link"]
    live = {row.principal for row in rows if is_live(row, context.clock())}
    names = {row.principal: row.name for row in rows}
    return [_view(link, name, is_open=link in live) for link, name in names.items()]


def gauges(context: ServiceContext) -> Figures:
    def by_state() -> dict[tuple[str, ...], float]:
        counts: dict[tuple[str, ...], float] = {("connected",): 0, ("absent",): 0, ("revoked",): 0}
        for view in views(context):
            counts[view.state,] += 1
        return counts

    yield gauge("blindopt_links", "Links to curators by state.", by_state, ("state",))


def _view(link: str, name: str, *, is_open: bool) -> wire.LinkView:
    mailbox = MAILBOXES.of(link)
    return wire.LinkView(
        id=link,
        name=name,
        address=f"{SCHEME}://{link}",
        state=("connected" if mailbox.is_connected else "absent") if is_open else "revoked",
        seconds_since_pull=mailbox.seconds_since_pull,
        waiting=mailbox.waiting,
    )
