"""Messages of vendors, for vendors and for the owner; raises of a study's caps; the record behind a candidate."""

from typing import Annotated

from fastapi import Depends, Path, Query, Request
from starlette.responses import Response

from blindopt import wire
from curator_service.routes import CuratorDep, StudyId
from service_kit.web.dependencies import (
    RecordedReply,
    RequestContextDep,
    UnkeyedContextDep,
    allowed,
    api_router,
    of_own_study,
)
from service_kit.web.listings import PagingDep
from service_kit.web.problems import documented

router = api_router("messages")
MessageId = Annotated[str, Path(description="msg_...")]
_VENDOR = [Depends(of_own_study), allowed("modeler")]
_OWNER = [allowed("owner")]


@router.post(
    "/v1/studies/{study_id}/messages",
    status_code=201,
    response_model=wire.MessageView,
    responses=documented(409),
    dependencies=_VENDOR,
)
def send_message(
    study_id: StudyId, message: wire.MessageCreate, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Recommend a candidate to the owner, or request more budget.

    A recommendation may come after the study was closed. 409 while five of the kind wait for a decision. Returns the
    message as the owner will read it.
    """
    return RecordedReply(curator.messages.send(caller, study_id, message))


@router.get("/v1/studies/{study_id}/messages/{message_id}", dependencies=_VENDOR)
def get_message(request: Request, study_id: StudyId, message_id: MessageId, curator: CuratorDep) -> wire.MessageView:
    """Get a message of this grant, with the owner's decision. Returns the message."""
    return curator.messages.of_grant(request.state.principal, study_id, message_id)


@router.get("/v1/messages", dependencies=_OWNER)
def list_messages(
    curator: CuratorDep,
    paging: PagingDep,
    study_id: Annotated[str | None, Query(description="Of this study alone.")] = None,
    only_open: Annotated[bool, Query(description="Those that wait for a decision.")] = False,
) -> wire.MessagePage:
    """List messages of vendors, in the order of arrival."""
    messages, token = paging.read(lambda after, limit: curator.messages.page(study_id, only_open, after, limit))
    return wire.MessagePage(messages=messages, next_page_token=token)


@router.get("/v1/messages/{message_id}", dependencies=_OWNER)
def get_any_message(message_id: MessageId, curator: CuratorDep) -> wire.MessageView:
    """Get a message of a vendor, with the last decision. Returns the message with its study."""
    return curator.messages.view(message_id)


@router.post(
    "/v1/messages/{message_id}:decide", response_model=wire.MessageView, responses=documented(409), dependencies=_OWNER
)
def decide_message(
    message_id: MessageId, decision: wire.MessageDecision, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Decide about a message. The vendor can read the word and what is written with it, and nothing else.

    `approved` raises the caps of the study at once, as `PUT /v1/studies/{study_id}/budget` does. Returns the message
    with the decision.
    """
    return RecordedReply(curator.messages.decide(caller, message_id, decision))


@router.put(
    "/v1/studies/{study_id}/budget", response_model=wire.StudyOwnerView, responses=documented(409), dependencies=_OWNER
)
def raise_caps(study_id: StudyId, change: wire.BudgetRaise, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Raise caps of an open study, with a reason that vendors and auditors read.

    No cap of it is ever lowered. Returns the study with its new caps.
    """
    return RecordedReply(curator.messages.raise_caps(caller, study_id, change))


@router.post("/v1/studies/{study_id}:open_record", dependencies=_OWNER)
def open_record(
    study_id: StudyId, choice: wire.RecordChoice, caller: UnkeyedContextDep, curator: CuratorDep
) -> wire.RecordView:
    """Show the record behind a candidate, measured or not. The log says that one was opened, and by whom."""
    view = curator.messages.open_record(caller, study_id, choice)
    return view.model_copy(update={"measured": curator.inbox.measured(study_id, choice.row)})


@router.post("/v1/studies/{study_id}:open_group", dependencies=_OWNER)
def open_group(
    study_id: StudyId, choice: wire.RecordChoice, caller: UnkeyedContextDep, curator: CuratorDep
) -> wire.GroupView:
    """Show the group behind a candidate of a groups study, with its records: for the owner alone.

    Logged as `record.opened`, which says who opened one, and of which study, but not which.
    """
    return curator.messages.open_group(caller, study_id, choice)


@router.post("/v1/messages/{message_id}:open_records", responses=documented(409), dependencies=_OWNER)
def open_records(message_id: MessageId, caller: UnkeyedContextDep, curator: CuratorDep) -> wire.RecordTable:
    """Show the records behind all candidates that a message recommends, in its order: for the owner alone.

    Logged once as `record.opened`, which says who opened how many, and of which study, but not which.
    """
    return curator.messages.open_records(caller, message_id)
