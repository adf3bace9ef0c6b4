"""/v1/meta: what this modeler offers."""

from fastapi import APIRouter

from modeler_service import exporting
from modeler_service.algorithms.algorithm import NAMES
from modeler_service.routes.runs import ModelerDep
from shared import wire
from shared.serving.version import VERSION

router = APIRouter(tags=["health"])


@router.get("/v1/meta", response_model=wire.ModelerMeta, operation_id="meta")
def meta(modeler: ModelerDep) -> wire.ModelerMeta:
    """Version, algorithms, and what a run can be exported as."""
    key = modeler.desk.signer.verifier.vkey
    return wire.ModelerMeta(
        service="blindopt-modeler",
        version=VERSION,
        log_key=key,
        algorithms=list(NAMES),
        exports=["json", "csv", "parquet"] if exporting.has_parquet() else ["json", "csv"],
    )
