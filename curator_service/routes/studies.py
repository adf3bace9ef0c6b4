"""/v1/studies for the owner: drafts, previews, releases, grants."""

from functools import partial
from typing import Annotated

from fastapi import Header
from pydantic import Field, WithJsonSchema
from starlette.responses import Response

from blindopt import wire
from curator_service.routes import CuratorDep, GrantId, StudyId, TokenId
from service_kit.web.dependencies import NEEDS_ROOM, RecordedReply, RequestContextDep, api_router, preferences
from service_kit.web.listings import ListFilterDep, PagingDep
from service_kit.web.openapi import header
from service_kit.web.problems import documented

router = api_router("studies", "owner", prefix="/v1/studies")


@router.post("", status_code=201, response_model=wire.StudyOwnerView, responses=documented(409))
def create_study(study: wire.StudyCreate, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Create a draft: nothing is drawn or released. Returns the new draft."""
    return RecordedReply(curator.studies.create(caller, study))


@router.put("/{study_id}", response_model=wire.StudyOwnerView, responses=documented(409))
def change_study(
    study_id: StudyId, study: wire.StudyChange, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Replace a draft that was never charged. Returns the changed draft, with the forecasts that still hold."""
    return RecordedReply(curator.studies.change(caller, study_id, study))


@router.get("")
def list_studies(curator: CuratorDep, paging: PagingDep, list_filter: ListFilterDep) -> wire.StudyPage:
    """List studies in the order of their creation."""
    studies, token = paging.read(partial(curator.studies.page, list_filter=list_filter))
    return wire.StudyPage(studies=studies, tags=curator.studies.tags(), next_page_token=token)


@router.post("/{study_id}:preview")
def preview_release(study_id: StudyId, curator: CuratorDep) -> wire.ReleaseReport:
    """Preview a release, with attacks on a trial release that is thrown away: for the owner alone.

    Changes nothing. Takes about four seconds, and ends after sixteen: `not_tried` then says what was left out. One
    preview is made at a time; while another is under way, the reply is 503 `busy`.
    """
    return curator.releases.preview(study_id)


@router.post(
    "/{study_id}:release",
    dependencies=[NEEDS_ROOM],
    response_model=wire.StudyOwnerView,
    responses={
        202: {
            "model": wire.StudyOwnerView,
            "description": "Being drawn: `state` is releasing. Repeat the request, or get the study, until it is open.",
            "headers": {"Location": header("Path of the study."), "Preference-Applied": header("respond-async.")},
        },
        **documented(409),
    },
)
def release_study(
    study_id: StudyId,
    caller: RequestContextDep,
    curator: CuratorDep,
    confirmation: wire.ReleaseAsked | None = None,
    prefer: Annotated[
        list[Annotated[str, Field(max_length=200)]] | None,
        WithJsonSchema({"type": "string", "maxLength": 200}),  # several lines are one, with commas between
        Header(max_length=20, description="RFC 7240. respond-async: reply 202 at once, and draw meanwhile."),
    ] = None,
) -> Response:
    """Draw the candidates in a secret order and open the study. Once.

    The body is optional: with one, a draft that was changed meanwhile is not released. A draft whose latest preview
    found a high risk needs one, with `confirm_high_risk`. A large release takes minutes: with `Prefer: respond-async`
    the reply is 202 until it is published, and a draw that fails leaves a draft with `release_problem`. Returns the
    open study.
    """
    if "respond-async" not in preferences(prefer or []):
        return RecordedReply(curator.releases.release(caller, study_id, confirmation))
    if (reply := curator.releases.start(caller, study_id, confirmation)) is not None:
        return RecordedReply(reply)
    view = curator.studies.view(study_id).model_copy(update={"progress": curator.releases.progress(study_id)})
    headers = {"Location": f"/v1/studies/{study_id}", "Preference-Applied": "respond-async"}
    return Response(view.model_dump_json(), 202, headers, media_type="application/json")


@router.post("/{study_id}:sandbox", response_model=wire.StudyOwnerView, responses=documented(409))
def make_sandbox(study_id: StudyId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Make a sandbox: a released study on made-up records with a study's settings, to try code on.

    Made from public values alone: uniform rows in the declared bounds, as many as the dataset has, and a drawn function
    as y. The dataset's account is charged nothing. Grants of it open the sandbox alone. Returns the open sandbox.
    """
    return RecordedReply(curator.sandboxes.make(caller, study_id))


@router.post("/{study_id}:answer_all", status_code=201, response_model=wire.QueryReply, responses=documented(409))
async def answer_all(study_id: StudyId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Answer about every group of a groups study at once, for all grants. Once: a repetition gets the same answers.

    A record uses the epsilon of one answer at most, because it is in one group. 403 where a cap leaves no room, 409 for
    a study of records. Returns one answer for each candidate.
    """
    return RecordedReply(await curator.queries.answer_all(caller, study_id))


@router.post("/{study_id}:close", response_model=wire.StudyOwnerView, responses=documented(409))
def close_study(study_id: StudyId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Close a study: refuse further queries. Returns the closed study."""
    return RecordedReply(curator.studies.close(caller, study_id))


@router.post("/{study_id}:archive", response_model=wire.StudyOwnerView, responses=documented(409))
def archive_study(study_id: StudyId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Archive a draft or a closed study: it only leaves the lists of the console. Returns the archived study."""
    return RecordedReply(curator.studies.archive(caller, study_id, archived=True))


@router.post("/{study_id}:unarchive", response_model=wire.StudyOwnerView, responses=documented(409))
def unarchive_study(study_id: StudyId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Take a study out of the archive. Returns the study, out of the archive."""
    return RecordedReply(curator.studies.archive(caller, study_id, archived=False))


@router.post("/{study_id}:delete", response_model=wire.Deleted, responses=documented(409))
def delete_draft(study_id: StudyId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Delete a draft with its forecasts, and revoke its grants. The log keeps its records of the draft.

    409 for a study that was released, and for a draft of which the ledger has a charge or a refusal. Returns the id of
    the deleted draft.
    """
    return RecordedReply(curator.studies.delete(caller, study_id))


@router.put("/{study_id}/labels", response_model=wire.StudyOwnerView, responses=documented(409))
def label_study(study_id: StudyId, labels: wire.Labels, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Replace note and tags of a study, which only owners read. Returns the study with its new labels."""
    return RecordedReply(curator.studies.housekeeping.label(caller, study_id, labels))


@router.post("/{study_id}:report")
def report_study(study_id: StudyId, curator: CuratorDep) -> wire.SignedPrivacyReport:
    """Write a signed privacy report: promised, accepted, used, and attacks on the release.

    For the owner, who may pass it on: it depends on the records through the attacks alone. Takes about four seconds,
    and ends after sixteen: `not_tried` then says what was left out. Returns the report on the study and its signature.
    """
    return curator.privacy_reports.of_study(study_id)


@router.post("/{study_id}/grants", status_code=201, response_model=wire.GrantReply, responses=documented(409))
def create_grant(
    study_id: StudyId, grant: wire.GrantCreate, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Create a grant for one modeler. Its token is shown once. Returns the new grant with its token."""
    return RecordedReply(curator.grants.grant(caller, study_id, grant))


@router.get("/{study_id}/grants")
def list_grants(study_id: StudyId, curator: CuratorDep, paging: PagingDep) -> wire.GrantPage:
    """List the grants of a study, without their tokens."""
    grants, token = paging.read(partial(curator.grants.grants, study_id))
    return wire.GrantPage(grants=grants, next_page_token=token)


@router.post("/{study_id}/grants/{grant_id}:revoke", response_model=wire.GrantView, responses=documented(409))
def revoke_grant(study_id: StudyId, grant_id: GrantId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Refuse every token of a grant from now on. Returns the revoked grant."""
    return RecordedReply(curator.grants.revoke(caller, study_id, grant_id))


@router.post(
    "/{study_id}/grants/{grant_id}:rotate", status_code=201, response_model=wire.GrantReply, responses=documented(409)
)
def rotate_grant(
    study_id: StudyId, grant_id: GrantId, rotation: wire.Rotation, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Issue a further token of a grant, of two at most, shown once. Returns the grant with its further token."""
    return RecordedReply(curator.grants.rotate(caller, study_id, grant_id, rotation))


@router.put("/{study_id}/grants/{grant_id}/log_quota", response_model=wire.GrantView)
def limit_grant(
    study_id: StudyId, grant_id: GrantId, quota: wire.LogQuota, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Set how many bytes a grant may add to the logs in a day. Returns the grant with its quota."""
    return RecordedReply(curator.grants.limit(caller, study_id, grant_id, quota))


@router.post(
    "/{study_id}/grants/{grant_id}/tokens/{kid}:revoke", response_model=wire.GrantView, responses=documented(409)
)
def revoke_grant_token(
    study_id: StudyId, grant_id: GrantId, kid: TokenId, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Refuse one token of a grant from now on. Returns the grant without this token."""
    return RecordedReply(curator.grants.revoke(caller, study_id, grant_id, kid))
