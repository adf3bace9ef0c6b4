"""Types of path parameters, and the curator as a dependency."""

from typing import Annotated

from fastapi import Depends, Path, Request

from blindopt.errors import NotFound
from curator_service.curator import Curator
from service_kit.identity.tokens import Principal

# Ids are opaque: one of another form gets 404 like any unknown id.
DatasetId = Annotated[str, Path(description="ds_...")]
StudyId = Annotated[str, Path(description="std_...")]
QueryId = Annotated[str, Path(description="qry_...")]
GrantId = Annotated[str, Path(description="grt_...")]
TuningId = Annotated[str, Path(description="tun_...")]
TokenId = Annotated[str, Path(description="The token's key id.")]


async def _curator(request: Request) -> Curator:
    curator: Curator = request.app.state.curator
    return curator


async def of_own_study(request: Request, study_id: StudyId) -> None:
    """Raise NotFound for a modeler's token on another study, as for a study that does not exist."""
    principal: Principal = request.scope["state"]["principal"]
    if principal.study_id is not None and principal.study_id != study_id:
        raise NotFound("there is no such study")


CuratorDep = Annotated[Curator, Depends(_curator)]
