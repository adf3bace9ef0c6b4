"""/v1/meta: version, mechanisms and limits of this curator."""

from fastapi import APIRouter

from blindopt import wire
from blindopt.version import VERSION
from curator_service.releases.mechanisms.registry import MECHANISMS
from curator_service.routes import CuratorDep

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
