"""Pages of the REST reference, from the OpenAPI documents of both services."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from docs.website.tables import code, plain, table

Json = dict[str, Any]


@contextmanager
def applications() -> Iterator[dict[str, FastAPI]]:
    """Both services with every route that settings can turn on, without data."""
    from curator_service.app import build as build_curator
    from curator_service.settings import Settings as CuratorSettings
    from modeler_service.app import build as build_modeler
    from modeler_service.settings import Settings as ModelerSettings

    kept = tempfile.tempdir
    try:
        with tempfile.TemporaryDirectory() as folder:
            curator = build_curator(CuratorSettings(data_dir=Path(folder) / "curator", metrics=True))
            modeler = build_modeler(ModelerSettings(data_dir=Path(folder) / "modeler", metrics=True))
            yield {"curator": curator, "modeler": modeler}
            for app in (curator, modeler):
                app.state.context.close()
    finally:
        tempfile.tempdir = kept  # the curator moves it into its own folder


def documents() -> dict[str, Json]:
    """The OpenAPI document of each service."""
    with applications() as built:
        return {service: app.openapi() for service, app in built.items()}


def pages() -> dict[str, str]:
    """Two pages of each service, its operations and the fields of all bodies, and the document itself."""
    made = {}
    for service, document in documents().items():
        made[f"{service}.openapi.json"] = json.dumps(document, indent=1)
        made[f"{service}.md"] = operations_page(service, document)
        made[f"{service}-fields.md"] = fields_page(service, document)
    return made


def operations_page(service: str, document: Json) -> str:
    """Every operation of a service: what it does, its parameters, body and replies."""
    operations = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if isinstance(operation, dict) and "responses" in operation
    ]
    shared = _shared(document, operations)
    about = (
        "This page is made from the OpenAPI document of the service, which it serves at `/openapi.json` "
        f"([a copy]({service}.openapi.json)). [Fields]({service}-fields.md) describes the bodies."
    )
    errors = (
        f"An error is a [problem document]({service}-fields.md#Problem): "
        "[Troubleshooting](../howto/troubleshooting.md) explains its `code`."
    )
    lines = [
        f"# REST: the {service}",
        about,
        "## Replies that every operation may send",
        errors,
        table(["Status", "When"], [[status, plain(text)] for status, text in sorted(shared.items())]),
        "## Headers of replies",
        "Each reply below names those that it may have. `X-Request-ID` is in all of them.",
        table(["Header", "Meaning"], [[code(name), plain(text)] for name, text in _headers(document, operations)]),
    ]
    groups: dict[str, list[tuple[str, str, Json]]] = {}
    for path, method, operation in operations:
        groups.setdefault((operation.get("tags") or ["other"])[0], []).append((path, method, operation))
    for group, members in groups.items():
        lines.append(f"## {group.capitalize()}")
        for path, method, operation in members:
            lines += _operation(service, document, path, method, operation, shared)
    return "\n\n".join(line for line in lines if line) + "\n"


def _shared(document: Json, operations: list[tuple[str, str, Json]]) -> dict[str, str]:
    """Replies, by status, that are the same at every operation which needs a token."""
    closed = [
        {status: _resolve(document, reply)["description"] for status, reply in operation["responses"].items()}
        for _, _, operation in operations
        if operation.get("security")
    ]
    first = closed[0] if closed else {}
    return {s: text for s, text in first.items() if s >= "400" and all(other.get(s) == text for other in closed)}


def _headers(document: Json, operations: list[tuple[str, str, Json]]) -> list[tuple[str, str]]:
    """Every header of a reply with each meaning that it has, once."""
    replies = [_resolve(document, reply) for _, _, operation in operations for reply in operation["responses"].values()]
    named = [pair for reply in replies for pair in reply.get("headers", {}).items()]
    return list(dict.fromkeys((name, _resolve(document, header).get("description", "")) for name, header in named))


def _operation(
    service: str, document: Json, path: str, method: str, operation: Json, shared: dict[str, str]
) -> list[str]:
    lines = [f"### `{method.upper()} {path}` {{ #{operation['operationId']} }}"]
    lines.append(plain(operation.get("description") or operation.get("summary", "")))
    if not operation.get("security"):
        lines.append("No token is needed.")
    parameters = [_resolve(document, each) for each in operation.get("parameters", [])]
    lines.append(
        table(
            ["Parameter", "In", "Type", "Meaning"],
            [
                [code(each["name"]), each["in"], kind(service, each["schema"]), plain(each.get("description", ""))]
                for each in parameters
            ],
        )
    )
    body = _resolve(document, operation.get("requestBody", {}))
    if body:
        lines.append(f"Body: {_content(service, body)}.")
    lines.append(table(["Reply", "When", "Body", "Headers"], _replies(service, document, operation, shared)))
    return lines


def _replies(service: str, document: Json, operation: Json, shared: dict[str, str]) -> list[list[str]]:
    rows = []
    for status, unresolved in sorted(operation["responses"].items()):
        reply = _resolve(document, unresolved)
        if shared.get(status) == reply["description"] and operation.get("security"):
            continue
        headers = [code(name) for name in reply.get("headers", {}) if name != "X-Request-ID"]
        rows.append([status, plain(reply["description"]), _content(service, reply), ", ".join(headers)])
    return rows


def _content(service: str, holder: Json) -> str:
    kinds = []
    for media, content in holder.get("content", {}).items():
        schema = content.get("schema") or {}
        kinds.append(f"{kind(service, schema)} ({code(media)})" if schema else code(media))
    return " or ".join(kinds)


def fields_page(service: str, document: Json) -> str:
    """Every body of a service with its fields."""
    lines = [
        f"# REST: fields of the {service}",
        f"The bodies of [the {service}'s requests and replies]({service}.md), by name.",
    ]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += [f"## {plain(name)} {{ #{name} }}", plain(schema.get("description", ""))]
        if "properties" not in schema:
            lines.append(f"{kind(service, schema)}.")
            continue
        required = schema.get("required", [])
        rows = [
            [code(field), kind(service, each), "yes" if field in required else "", plain(each.get("description", ""))]
            for field, each in schema["properties"].items()
        ]
        lines.append(table(["Field", "Type", "Required", "Meaning"], rows))
    return "\n\n".join(line for line in lines if line) + "\n"


def kind(service: str, schema: Json) -> str:
    """The type of a value, in words, with links to the bodies that it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{plain(name)}]({service}-fields.md#{name})"
    for options in ("anyOf", "oneOf", "allOf"):
        if options in schema:
            return " or ".join(dict.fromkeys(kind(service, each) for each in schema[options]))
    if "const" in schema:
        return code(str(schema["const"]))
    if "enum" in schema:
        return ", ".join(code(str(each)) for each in schema["enum"])
    match schema.get("type"):
        case "array":
            return f"list of {kind(service, schema['items'])}" if schema.get("items") else "list"
        case "object":
            more = schema.get("additionalProperties")
            return f"object of {kind(service, more)}" if isinstance(more, dict) and more else "object"
        case "string":
            return {"binary": "file", "date-time": "time"}.get(schema.get("format", ""), "text")
        case "integer":
            return "whole number" + _range(schema)
        case "number":
            return "number" + _range(schema)
        case "boolean":
            return "true or false"
        case "null":
            return "null"
    return "any value"


def _range(schema: Json) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None and high is None:
        return ""
    above = "above" if "exclusiveMinimum" in schema else "from"
    below = "below" if "exclusiveMaximum" in schema else "to"
    words = [f"{above} {low:g}" if low is not None else "", f"{below} {high:g}" if high is not None else ""]
    return ", " + " ".join(word for word in words if word)


def _resolve(document: Json, value: Json) -> Json:
    """What a reference of the document leads to; any other value as it is."""
    while "$ref" in value:
        target: Json = document
        for part in value["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        value = target
    return value
