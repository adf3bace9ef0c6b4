"""Translations between HTTP and the service: parse, one call, reply."""

from typing import Annotated

from fastapi import Depends, Path, Request

from curator_service.curator import Curator

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


CuratorDep = Annotated[Curator, Depends(_curator)]
