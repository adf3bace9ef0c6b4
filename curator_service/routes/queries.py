"""/v1/studies/{study_id} for modelers: the study, its candidates, and queries by row."""

import pathlib
import re
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from blindopt import wire
from blindopt.errors import RangeNotSatisfiable
from blindopt.formats.npy_files import MEDIA_TYPE, read
from blindopt.formats.release_files import Section
from curator_service.curator import Curator
from curator_service.routes import CuratorDep, QueryId, StudyId
from service_kit.identity.tokens import Principal
from service_kit.web.dependencies import (
    RecordedReply,
    RequestContextDep,
    allowed,
    api_router,
    body_of,
    header,
    of_own_study,
    permitted,
    request_context,
)
from service_kit.web.listings import PagingDep
from service_kit.web.openapi import FILE, RANGE
from service_kit.web.problems import documented

router = api_router("exchange", prefix="/v1/studies/{study_id}", dependencies=(Depends(of_own_study),))
_QUERIES = re.compile(r"/v1/studies/(std_[0-9a-f]{16})/queries")
_NPY = {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}
_RANGE = re.compile(r"bytes=(?:(\d{1,18})-(\d{0,18})|-(\d{1,18}))")


@router.get("", dependencies=[allowed("owner", "modeler")])
def get_study(request: Request, study_id: StudyId, curator: CuratorDep) -> wire.StudyView | wire.StudyOwnerView:
    """Get a study. Returns a StudyOwnerView to the owner, and a StudyView to a modeler."""
    if request.state.principal.role == "owner":
        view = curator.studies.view(study_id)
        shown = {
            "progress": curator.releases.progress(study_id),
            "high_risk": view.state == "draft" and curator.releases.is_high_risk(study_id, view.spec_sha256),
        }
        return view.model_copy(update=shown)
    return curator.queries.study(request.state.principal, study_id)


_AS_FILE: dict[str, Any] = {
    "response_class": StreamingResponse,
    "responses": {
        200: {"content": _NPY, "headers": FILE},
        206: {"content": _NPY, "headers": FILE | RANGE, "description": "A range."},
        304: {"headers": FILE, "description": "The ETag in If-None-Match is that of the candidates."},
        **documented(409, 416),
    },
    "dependencies": [allowed("modeler")],
}


def _wanted(
    range_: Annotated[str | None, Header(alias="Range", description="One range of bytes: bytes=first-last.")] = None,
    if_range: Annotated[str | None, Header(description="ETag: the range counts only while it is this.")] = None,
    if_none_match: Annotated[str | None, Header(description="ETags that the client has: 304 if it is one.")] = None,
) -> tuple[str | None, str | None, str]:
    return range_, if_range, if_none_match or ""


Wanted = Annotated[tuple[str | None, str | None, str], Depends(_wanted)]


@router.get("/candidates", **_AS_FILE)
def get_candidates(request: Request, study_id: StudyId, curator: CuratorDep, conditions: Wanted) -> Response:
    """Download the release as a float64 npy file, in a secret order of candidates.

    Zeros stand for candidates whose record was withheld before the grant was made: `left_out` of the study has them.
    ETag is its SHA-256; one Range at a time. 409 for a large release, which is published in parts: the study has their
    list. Returns the whole file.
    """
    return _file(*curator.queries.candidates(request.state.principal, study_id, None), conditions)


@router.get("/candidates/parts/{part}", **_AS_FILE)
def get_candidates_part(
    request: Request,
    study_id: StudyId,
    part: Annotated[int, Path(ge=0, lt=wire.PARTS_MAX, description="Number of the part in the study's list, from 0.")],
    curator: CuratorDep,
    conditions: Wanted,
) -> Response:
    """Download a part of a large release: its bytes of the npy file that all parts make up. Returns the whole part."""
    return _file(*curator.queries.candidates(request.state.principal, study_id, part), conditions)


def _file(path: pathlib.Path, section: Section, conditions: Wanted) -> Response:
    range_, if_range, if_none_match = conditions
    headers = {"ETag": f'"sha256-{section.sha256}"', "Cache-Control": "private, no-cache", "Accept-Ranges": "bytes"}
    if {"*", headers["ETag"]} & {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}:
        return Response(status_code=304, headers=headers)
    size = path.stat().st_size if section.size is None else section.size
    start, stop, status = 0, size, 200
    if (range_ or "").startswith("bytes=") and if_range in (None, headers["ETag"]):
        start, stop = _range(range_ or "", size)
        status, headers["Content-Range"] = 206, f"bytes {start}-{stop - 1}/{size}"
    headers["Content-Length"] = str(stop - start)  # any other Range is ignored (RFC 9110, section 14.2)
    content = read(path, section.first + start, stop - start, section.zeros)
    return StreamingResponse(content, status, headers=headers, media_type=MEDIA_TYPE)


