"""Bodies of requests from their schemas, in many ways spoilt, and what an error about one may not say."""

import json
import re

from blindopt.errors import sentence
from tests.console_errors import NOT_SAID

CANARY = "canary7f3a9c"
TEXTS = {
    r"^[0-9]{1,6}(\.[0-9]{1,12})?$": "1.5",
    r"^([0-9a-f]{64})+$": "0" * 64,
    r"^[0-9a-f]{0,64}$": "",
    r"^(https?|link)://[!-~]+$": "https://curator.example",
    r"^/[!-~]*$": "/v1/studies",
}


def a_body(schema, whole):
    """A body with every field of a schema, of the first variant where there are several."""
    if "$ref" in schema:
        return a_body(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    for several in ("oneOf", "anyOf", "allOf"):
        if several in schema:
            return a_body(schema[several][0], whole)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    match schema.get("type"):
        case "object":
            return {name: a_body(part, whole) for name, part in schema.get("properties", {}).items()}
        case "array":
            items = schema.get("prefixItems") or [schema["items"]] * max(1, schema.get("minItems", 0))
            return [a_body(item, whole) for item in items]
        case "string":
            pattern = schema.get("pattern", "")
            if match := re.fullmatch(r"\^([a-z]+_)?\[0-9a-f\]\{(\d+)\}\$", pattern):
                return f"{match[1] or ''}{'0' * int(match[2])}"
            return TEXTS.get(pattern, "a" * max(1, schema.get("minLength", 0)))
        case "boolean":
            return True
        case "integer":
            return int(schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1))
        case "number":
            return schema.get("minimum", schema.get("exclusiveMinimum", 0.0) + 0.5)
    return None


def nodes(body, path=()):
    """Every path in a body."""
    yield path
    children = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, child in children:
        yield from nodes(child, (*path, key))


def changed(body, path, act):
    """A copy of a body, of which the part at a path was changed by ``act(holder, key)``."""
    holder = root = [json.loads(json.dumps(body))]
    key = 0
    for name in path:
        holder, key = holder[key], name
    act(holder, key)
    return root[0] if root else None


def put(value):
    def act(holder, key):
        holder[key] = value

    return act


def misspell(holder, key):
    if isinstance(holder, dict):
        holder[f"{key}e"] = holder.pop(key)


def take_out(holder, key):
    del holder[key]


SPOILS = {
    **{repr(v): put(v) for v in (None, 5, -2.5, True, CANARY, "", "2e3", "1,5", 1e300, [], [CANARY], {}, {CANARY: 1})},
    "misspelt": misspell,
    "taken out": take_out,
}


def wrong_words(detail, faults, body):
    """What is wrong with an error: words of a validator, values of the request, paths that nobody wrote."""
    messages = [detail, *(str(fault["message"]) for fault in faults)]
    wrong = [message for message in messages if NOT_SAID.search(message)]
    wrong += [str(fault["message"]) for fault in faults if CANARY in str(fault["message"])]
    wrong += [detail] if detail != sentence(faults[0]) else []
    written = {".".join(map(str, path)) for path in nodes(body)}
    for fault in faults:
        path = fault["field"]
        holder = path.rpartition(".")[0]
        if path not in written and holder not in written and path != "body":
            wrong.append(path)
    return wrong
