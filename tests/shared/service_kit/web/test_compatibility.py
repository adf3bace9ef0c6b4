"""Clients of version 0.2.0 can use both services as they are now: docs/api-policy.md says what that means.

``tests/data/api_0_2_0.json`` holds the OpenAPI documents of that version without its texts, made from its code.
"""

import json
from pathlib import Path

import pytest

from docs.website.rest import documents

RELEASED = Path(__file__).parents[3] / "data" / "api_0_2_0.json"
LARGEST = ("maximum", "maxLength", "maxItems", "maxProperties", "exclusiveMaximum")
SMALLEST = ("minimum", "minLength", "minItems", "minProperties", "exclusiveMinimum")


CHANGED_IN_0_3_0 = {
    "curator": {
        "GET /metrics 400.budget.cap: null is new",
        "GET /metrics 400.budget.limit: null is new",
        "GET /v1/audit/entries: kind: string is gone",  # several kinds may be named; one is written as before
        "GET /v1/advisories is gone",
        "GET /v1/datasets/{dataset_id}/ledger is gone",
        "GET /v1/studies/{study_id}/forecasts 200.forecasts[].spec.rows: Rows is new",
        "GET /v1/studies/{study_id}/forecasts 200.forecasts[].spec.rows: integer is gone",
        "GET /v1/tunings 200.tunings[].report.cap_delta: null is new",
        "GET /v1/tunings 200.tunings[].report.warnings is gone",
        "GET /v1/tunings 200.tunings[].report.warnings: not always there",
        "GET /v1/tunings 200.tunings[].spec.caps.delta: null is new",
        "POST /v1/advisories is gone",
        "POST /v1/studies request.answers: required",
        "POST /v1/studies/{study_id}/forecasts request.rows: integer is gone",
        "POST /v1/studies/{study_id}:release request: null is gone",  # no body is still a body that is left out
        "POST /v1/tunings:preview 200.warnings is gone",
        "POST /v1/tunings:preview 200.warnings: not always there",
        "PUT /v1/studies/{study_id} request.answers: required",
    },
    "modeler": {
        "GET /v1/audit/entries: kind: string is gone",
        "GET /metrics 400.budget.cap: null is new",
        "GET /metrics 400.budget.limit: null is new",
        "GET /v1/runs 200.runs[].fit: auto is new",
        "GET /v1/runs 200.runs[].fitted.noise_variance: null is new",  # of outcomes whose variance no double holds
        "GET /v1/runs 200.runs[].fitted.signal_variance: null is new",
        "GET /v1/runs 200.runs[].initial_design: null is new",
        "GET /v1/runs 200.runs[].initial_rows: null is new",
        "POST /v1/connections:test request.curator_url: pattern ^https?://[!-~]+$ is ^(https?|link)://[!-~]+$",  # wider
        "POST /v1/suggestions is gone",
    },
}
"""What changed before the promise, as the changelog of 0.3.0 says; 0.2.0 was never published. Nothing is added here."""


