"""/v1/uploads: files that wait until their owner has decided how their columns are read."""

from functools import partial
from typing import Annotated

from fastapi import File, Path, UploadFile
from starlette.responses import Response

from blindopt import wire
from curator_service.routes import CuratorDep
from service_kit.web.dependencies import NEEDS_ROOM, RecordedReply, RequestContextDep, UnkeyedContextDep, api_router
from service_kit.web.problems import documented

router = api_router("uploads", "owner", prefix="/v1/uploads")
UploadId = Annotated[str, Path(description="upl_...")]


@router.post(
    "", status_code=201, response_model=wire.UploadCreated, responses=documented(409), dependencies=[NEEDS_ROOM]
)
async def upload_file(
    caller: RequestContextDep,
    curator: CuratorDep,
    file: Annotated[UploadFile, File(description="CSV in UTF-8 with a header, or *.parquet; either may be a .gz.")],
) -> Response:
    """Keep a file for 24 hours, to see what its columns hold and decide how each is read; then register it by its id.

    Only its owner sees it. At most 10 files of an owner are kept: 409 for one more. A broken one is refused.
    A large file waits for its turn: two are read at once, and `GET /v1/jobs` lists them.
    """
    name = file.filename or ""
    keep = partial(curator.uploads.keep, caller, name, file.file)
    return RecordedReply(await curator.readings.run(name, file.file, keep))


@router.get("")
def list_uploads(caller: UnkeyedContextDep, curator: CuratorDep) -> wire.UploadPage:
    """List your pending files, oldest first: all of them."""
    return wire.UploadPage(uploads=curator.uploads.all(caller.principal), next_page_token=None)


@router.get("/{upload_id}")
def get_upload(upload_id: UploadId, caller: UnkeyedContextDep, curator: CuratorDep) -> wire.PendingUpload:
    """Show what the columns of a pending file hold. It is made from the records: do not pass it on."""
    return curator.uploads.view(caller.principal, upload_id)


@router.post("/{upload_id}:read")
async def read_upload(
    upload_id: UploadId, body: wire.ReadingChoice, caller: UnkeyedContextDep, curator: CuratorDep
) -> wire.PendingUpload:
    """Read a pending file in another way, and count what a registration would then store. Nothing is stored.

    Without columns those that can be read without a question are proposed. The choice stays with the file. Returns how
    the file is read now.
    """
    with curator.uploads.lent(caller.principal, upload_id) as (pending, file):
        work = partial(curator.uploads.read, caller.principal, pending, file, body)
        return await curator.readings.run(pending.filename, file, work)


@router.post("/{upload_id}:discard", response_model=wire.UploadDiscarded, responses=documented(409))
def discard_upload(upload_id: UploadId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Delete a pending file."""
    return RecordedReply(curator.uploads.discard(caller, upload_id))
