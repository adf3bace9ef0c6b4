"""The OpenAPI document of a service, as a generator of clients can use it."""

import json
import threading
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from blindopt.audit.merkle_log import RECEIPT_HEADER, Exchange
from service_kit.web.metrics import PATH as METRICS_PATH
from service_kit.web.problems import problem

Json = dict[str, Any]

# Spaces at the ends are not part of a header's value.
_KEY_SCHEMA = {"type": "string", "pattern": r"^[!-~]([ -~]{0,198}[!-~])?$", "minLength": 1, "maxLength": 200}


def header(description: str, **schema: Any) -> Json:
    return {"description": description, "schema": {"type": "string", **schema}}


REQUEST_ID = {"X-Request-ID": header("Id of this request: that of the client, if it sent one.")}
RETRY_AFTER = {
    "Retry-After": header("Of a retryable problem: seconds to wait before a repetition.", pattern="^[0-9]+$")
}
REPLAYED = {
    "Idempotency-Replayed": header("true: this is the stored reply to an earlier request with this key.", enum=["true"])
}
RECEIPT = {
    RECEIPT_HEADER: header(
        "To a modeler: the position of this exchange in the log that both parties share, a space, and the curator's "
        "signed checkpoint of the log up to it, in base64.",
        pattern="^[0-9]{1,15} [A-Za-z0-9+/=]+$",
    )
}
FILE = {
    "ETag": header("SHA-256 of the whole file.", pattern='^"sha256-[0-9a-f]{64}"$'),
    "Accept-Ranges": header("bytes: one range may be requested.", enum=["bytes"]),
}
RANGE = {"Content-Range": header("Which bytes these are, of how many.", pattern="^bytes [0-9]+-[0-9]+/[0-9]+$")}
_OF_A_RECORD = {
    "study_id": "Id of the study.",
    "grant_id": "Id of the grant whose parties share the log.",
    "position": "Index of the record in the shared log, from 0; null for a reply without a receipt.",
    "request_id": "X-Request-ID of the reply.",
    "method": "HTTP method of the request.",
    "path": "Path of the request, without a query string.",
    "idempotency_key": "Idempotency-Key of the request, or null.",
    "request_sha256": "SHA-256 of the body of the request, in hex.",
    "status": "HTTP status of the reply.",
    "reply_sha256": "SHA-256 of the body of the reply, in hex; of candidates, that of the whole file.",
    "replayed": "Whether the reply was stored for an earlier request with this key.",
}
"""What the fields of a record in a shared log are."""
_DOCS = (
    "<!doctype html><title>blindopt</title>"
    '<p>The <a href="/openapi.json">contract</a> of this service, and '
    '<a href="https://github.com/blindopt/blindopt/tree/main/docs">its documentation</a>.'
)
_RETRIED = {"409", "429", "502", "503"}
_making = threading.Lock()
"""Held while a document is made: the framework publishes its own before ours is whole."""


def routes(app: FastAPI) -> list[Route]:
    """/docs and /openapi.json, open to everyone: made once, in a thread, because that takes a second of a processor."""
    lock = threading.Lock()
    made: list[bytes] = []

    def reply(request: Request) -> Response:
        with lock:
            if not made:
                made.append(json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":")).encode())
        return Response(made[0], media_type="application/json")

    def docs(request: Request) -> Response:
        return HTMLResponse(_DOCS)

    return [Route(path, get, include_in_schema=False) for path, get in (("/openapi.json", reply), ("/docs", docs))]


def document(app: FastAPI, models: tuple[type[BaseModel], ...]) -> Json:
    """The document of an application, made once. ``models`` are added to the schemas that its routes use."""
    with _making:
        return app.openapi_schema or _made(app, models)