class Comparison:
    """Compares an old document with a new one, and collects what an old client would not survive."""

    def __init__(self, old, new):
        self.old, self.new, self.faults = old, new, []
        self._seen = set()

    def run(self):
        for path, operations in self.old["paths"].items():
            for method, before in operations.items():
                after = self.new["paths"].get(path, {}).get(method)
                where = f"{method.upper()} {path}"
                if after is None:
                    self.faults.append(f"{where} is gone")
                else:
                    self._operation(where, before, after)
        return sorted(set(self.faults))

    def _operation(self, where, before, after):
        if before["operationId"] != after["operationId"]:
            self.faults.append(f"{where}: operationId")
        had, has = ({(p["in"], p["name"]): p for p in op.get("parameters", ())} for op in (before, after))
        for key, parameter in had.items():
            if key not in has:
                self.faults.append(f"{where}: parameter {key[1]} is gone")
            else:
                self._schema(f"{where}: {key[1]}", parameter["schema"], has[key]["schema"], is_reply=False)
        for key, parameter in has.items():
            if parameter.get("required") and not had.get(key, {}).get("required"):
                self.faults.append(f"{where}: parameter {key[1]} is required")
        self._bodies(f"{where} request", before.get("requestBody"), after.get("requestBody"), is_reply=False)
        for status, reply in before["responses"].items():
            if status not in after["responses"]:
                self.faults.append(f"{where}: reply {status} is gone")
            else:
                self._bodies(f"{where} {status}", reply, after["responses"][status], is_reply=True)

    def _bodies(self, where, before, after, *, is_reply):
        if not is_reply and (after or {}).get("required") and not (before or {}).get("required"):
            self.faults.append(f"{where}: a body is required")
        for media, content in ((before or {}).get("content") or {}).items():
            has = ((after or {}).get("content") or {}).get(media)
            if has is None:
                self.faults.append(f"{where}: {media} is gone")
            elif "schema" in content:
                self._schema(where, content["schema"], has["schema"], is_reply=is_reply)

    def _resolved(self, document, schema):
        while "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return schema

    def _variants(self, document, schema):
        schema = self._resolved(document, schema)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return [v for each in schema[key] for v in self._variants(document, each)]
        if isinstance(schema.get("type"), list):
            return [schema | {"type": each} for each in schema["type"]]
        return [schema]

    def _schema(self, where, before, after, *, is_reply):
        key = (json.dumps(before, sort_keys=True), json.dumps(after, sort_keys=True), is_reply)
        if key in self._seen:
            return
        self._seen.add(key)
        had, has = self._variants(self.old, before), self._variants(self.new, after)
        for variant in had:
            others = [each for each in has if _is_same_kind(variant, each)]
            if not others:
                self.faults.append(f"{where}: {_name(variant)} is gone")
            elif len(others) == 1:
                self._variant(where, variant, others[0], is_reply=is_reply)
        if is_reply:  # a reply that an old client has never seen there
            self.faults += [
                f"{where}: {_name(each)} is new"
                for each in has
                if not any(_is_same_kind(variant, each) for variant in had) and not _tags(each)
            ]

    def _variant(self, where, before, after, *, is_reply):
        if "enum" in before and (missing := set(before["enum"]) - set(after.get("enum", before["enum"]))):
            self.faults.append(f"{where}: {sorted(missing)} are gone")
        if not is_reply:
            self._limits(where, before, after)
        had, has = before.get("properties", {}), after.get("properties", {})
        needed, now_needed = set(before.get("required", ())), set(after.get("required", ()))
        if is_reply:  # what has a default is always sent
            changed = {name for name in needed - now_needed if "default" not in has.get(name, {})}
        else:
            changed = now_needed - needed
        self.faults += [f"{where}.{name}: {'not always there' if is_reply else 'required'}" for name in changed]
        for name, schema in had.items():
            if name not in has:
                self.faults.append(f"{where}.{name} is gone")
            else:
                self._schema(f"{where}.{name}", schema, has[name], is_reply=is_reply)
        for key in ("items", "additionalProperties"):
            if isinstance(before.get(key), dict) and isinstance(after.get(key), dict):
                self._schema(f"{where}[]", before[key], after[key], is_reply=is_reply)

    def _limits(self, where, before, after):
        for keys, is_narrower in ((LARGEST, lambda a, b: b < a), (SMALLEST, lambda a, b: b > a)):
            for key in keys:
                unlimited = float("inf") if keys is LARGEST else float("-inf")
                if is_narrower(before.get(key, unlimited), after.get(key, unlimited)):
                    self.faults.append(f"{where}: {key} {before.get(key)} is {after.get(key)}")
        if "pattern" in after and before.get("pattern") != after["pattern"]:
            self.faults.append(f"{where}: pattern {before.get('pattern')} is {after['pattern']}")


def _tags(schema):
    """The constants of an object by which its variants differ."""
    return {n: p["const"] for n, p in schema.get("properties", {}).items() if "const" in p}


def _is_same_kind(before, after):
    tags, others = _tags(before), _tags(after)
    if before.get("type") != after.get("type") or any(others.get(n, value) != value for n, value in tags.items()):
        return False
    return "const" not in before or before["const"] in (after.get("const"), *after.get("enum", ()))


def _name(schema):
    return str(schema.get("const") or _tags(schema) or schema.get("title") or schema.get("type"))


@pytest.fixture(scope="module")
def present():
    return documents()


@pytest.mark.parametrize("service", ["curator", "modeler"])
def test_a_client_of_0_2_0_can_use_the_service_but_for_what_is_listed(service, present):
    released = json.loads(RELEASED.read_text())[service]
    assert set(Comparison(released, present[service]).run()) == CHANGED_IN_0_3_0[service]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda api: api["paths"].pop("/v1/studies/{study_id}/queries"), "POST /v1/studies/{study_id}/queries is gone"),
        (lambda api: _schema(api, "QueryReply")["properties"].pop("answers"), "201.answers is gone"),
        (lambda api: _schema(api, "QueryRequest")["required"].append("x"), "queries request.x: required"),
        (lambda api: _schema(api, "QueryRequest")["properties"]["rows"].update(maxItems=3), "rows: maxItems 1000 is 3"),
        (lambda api: _schema(api, "StudyView")["properties"]["n"].update(type="string"), "n: N is gone"),
    ],
)
def test_a_change_that_breaks_clients_is_reported(change, fault, present):
    """The controls of the comparison."""
    broken = json.loads(json.dumps(present["curator"]))
    change(broken)
    faults = Comparison(present["curator"], broken).run()
    assert any(fault in each for each in faults), faults
    assert Comparison(present["curator"], present["curator"]).run() == []


def _schema(api, name):
    return api["components"]["schemas"][name]
