"""/v1/suggestions: rows to ask next, without a run."""

from fastapi import Request
from starlette.responses import Response
from starlette.routing import Route

from blindopt import wire
from modeler_service.use_cases.modeler import Modeler
from service_kit.web.bodies import json_of, parse
from service_kit.web.dependencies import api_router, permitted
from service_kit.web.problems import documented

PATH = "/v1/suggestions"
router = api_router("suggestions", "vendor")


@router.post(PATH, response_model=wire.SuggestionReply, responses=documented(502))
async def suggest(request: wire.SuggestionRequest) -> Response:
    """Suggest rows to ask next, from the observations so far. Creates and spends nothing: no key is needed."""
    raise AssertionError("documented here, answered by `_suggest`")


async def _suggest(request: Request) -> Response:
    """A large body is read in a thread of the service: FastAPI would read it in the event loop."""
    request.state.route = PATH
    principal = permitted(request.state.principal, "vendor")
    modeler: Modeler = request.app.state.modeler
    body = await json_of(request)
    reply = await modeler.suggestions.of(lambda: parse(body, wire.SuggestionRequest), principal.actor)
    return Response(reply, media_type="application/json")


HOT = Route(PATH, _suggest, methods=["POST"])
