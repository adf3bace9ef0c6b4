"""/v1/connections: trying a curator before a run is started."""

from fastapi import Request

from blindopt import wire
from modeler_service.routes.runs import ModelerDep
from service_kit.web.dependencies import api_router

router = api_router("runs", "vendor")


@router.post("/v1/connections:test")
def test_connection(request: Request, access: wire.StudyAccess, modeler: ModelerDep) -> wire.ConnectionReport:
    """Whether a run could be started with these; if not, why. Creates and spends nothing: no key is needed.

    One at a time for each user or token's holder: 503 `busy` for another.
    """
    return modeler.try_connection(access, request.state.principal)
