"""/v1/studies for the owner: drafts, previews, releases, grants."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from blindopt import wire
from curator_service.routes.common import CuratorDep, GrantId, StudyId, TokenId
from service_kit.web.dependencies import PageSize, PageToken, RequestContextDep, allowed, answer, page_of
from service_kit.web.problems import documented

router = APIRouter(prefix="/v1/studies", tags=["studies"], dependencies=[allowed("owner")])


@router.post(
    "", status_code=201, response_model=wire.StudyOwnerView, responses=documented(409), operation_id="create_study"
)
def create(request: Request, study: wire.StudyCreate, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Make a draft: nothing is drawn and nothing leaves."""
    return answer(request, curator.studies.create(caller, study))


@router.put("/{study_id}", response_model=wire.StudyOwnerView, responses=documented(409), operation_id="change_study")
def change(
    request: Request,
    study_id: StudyId,
    study: wire.StudyChange,
    caller: RequestContextDep,
    curator: CuratorDep,
) -> Response:
    """Put another draft in the place of one that was never charged. Its forecasts go where they are another's now."""
    return answer(request, curator.studies.change(caller, study_id, study))


@router.get("", response_model=wire.StudyPage, responses=documented(), operation_id="list_studies")
def listed(curator: CuratorDep, page_size: PageSize = 50, page_token: PageToken = None) -> wire.StudyPage:
    """Studies in the order of their creation."""
    found, token = page_of(curator.studies.page(int(page_token or 0), page_size + 1), page_size, lambda item: item[0])
    return wire.StudyPage(studies=[view for _, view in found], next_page_token=token)


@router.post(
    "/{study_id}:preview", response_model=wire.ReleaseReport, responses=documented(), operation_id="preview_release"
)
def preview(study_id: StudyId, curator: CuratorDep) -> wire.ReleaseReport:
    """What a release would be, and what attackers get from a trial that is thrown away: for the owner alone.

    Changes nothing. Takes about four seconds, and ends after sixteen: `not_tried` then says what was left out. One is
    made at a time; while another's is under way, the answer is 503 `busy`.
    """
    return curator.releases.preview(study_id)


@router.post(
    "/{study_id}:release", response_model=wire.StudyOwnerView, responses=documented(409), operation_id="release_study"
)
def release(
    request: Request,
    study_id: StudyId,
    caller: RequestContextDep,
    curator: CuratorDep,
    wanted: wire.ReleaseAsked | None = None,
) -> Response:
    """Draw the candidates in a secret row order and open the study. Once.

    A body is not needed: with one, a draft that somebody has changed since is not released.
    """
    return answer(request, curator.releases.release(caller, study_id, wanted))


@router.post(
    "/{study_id}:close", response_model=wire.StudyOwnerView, responses=documented(409), operation_id="close_study"
)
def close(request: Request, study_id: StudyId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Refuse further queries."""
    return answer(request, curator.studies.close(caller, study_id))


@router.post(
    "/{study_id}/grants",
    status_code=201,
    response_model=wire.GrantReply,
    responses=documented(409),
    operation_id="create_grant",
)
def grant(
    request: Request,
    study_id: StudyId,
    grant: wire.GrantCreate,
    caller: RequestContextDep,
    curator: CuratorDep,
) -> Response:
    """A token for one modeler, shown once."""
    return answer(request, curator.grants.grant(caller, study_id, grant))


@router.get("/{study_id}/grants", response_model=wire.GrantPage, responses=documented(), operation_id="list_grants")
def grants(
    study_id: StudyId, curator: CuratorDep, page_size: PageSize = 50, page_token: PageToken = None
) -> wire.GrantPage:
    """The grants of a study, without their tokens."""
    found = curator.grants.grants(study_id, int(page_token or 0), page_size + 1)
    shown, token = page_of(found, page_size, lambda item: item[0])
    return wire.GrantPage(grants=[view for _, view in shown], next_page_token=token)


@router.post(
    "/{study_id}/grants/{grant_id}:revoke",
    response_model=wire.GrantView,
    responses=documented(409),
    operation_id="revoke_grant",
)
def revoke(
    request: Request, study_id: StudyId, grant_id: GrantId, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Refuse all of its tokens from now on."""
    return answer(request, curator.grants.revoke(caller, study_id, grant_id))


@router.post(
    "/{study_id}/grants/{grant_id}:rotate",
    status_code=201,
    response_model=wire.GrantReply,
    responses=documented(409),
    operation_id="rotate_grant",
)
def rotate(
    request: Request,
    study_id: StudyId,
    grant_id: GrantId,
    rotation: wire.Rotation,
    caller: RequestContextDep,
    curator: CuratorDep,
) -> Response:
    """A further token, shown once; the older one stays good until it is revoked. At most two are live."""
    return answer(request, curator.grants.rotate(caller, study_id, grant_id, rotation))


@router.post(
    "/{study_id}/grants/{grant_id}/tokens/{kid}:revoke",
    response_model=wire.GrantView,
    responses=documented(409),
    operation_id="revoke_grant_token",
)
def revoke_token(
    request: Request,
    study_id: StudyId,
    grant_id: GrantId,
    kid: TokenId,
    caller: RequestContextDep,
    curator: CuratorDep,
) -> Response:
    """Refuse one token of a grant from now on."""
    return answer(request, curator.grants.revoke(caller, study_id, grant_id, kid))
