"""/v1/meta: what this modeler offers."""

from fastapi import APIRouter

from modeler_service.algorithms.algorithm import NAMES
from shared import wire
from shared.serving.app import VERSION

router = APIRouter(tags=["health"])


@router.get("/v1/meta", response_model=wire.ModelerMeta, operation_id="meta")
def meta() -> wire.ModelerMeta:
    """Version and algorithms."""
    return wire.ModelerMeta(service="blindopt-modeler", version=VERSION, algorithms=list(NAMES))