def _range(range_header: str, size: int) -> tuple[int, int]:
    """The first byte and the one after the last. Raises RangeNotSatisfiable for anything but one range in the file."""
    match = _RANGE.fullmatch(range_header)
    if match is not None and match[3]:
        start, stop = max(0, size - int(match[3])), size
    else:
        start, stop = (int(match[1]), min(size, int(match[2] or size) + 1)) if match else (size, size)
    if not start < stop:
        raise RangeNotSatisfiable(f"ask for one range within the file's {size} bytes: bytes=first-last", size)
    return start, stop


@router.post(
    "/queries",
    status_code=201,
    response_model=wire.QueryReply,
    responses={
        202: {"model": wire.QueryPending, "description": "Charged; somebody must measure first."},
        **documented(409),
    },
    dependencies=[allowed("modeler")],
)
async def ask(
    request: Request, study_id: StudyId, query: wire.QueryRequest, caller: RequestContextDep, curator: CuratorDep
) -> Response:
    """Query candidates: the curator charges first, and stores the answers before it sends them.

    202 if people or a system of the owner's measure: then get the query with `wait`. Returns the answers.
    """
    return RecordedReply(await curator.queries.ask(caller, study_id, query, request.scope["state"].get("pacing")))


async def _ask(request: Request) -> Response:
    """`ask` without FastAPI's resolution of its arguments, which takes a fifth of an exchange."""
    request.scope["route"] = HOT  # as FastAPI sets it, for the access log and the metrics
    study_id: str = request.scope["path_params"]["study_id"]
    await of_own_study(request, study_id)
    permitted(request.scope["state"]["principal"], "modeler")
    query = await body_of(request, wire.QueryRequest)
    caller = await request_context(request, header(request, b"idempotency-key"))
    return await ask(request, study_id, query, caller, request.scope["app"].state.curator)


HOT = Route("/v1/studies/{study_id}/queries", _ask, methods=["POST"])


async def period_of(curator: Curator, method: str, path: str, principal: Principal) -> float | None:
    """The period in seconds after which every reply to a query of the study is sent; None: at once."""
    match = _QUERIES.fullmatch(path)
    if method != "POST" or match is None or principal.study_id not in (None, match[1]):
        return None
    return await curator.queries.period_s(match[1])


@router.get(
    "/queries/{query_id}",
    response_model=wire.QueryReply,
    responses={
        202: {"model": wire.QueryPending, "description": "Not measured yet. This reply is in neither log."},
        **documented(409),
    },
    dependencies=[allowed("modeler")],
)
async def get_query(
    request: Request,
    study_id: StudyId,
    query_id: QueryId,
    curator: CuratorDep,
    wait: Annotated[float, Query(ge=0, le=60, description="Seconds to wait for an answer.")] = 0.0,
    version: Annotated[
        int, Query(ge=1, lt=2**53, description="Wait for this version or a later one: more than 1 is a correction.")
    ] = 1,
) -> Response:
    """Get the latest version of a query's answers: the same version always has the same bytes. Returns them."""
    principal = request.state.principal
    reply = await curator.queries.query(principal, study_id, query_id, wait_s=wait, version=version)
    return Response(reply.body, reply.status, media_type="application/json")


@router.get(
    "/answers",
    response_model=wire.QueryReply,
    responses=documented(409),
    dependencies=[allowed("owner", "modeler")],
)
def get_answers(study_id: StudyId, curator: CuratorDep) -> Response:
    """Get the answers about every group, as the owner requested them at once. 409 before that.

    They are the same bytes for every grant. Returns one answer about each group.
    """
    return Response(curator.queries.answers(study_id), media_type="application/json")


@router.get(
    "/revisions",
    response_model=wire.RevisionPage,
    responses={
        202: {"model": wire.RevisionPage, "description": "None within `wait`. This reply is in neither log."},
        **documented(),
    },
    dependencies=[allowed("modeler")],
)
async def list_revisions(
    request: Request,
    study_id: StudyId,
    curator: CuratorDep,
    paging: PagingDep,
    wait: Annotated[float, Query(ge=0, le=60, description="Seconds to wait for one; then 202 if there is none.")] = 0.0,
) -> Response:
    """List answers that were pending, and corrections, in the order in which this grant got them.

    `page_token` is the seq of the last one that you know.
    """
    principal = request.state.principal
    revisions = await curator.queries.revisions(principal, paging.after, paging.limit, wait_s=wait)
    revisions, token = paging.cut(revisions, lambda revision: revision.seq)
    page = wire.RevisionPage(revisions=revisions, next_page_token=token)
    return Response(page.model_dump_json(), 202 if wait and not revisions else 200, media_type="application/json")
