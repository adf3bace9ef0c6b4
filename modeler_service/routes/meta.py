"""/v1/meta: what this modeler offers."""

from fastapi import APIRouter

from blindopt import wire
from blindopt.optimizer.algorithms.factory import NAMES
from blindopt.version import VERSION
from modeler_service.routes.runs import ModelerDep
from modeler_service.use_cases import exports

router = APIRouter(tags=["health"])


@router.get("/v1/meta", operation_id="meta")
def meta(modeler: ModelerDep) -> wire.ModelerMeta:
    """Get version, algorithms, and formats of a run's export."""
    key = modeler.context.signer.verifier.vkey
    return wire.ModelerMeta(
        service="blindopt-modeler",
        version=VERSION,
        log_key=key,
        algorithms=list(NAMES),
        exports=["json", "csv", "parquet"] if exports.has_parquet() else ["json", "csv"],
    )
