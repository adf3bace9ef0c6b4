"""Errors as RFC 9457 problem documents: the one place where an error becomes HTTP."""

import copy
import re
import secrets
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from blindopt import wire
from blindopt.errors import BadRequest, BlindoptError, MethodNotAllowed, NotFound, StorageUnavailable
from blindopt.faults import invalid

REQUEST_ID = re.compile(r"[0-9a-f-]{8,64}")
MEDIA_TYPE = "application/problem+json"
_PROBLEM = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
_OF_STATUS: dict[int, tuple[type[BlindoptError], str]] = {
    400: (BadRequest, "the body cannot be read as a form: its boundary is missing, or a field is broken or too long"),
    404: (NotFound, "this service has no such path"),
    405: (MethodNotAllowed, "this path does not take this method"),
}
"""What the framework alone refuses."""
_WHEN = {
    400: "The request cannot be read, or Idempotency-Key is missing.",
    401: "No valid token.",
    403: "The role may not do this, the study is not open, or its budget does not allow it (then with budget).",
    404: "Not there, or not yours.",
    405: "The path does not know this method.",
    408: "The request came too slowly.",
    409: "Not possible in this state.",
    410: "It was erased by its owner.",
    413: "The request is too large.",
    415: "Another Content-Type is needed; detail names it.",
    416: "The range lies outside the file.",
    422: "Invalid: detail has the first fault, errors has each; or the Idempotency-Key belongs to another request.",
    429: "Too many requests; Retry-After says when.",
    431: "The head is too large.",
    500: "A fault of ours; nothing of it is shown.",
    502: "The other party did not answer.",
    503: "The record of the exchange cannot be written, or the service is busy: nothing happened.",
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Entries for a route's ``responses``: the errors that every route may reply with, and ``statuses``."""
    return {s: problem(s) for s in sorted({400, 401, 403, 404, 405, 410, 413, 422, 429, 500, 503, *statuses})}


def problem(status: int) -> dict[str, Any]:
    """What the OpenAPI document says of a status."""
    return {"description": _WHEN[status], **copy.deepcopy(_PROBLEM)}


def document(error: BlindoptError, *, path: str, request_id: str) -> bytes:
    problem = wire.Problem.model_validate(
        {
            "type": f"urn:blindopt:problem:{error.code}",
            "title": error.title,
            "status": error.status,
            "detail": str(error),
            "instance": path[:200],
            "code": error.code,
            "retryable": error.retryable,
            "request_id": request_id,
            **error.extra(),
        }
    )
    return problem.model_dump_json(exclude_none=True).encode()


def response(error: BlindoptError, *, path: str, request_id: str) -> Response:
    headers = dict(error.headers)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.retryable:
        headers.setdefault("Retry-After", "1")
    body = document(error, path=path, request_id=request_id)
    return Response(body, error.status, headers, media_type=MEDIA_TYPE)


def refusal(error: BlindoptError, proposed_id: str) -> Response:
    """The HTTP response of an error to a request that no layer has handled, such as one that is not HTTP."""
    request_id = proposed_id if REQUEST_ID.fullmatch(proposed_id) else secrets.token_hex(16)
    reply = response(error, path="", request_id=request_id)
    reply.headers.update({"X-Request-ID": request_id, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})
    return reply


def install(app: FastAPI) -> None:
    """Reply to every error of a route with a problem document, which repeats nothing of the request."""

    def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, RequestValidationError):  # of a body that is refused, the framework saw no more than that
            error = getattr(request.state, "wrong_body", error)
        converted = as_blindopt_error(error)
        if converted.status == 405 and (methods := _methods(app.openapi(), request.url.path)):
            converted.headers = {"Allow": ", ".join(methods)}
        console = getattr(request.app.state, "console", None)
        if console is not None and console.paths.fullmatch(request.url.path):
            page: Response = console.refusal(request.scope, converted)
            return page
        return response(converted, path=request.url.path, request_id=request.state.request_id)

    for kind in (BlindoptError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)


def _methods(contract: dict[str, Any], path: str) -> list[str]:
    """Every method of a path in the OpenAPI document; the framework names those of one of its routes only."""
    return [
        method.upper()
        for template, operations in contract["paths"].items()
        if re.fullmatch(re.sub(r"{\w+}", "[^/:]+", template), path)  # a colon is followed by a verb, never by an id
        for method in operations
    ]


def as_blindopt_error(error: Exception) -> BlindoptError:
    """Convert any error that a route raises to a BlindoptError, whose text repeats nothing of the request."""
    if isinstance(error, BlindoptError):
        return error
    cause = error.__cause__  # the framework reports any error while it reads a form as a wrong form
    if isinstance(error, HTTPException) and (unavailable := StorageUnavailable.of(cause)) is not None:
        return unavailable
    if isinstance(error, HTTPException):
        kind, detail = _OF_STATUS.get(error.status_code, _OF_STATUS[400])
        refusal = kind(detail)
        refusal.headers = {name: value for name, value in (error.headers or {}).items() if name.lower() == "allow"}
        return refusal
    assert isinstance(error, RequestValidationError)
    return invalid({**fault, "loc": fault["loc"][1:]} for fault in error.errors())  # without query, body, header
