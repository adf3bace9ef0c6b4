"""/v1/meta: version, mechanisms and limits of this curator; /v1/links: the modelers to which it connects."""

from fastapi import APIRouter, Request

from blindopt import wire
from blindopt.version import VERSION
from curator_service.releases.mechanisms.registry import MECHANISMS
from curator_service.routes import CuratorDep
from service_kit.web.dependencies import api_router

router = APIRouter(tags=["health"])


@router.get("/v1/meta", operation_id="meta")
def meta(curator: CuratorDep) -> wire.CuratorMeta:
    """Get version, release mechanisms with their status, and limits."""
    return wire.CuratorMeta(
        service="blindopt-curator",
        version=VERSION,
        log_key=curator.context.signer.verifier.vkey,
        mechanisms=[
            wire.MechanismView(name=m.name, version=m.version, status=m.status, claim=m.claim) for m in MECHANISMS
        ],
        limits=curator.limits,
    )


links_router = api_router("links", "owner")


@links_router.get("/v1/links", response_model=wire.LinkStatusList)
def list_links(request: Request) -> wire.LinkStatusList:
    """List links over which this curator takes requests, and what keeps one from being connected."""
    return wire.LinkStatusList(links=request.app.state.links.status())
