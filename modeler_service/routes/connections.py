"""/v1/connections: trying a curator before a run is started."""

from fastapi import Request

from blindopt import wire
from modeler_service.routes.runs import ModelerDep
from service_kit.web.dependencies import api_router

router = api_router("runs", "vendor")


@router.post("/v1/connections:test")
def test_connection(request: Request, access: wire.StudyAccess, modeler: ModelerDep) -> wire.ConnectionReport:
    """Test whether a run could be started with these settings. Creates and spends nothing: no key is needed.

    Each principal has one test at a time: another gets 503 `busy`.
    """
    return modeler.try_connection(access, request.state.principal)
