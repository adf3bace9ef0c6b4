"""Pages of the REST reference, from the OpenAPI documents of both services and from recorded examples."""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from docs.website.tables import code, plain, table
from docs.website.tour import Example

Json = dict[str, Any]
ORDER = ("uploads", "datasets", "studies", "forecasts", "exchange", "runs")
"""Groups in the order of a reader's work; others follow."""
ABOUT = """This page is made from the OpenAPI document of the service, which it serves at `/openapi.json`
([a copy]({service}.openapi.json) with examples). Each page below describes some operations, each with the types that it
is the first to use.

A request needs the header `Authorization: Bearer TOKEN`, unless its page says otherwise. A request that changes
something needs the header `Idempotency-Key` with a new random value: repeat the request with the same value until you
have a reply. Bodies are JSON unless a page says otherwise. A number without a range may be any finite number."""


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


def pages(recorded: Mapping[str, list[Example]]) -> dict[str, str]:
    """A page of each service, one of each group of its operations, and the document itself, all with examples."""
    by_name: dict[str, str] = {}
    for service, document in documents().items():
        _bound_counts(document)
        reference = Reference(service, document, recorded.get(service, []))
        by_name |= reference.pages()
        by_name[f"{service}.openapi.json"] = json.dumps(document, indent=1)
    return by_name


