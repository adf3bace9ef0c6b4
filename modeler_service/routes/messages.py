"""/v1/runs/{run_id}/messages: what a run sends to the owner of its study, and what the owner decided."""

from typing import Annotated

from fastapi import Path
from starlette.responses import Response

from blindopt import wire
from modeler_service.routes.runs import ModelerDep, RunId
from service_kit.web.dependencies import RecordedReply, RequestContextDep, allowed, api_router
from service_kit.web.listings import PagingDep
from service_kit.web.problems import documented

router = api_router("messages", prefix="/v1/runs/{run_id}/messages")


@router.post(
    "",
    status_code=201,
    response_model=wire.RunMessage,
    responses=documented(409, 502),
    dependencies=[allowed("vendor")],
)
def send_message(
    run_id: RunId, wish: wire.RunMessageCreate, caller: RequestContextDep, modeler: ModelerDep
) -> Response:
    """Hand over the run's recommendation to the owner, or request more budget.

    It is stored, then sent. On an error the same request under its key sends the same message. Returns the message,
    sent or waiting.
    """
    return RecordedReply(modeler.messages.send(caller, run_id, wish))


@router.get("", dependencies=[allowed("vendor", "viewer")])
def list_messages(run_id: RunId, modeler: ModelerDep, paging: PagingDep) -> wire.RunMessagePage:
    """List messages of a run, as they were last sent or updated."""
    messages, token = paging.cut(modeler.messages.page(run_id, paging.after, paging.limit), lambda m: m.number)
    return wire.RunMessagePage(messages=messages, next_page_token=token)


@router.post(
    "/{number}:update", response_model=wire.RunMessage, responses=documented(409, 502), dependencies=[allowed("vendor")]
)
def update_message(
    run_id: RunId,
    number: Annotated[int, Path(ge=1, lt=10**6, description="Number of the message.")],
    caller: RequestContextDep,
    modeler: ModelerDep,
) -> Response:
    """Send a message that has not arrived, or read the owner's decision from the curator.

    Returns the message as it is at the curator.
    """
    return RecordedReply(modeler.messages.update(caller, run_id, number))
