"""/v1/links: the modelers to which this curator connects."""

from fastapi import Request

from blindopt import wire
from service_kit.web.dependencies import api_router

router = api_router("links", "owner")


@router.get("/v1/links", response_model=wire.LinkStatusList)
def list_links(request: Request) -> wire.LinkStatusList:
    """List links over which this curator takes requests, and what keeps one from being connected."""
    return wire.LinkStatusList(links=request.app.state.links.status())