class Reference:
    """The reference of a service. A type stands with the first operation that uses it, those of errors in front."""

    def __init__(self, service: str, document: Json, recorded: list[Example]) -> None:
        self.service, self.document = service, document
        self.schemas: Json = document["components"]["schemas"]
        self.groups: dict[str, list[tuple[str, str, Json]]] = {group: [] for group in ORDER}
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                (group,) = operation["tags"]
                self.groups.setdefault(group, []).append((path, method, operation))
        self.groups = {group: members for group, members in self.groups.items() if members}
        self.operations = [item for members in self.groups.values() for item in members]
        self.examples = {
            operation["operationId"]: _examples_of(path, method, operation, recorded)
            for path, method, operation in self.operations
        }
        self.home = dict.fromkeys(self._reached({"$ref": "#/components/schemas/Problem"}), "")
        self.types: dict[str, list[str]] = {}
        for group, members in self.groups.items():
            for _, _, operation in members:
                bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
                fresh = [name for name in self._reached(bodies) if name not in self.home]
                self.types[operation["operationId"]] = fresh
                self.home |= dict.fromkeys(fresh, group)
        self.home |= {name: self.home.get(name, "") for name in self.schemas}
        self.shown_group = ""

    def pages(self) -> dict[str, str]:
        """All pages, by their paths."""
        by_name = {f"{self.service}.md": self._overview()}
        for group, members in self.groups.items():
            self.shown_group = group
            blocks = [f"# {self.service.capitalize()}: {group}"]
            for path, method, operation in members:
                blocks += self._operation(path, method, operation)
            by_name[f"{self.service}/{group}.md"] = "\n\n".join(line for line in blocks if line) + "\n"
        return by_name

    def _overview(self) -> str:
        self.shown_group = ""
        blocks = [f"# REST: the {self.service}", ABOUT.format(service=self.service)]
        for group, members in self.groups.items():
            rows = [
                [f"[{plain(item['summary'])}]({self.service}/{group}.md#{item['operationId']})", _call(path, method)]
                for path, method, item in members
            ]
            blocks += [f"## {group.capitalize()}", table(["What it does", "Request"], rows)]
        refused = [[status, plain(content)] for status, content in sorted(self._shared().items())]
        explained = (
            "An error is a [Problem](#Problem): [Troubleshooting](../howto/troubleshooting.md) explains its `code`."
        )
        blocks += ["## Replies that every operation may send", explained, table(["Status", "When"], refused)]
        about = "Each reply names the headers that it may have. `X-Request-ID` is in all of them."
        headers = [[code(name), plain(content)] for name, content in self._headers()]
        blocks += ["## Headers of replies", about, table(["Header", "Meaning"], headers)]
        blocks += [line for name in sorted(self.schemas) if not self.home[name] for line in self._type(name, "##")]
        return "\n\n".join(line for line in blocks if line) + "\n"

    def _shared(self) -> dict[str, str]:
        """Replies, by status, that are the same at every operation which needs a token."""
        closed = [
            {status: self._resolve(reply)["description"] for status, reply in operation["responses"].items()}
            for _, _, operation in self.operations
            if operation.get("security")
        ]
        first = closed[0] if closed else {}
        return {
            s: content
            for s, content in first.items()
            if s >= "400" and all(other.get(s) == content for other in closed)
        }

    def _headers(self) -> list[tuple[str, str]]:
        """Every header of a reply with each meaning that it has, once."""
        replies = [self._resolve(reply) for _, _, item in self.operations for reply in item["responses"].values()]
        named = [pair for reply in replies for pair in reply.get("headers", {}).items()]
        return list(dict.fromkeys((name, self._resolve(header).get("description", "")) for name, header in named))

    def _operation(self, path: str, method: str, operation: Json) -> list[str]:
        name = operation["operationId"]
        blocks = [f"## {plain(operation['summary'])} {{ #{name} }}", _call(path, method)]
        more = " ".join(operation["description"].split())[len(operation["summary"]) + 1 :]
        blocks.append(plain(re.sub(r" ?Returns (?!.* Returns ).*$", "", more).strip()))
        if not operation.get("security"):
            blocks.append("You need no token.")
        parameters = [self._resolve(item) for item in operation.get("parameters", [])]
        rows = [
            [code(item["name"]), item["in"], self.kind(item["schema"]), plain(item.get("description", ""))]
            for item in parameters
            if item["name"] != "idempotency-key"
        ]
        blocks.append(table(["Parameter", "In", "Type", "Meaning"], rows))
        body = self._resolve(operation.get("requestBody", {}))
        if body:
            blocks.append(f"Body: {self._content(body)}.")
        blocks.append(table(["Reply", "When", "Body", "Headers"], self._replies(operation)))
        keyed = any(item["name"] == "idempotency-key" for item in parameters)
        blocks += [_shown(example, bool(operation.get("security")), keyed) for example in self.examples[name]]
        return blocks + [line for item in self.types[name] for line in self._type(item, "###")]

    def _replies(self, operation: Json) -> list[list[str]]:
        rows, shared = [], self._shared()
        for status, unresolved in sorted(operation["responses"].items()):
            reply = self._resolve(unresolved)
            if shared.get(status) == reply["description"] and operation.get("security"):
                continue
            headers = [code(name) for name in reply.get("headers", {}) if name != "X-Request-ID"]
            rows.append([status, plain(reply["description"]), self._content(reply), ", ".join(headers)])
        return rows

    def _content(self, holder: Json) -> str:
        kinds = []
        for media, content in holder.get("content", {}).items():
            schema = content.get("schema") or {}
            kinds.append(f"{self.kind(schema)} ({code(media)})" if schema else code(media))
        return " or ".join(kinds)

    def _type(self, name: str, mark: str) -> list[str]:
        schema = self.schemas[name]
        blocks = [f"{mark} {plain(name)} {{ #{name} }}", plain(schema.get("description", ""))]
        if "properties" not in schema:
            return [*blocks, f"{self.kind(schema)}."]
        needed = schema.get("required", [])
        rows = [
            [code(field), self.kind(item), "yes" if field in needed else "", plain(item.get("description", ""))]
            for field, item in schema["properties"].items()
        ]
        return [*blocks, table(["Field", "Type", "Required", "Meaning"], rows)]

    def kind(self, schema: Json) -> str:
        """The type of a value, in words, with links to the types that it names."""
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            home = self.home[name]
            page = f"{home}.md" if home else f"{self.service}.md"
            folder = (
                "../" if self.shown_group and not home else f"{self.service}/" if home and not self.shown_group else ""
            )
            return f"[{plain(name)}]({'' if home == self.shown_group else folder + page}#{name})"
        for options in ("anyOf", "oneOf", "allOf"):
            if options in schema:
                return " or ".join(dict.fromkeys(self.kind(item) for item in schema[options]))
        if "const" in schema:
            return code(str(schema["const"]))
        if "enum" in schema:
            return ", ".join(code(str(item)) for item in schema["enum"])
        match schema.get("type"):
            case "array":
                return f"list of {self.kind(schema['items'])}" if schema.get("items") else "list"
            case "object":
                more = schema.get("additionalProperties")
                return f"object of {self.kind(more)}" if isinstance(more, dict) and more else "object"
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

    def _reached(self, value: Any) -> list[str]:
        """The types that a value of the document names, and those that these name, each once."""
        names: dict[str, None] = {}
        waiting = [value]
        while waiting:
            item = waiting.pop(0)
            if isinstance(item, dict):
                name = str(item.get("$ref", "")).removeprefix("#/components/schemas/")
                if name in self.schemas and name not in names:
                    names[name] = None
                    waiting.append(self.schemas[name])
                waiting += item.values()
            elif isinstance(item, list):
                waiting += item
        return list(names)

    def _resolve(self, value: Json) -> Json:
        """What a reference of the document leads to; any other value as it is."""
        while "$ref" in value:
            target: Json = self.document
            for key in value["$ref"].removeprefix("#/").split("/"):
                target = target[key]
            value = target
        return value