def _made(app: FastAPI, models: tuple[type[BaseModel], ...]) -> Json:
    made = FastAPI.openapi(app)
    schemas = made["components"]["schemas"]
    for model in models:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for name, schema in schemas.items():
        if name.startswith("Body_"):  # a form
            for field in schema["properties"].values():
                _drop_null(field)
                if "contentMediaType" in field:
                    field["format"] = "binary"  # as older documents, and generators, call a file
        for field in schema.get("properties", {}).values():
            _describe_default(field)
            _discriminate(field, schemas)
    made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    record = schemas["SharedLogRecord"] = TypeAdapter(Exchange).json_schema() | {"title": "SharedLogRecord"}
    for name, field in record["properties"].items():
        field["description"] = _OF_A_RECORD[name]
    shared = {
        (route.path_format, method.lower())
        for route in app.routes
        if isinstance(route, APIRoute) and _is_shared(route)
        for method in route.methods or ()
    }
    for path, method, operation in _operations(made):
        _describe_success(operation, schemas)
        keyed = False
        for parameter in operation.get("parameters", []):
            _drop_null(parameter["schema"])
            if parameter["name"] == "idempotency-key":
                keyed = True
                parameter["required"] = True  # 400, not 422, where it is missing
                parameter["schema"] = _KEY_SCHEMA
        if "requestBody" in operation:
            operation["responses"]["415"] = problem(415)
        for content in operation.get("requestBody", {}).get("content", {}).values():
            _drop_null(content["schema"])
        closed = path == METRICS_PATH or (path.startswith("/v1/") and path != "/v1/meta")
        operation["security"] = [{"token": []}] if closed else []
        for status, reply in operation["responses"].items():
            headers = REQUEST_ID | (RETRY_AFTER if status in _RETRIED else {})
            headers |= REPLAYED if keyed and status.startswith("2") else {}
            headers |= RECEIPT if (path, method) in shared else {}
            reply["headers"] = headers | reply.get("headers", {})
            for content in reply.get("content", {}).values():
                _discriminate(content.get("schema", {}), schemas)
    app.openapi_schema = made
    return made


def _operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield path, method, operation


def _describe_success(operation: Json, schemas: Json) -> None:
    """Take the summary and the sentence of a success out of the docstring; other successes say what their body is."""
    text = " ".join(operation.get("description", "").split())
    operation["summary"] = text.partition(". ")[0].removesuffix(".") or operation["summary"]
    _, returns, sentence = text.rpartition(" Returns ")
    for reply in operation["responses"].values():
        if reply["description"] == "Successful Response":
            name = next(iter(reply["content"].values()))["schema"].get("$ref", "").rpartition("/")[2]
            body = schemas[name].get("description", "").partition("\n\n")[0] if name else ""
            reply["description"] = f"Returns {sentence}" if returns else body


def _is_shared(route: APIRoute) -> bool:
    """Whether modelers may send these requests, so that they are in the log that both parties share."""
    waiting: list[Dependant] = [route.dependant]
    while waiting:
        dependant = waiting.pop()
        if "modeler" in getattr(dependant.call, "roles", ()):
            return True
        waiting += dependant.dependencies
    return False


def _drop_null(schema: Json) -> None:
    """Remove null from the types of a parameter, form field or body, which is sent or left out."""
    options = [option for option in schema.get("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1:
        del schema["anyOf"]
        schema |= options[0]


def _discriminate(field: Json, schemas: Json) -> None:
    """Name the property that tells the alternatives of a field or reply apart, where pydantic does not."""
    options = [option.get("$ref", "").rpartition("/")[2] for option in field.get("anyOf") or field.get("oneOf") or []]
    if len(options) < 2 or "discriminator" in field or not all(option in schemas for option in options):
        return
    for name in schemas[options[0]].get("properties", {}):
        tags = [schemas[option].get("properties", {}).get(name, {}).get("const") for option in options]
        if None not in tags and len(set(tags)) == len(tags):
            mapping = {tag: f"#/components/schemas/{option}" for tag, option in zip(tags, options, strict=True)}
            field["discriminator"] = {"propertyName": name, "mapping": mapping}


def _describe_default(field: Json) -> None:
    """Move the default of an object into its description: generators cannot make it a value of their class."""
    if isinstance(default := field.get("default"), dict):
        del field["default"]
        words = ", ".join(f"{name} {_word(value)}" for name, value in default.items())
        field["description"] = f"{field.get('description', '')} {f'Default: {words}.' if words else ''}".strip()


def _word(value: Any) -> str:
    return {True: "true", False: "false", None: "null"}[value] if value in (True, False, None) else str(value)