def _call(path: str, method: str) -> str:
    return f"`{method.upper()} {path}`"


def _range(schema: Json) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None and high is None:
        return ""
    above = "above" if "exclusiveMinimum" in schema else "from"
    below = "below" if "exclusiveMaximum" in schema else "to"
    words = [f"{above} {low:g}" if low is not None else "", f"{below} {high:g}" if high is not None else ""]
    return ", " + " ".join(word for word in words if word)


def _bound_counts(value: Any) -> None:
    """Whole numbers without a smallest value are counts, sizes and positions: from 0."""
    if isinstance(value, dict):
        if value.get("type") == "integer" and not {"minimum", "exclusiveMinimum", "const", "enum"} & value.keys():
            value["minimum"] = 0
        for item in value.values():
            _bound_counts(item)
    elif isinstance(value, list):
        for item in value:
            _bound_counts(item)


def _examples_of(path: str, method: str, operation: Json, recorded: list[Example]) -> list[Example]:
    """Put the first example of each success into the document, and return them."""
    pattern = re.compile(re.sub(r"{\w+}", "[^/:]+", path))
    matches: dict[int, Example] = {}
    for example in recorded:
        fits = example.method == method and pattern.fullmatch(example.target.partition("?")[0])
        if fits and example.status < 300 and (method == "get" or example.status not in matches):
            matches[example.status] = example  # what is read last is fullest
    for status, example in matches.items():
        sent = operation.get("requestBody", {}).get("content", {}).get(example.media)
        if sent is not None:
            sent.setdefault("example", example.body)
        reply = operation["responses"][str(status)].get("content", {}).get(example.reply_media)
        if reply is not None and example.reply is not None and example.reply_media != "text/event-stream":
            reply["example"] = shortened(example.reply)
    return [matches[status] for status in sorted(matches)]


def shortened(value: Any) -> Any:
    """An example that one can read: two of many items, and the beginning of a long sentence."""
    if isinstance(value, dict):
        return {name: shortened(item) for name, item in value.items()}
    if isinstance(value, list):
        are_numbers = all(isinstance(item, int | float) for item in value)
        return value if are_numbers else [shortened(item) for item in value[:2]]
    if isinstance(value, str) and len(value) > 300 and " " in value:
        return value[:200] + " ..."
    return value


def _shown(example: Example, closed: bool, keyed: bool) -> str:
    """A folded example: the request as it is sent, and the body of its reply."""
    head = [f"{example.method.upper()} {example.target} HTTP/1.1"]
    head += ["Authorization: Bearer TOKEN"] if closed else []
    head += ["Idempotency-Key: 5f0c6a1e9b3d"] if keyed else []
    if example.body is not None:
        head += [f"Content-Type: {example.media}", "", _text(example.body)]
    blocks = [_fence("http", "\n".join(head))]
    if example.reply is not None:
        language = "json" if example.reply_media == "application/json" else "text"
        blocks.append(_fence(language, _text(shortened(example.reply))))
    folded = "\n\n".join(blocks).replace("\n", "\n    ")
    return f'??? example "Example: {example.status}"\n\n    {folded}'


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def _fence(language: str, content: str) -> str:
    return f"```{language}\n{content.rstrip()}\n```"
