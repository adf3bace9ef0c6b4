"""Routes of both services: the roles of each, and the contract in /openapi.json."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from typing import get_args

import pytest

from blindopt import errors
from blindopt.audit.merkle_log import Exchange
from curator_service import app as curator_app
from curator_service.settings import Settings as CuratorSettings
from modeler_service import app as modeler_app
from modeler_service.settings import Settings as ModelerSettings
from service_kit.identity.tokens import Role
from service_kit.web import problems

OPEN = {"/healthz", "/readyz", "/v1/meta", "/openapi.json", "/docs"}
CHANGES_NOTHING = (
    ":report", ":clips", ":read", ":preview", ":check", "/v1/studies:forecast", ":verify", ":open_record",
    ":open_records",
    ":open_group", ":letter",
    "/v1/notices:test", "/v1/connections:test", "/v1/links/{link_id}:pull", "/v1/links/{link_id}:reply",
)  # fmt: skip
"""POSTs that create and spend nothing: no key is needed, and no state is in their way."""
NO_KEY_OR_NO_BODY = ((400, "idempotency_key_missing"), (415, "unsupported_media_type"), (422, "invalid"))
ROLES = {
    "curator": ("owner", "measurer", "auditor", "modeler", "monitor"),
    "modeler": ("vendor", "viewer", "monitor", "link"),
}


@pytest.fixture(scope="module")
def apps(tmp_path_factory):
    """Both applications, built and not served."""
    import tempfile

    folder, tempdir = tmp_path_factory.mktemp("apps"), tempfile.tempdir
    built = {
        "curator": curator_app.build(CuratorSettings(data_dir=folder / "curator")),
        "modeler": modeler_app.build(ModelerSettings(data_dir=folder / "modeler")),
    }
    tempfile.tempdir = tempdir
    yield built
    built["modeler"].state.modeler.close()
    for app in built.values():
        app.state.context.database.close()


@pytest.fixture(params=["curator", "modeler"])
def name(request):
    return request.param


@pytest.fixture
def app(name, apps):
    return apps[name]


def _dependencies(dependant) -> Iterator[object]:
    for inner in dependant.dependencies:
        yield inner.call
        yield from _dependencies(inner)


def _routes(app):
    """Every path with its methods and the roles that its dependencies allow, None where none is asked.

    A hot route has no dependencies: it stands for the documented one that it answers in front of, and the
    requests below show that it asks for the same roles.
    """
    routes = [route for route in _flat(app.routes) if not app.state.console.paths.fullmatch(route.path)]
    documented = {(route.path, *route.methods) for route in routes if hasattr(route, "dependant")}
    for route in routes:
        sets = []
        if hasattr(route, "dependant"):
            sets = [set(call.roles) for call in _dependencies(route.dependant) if hasattr(call, "roles")]
        elif (route.path, *route.methods) in documented:
            continue
        yield route.path, sorted(route.methods - {"HEAD"}), set.intersection(*sets) if sets else None


def _flat(routes):
    for route in routes:
        if hasattr(route, "methods"):
            yield route
        else:  # FastAPI keeps an included router whole; anything else has no place here
            assert hasattr(route, "effective_candidates"), f"a kind of route that this test cannot read: {route!r}"
            yield from _flat(route.effective_candidates())


def test_the_open_routes_answer_a_monitor_that_asks_for_their_head(name, request):
    with request.getfixturevalue(name).http("") as http:
        for path in OPEN:
            reply = http.head(path)
            assert (reply.status_code, reply.content) == (200, b""), path


def test_the_open_routes_are_these_and_no_others(app):
    assert {path for path, _, roles in _routes(app) if roles is None} == OPEN  # an empty set of roles is no role
    assert {methods[0] for path, methods, _ in _routes(app) if path in OPEN} == {"GET"}


# A new route needs a line here: its roles.
OWNER, MODELER, READERS = {"owner"}, {"modeler"}, {"owner", "auditor"}
MEASURERS = {"owner", "measurer"}
VENDOR, VIEWERS, LINK = {"vendor"}, {"vendor", "viewer"}, {"link"}
STUDY, GRANT, RUN = "/v1/studies/{study_id}", "/v1/studies/{study_id}/grants/{grant_id}", "/v1/runs/{run_id}"
ALLOWED = {
    "curator": {
        **{f"{method} /v1/datasets": OWNER for method in ("GET", "POST")},
        "GET /v1/datasets/{dataset_id}": OWNER,
        "GET /v1/links": OWNER,
        **{f"{method} /v1/uploads": OWNER for method in ("GET", "POST")},
        "GET /v1/uploads/{upload_id}": OWNER,
        "POST /v1/uploads/{upload_id}:discard": OWNER,
        "POST /v1/uploads/{upload_id}:read": OWNER,
        **{f"POST /v1/datasets/{{dataset_id}}:{verb}": OWNER for verb in ("archive", "unarchive", "delete", "erase")},
        **{f"POST {STUDY}:{verb}": OWNER for verb in ("archive", "unarchive", "delete")},
        f"PUT {STUDY}/labels": OWNER,
        f"PUT {GRANT}/log_quota": OWNER,
        "POST /v1/datasets/{dataset_id}:report": OWNER,
        "POST /v1/datasets/{dataset_id}:letter": OWNER,
        "POST /v1/datasets/{dataset_id}:clips": OWNER,
        "POST /v1/datasets/{dataset_id}:withhold": OWNER,
        "POST /v1/datasets/{dataset_id}:decide": OWNER,
        "GET /v1/datasets/{dataset_id}/withheld": OWNER,
        "GET /v1/datasets/{dataset_id}/bounds": OWNER,
        "POST /v1/datasets/{dataset_id}:bounds": OWNER,
        "POST /v1/studies/{study_id}:report": OWNER,
        **{f"{method} /v1/studies": OWNER for method in ("GET", "POST")},
        f"PUT {STUDY}": OWNER,
        **{f"POST {STUDY}:{verb}": OWNER for verb in ("preview", "release", "sandbox", "answer_all", "close")},
        **{f"{method} {STUDY}/grants": OWNER for method in ("GET", "POST")},
        **{f"POST {GRANT}{verb}": OWNER for verb in (":revoke", ":rotate", "/tokens/{kid}:revoke")},
        **{f"GET {STUDY}/{account}": READERS for account in ("ledger", "exposure", "accounting")},
        **{f"GET {STUDY}/{account}": READERS for account in ("account", "ledger/curve", "exposure/histogram")},
        "GET /v1/accounts": READERS,
        "GET /v1/jobs": OWNER,
        "POST /v1/studies:check": OWNER,
        "POST /v1/studies:forecast": OWNER,
        "GET /v1/audit/verification": READERS,
        "GET /v1/certificates": READERS,
        "POST /v1/audit:verify": READERS,
        **{f"{method} {STUDY}/forecasts": OWNER for method in ("GET", "POST")},
        f"GET {STUDY}/forecasts/{{forecast_id}}": OWNER,
        f"POST {STUDY}/forecasts/{{forecast_id}}:cancel": OWNER,
        **{f"{method} /v1/tunings": OWNER for method in ("GET", "POST")},
        "GET /v1/tunings/{tuning_id}": OWNER,
        **{f"POST /v1/tunings{verb}": OWNER for verb in (":preview", "/{tuning_id}:cancel")},
        "GET /v1/datasets/{dataset_id}/account": READERS,
        "GET /v1/datasets/{dataset_id}/picture": OWNER,
        "PUT /v1/datasets/{dataset_id}/account/caps": OWNER,
        f"GET {STUDY}": OWNER | MODELER,
        f"GET {STUDY}/candidates": MODELER,
        f"GET {STUDY}/candidates/parts/{{part}}": MODELER,
        f"POST {STUDY}/queries": MODELER,
        f"GET {STUDY}/queries/{{query_id}}": MODELER,
        f"GET {STUDY}/revisions": MODELER,
        f"GET {STUDY}/answers": OWNER | MODELER,
        f"POST {STUDY}/messages": MODELER,
        f"GET {STUDY}/messages/{{message_id}}": MODELER,
        "GET /v1/messages": OWNER,
        "GET /v1/messages/{message_id}": OWNER,
        "POST /v1/messages/{message_id}:decide": OWNER,
        f"PUT {STUDY}/budget": OWNER,
        f"POST {STUDY}:open_group": OWNER,
        f"POST {STUDY}:open_record": OWNER,
        "POST /v1/messages/{message_id}:open_records": OWNER,
        f"GET {STUDY}/groups": OWNER,
        f"GET {STUDY}/results": OWNER,
        **{
            f"GET /v1/inbox{what}": MEASURERS
            for what in ("", ".csv", "/events", "/system", "/measurements/{measurement_id}")
        },
        **{f"POST /v1/queries/{{query_id}}:{verb}": MEASURERS for verb in ("answer", "decline", "correct")},
        "POST /v1/queries/{query_id}:release_mean": OWNER,
        "POST /v1/inbox:import": MEASURERS,
        "POST /v1/inbox/system:try_again": MEASURERS,
        "POST /v1/inbox/measurements/{measurement_id}:try_again": MEASURERS,
        **{f"GET /v1/audit/{what}": READERS | MODELER for what in ("entries", "checkpoint", "consistency")},
        "POST /v1/audit/countersignatures": MODELER,
        "GET /v1/notices": READERS,
        "POST /v1/notices:test": OWNER,
    },
    "modeler": {
        "POST /v1/runs": VENDOR,
        "POST /v1/connections:test": VENDOR,
        "GET /v1/links": VIEWERS,
        "POST /v1/links/{link_id}:pull": LINK,
        "POST /v1/links/{link_id}:reply": LINK,
        **{f"GET {path}": VIEWERS for path in ("/v1/runs", RUN, f"{RUN}/trials", f"{RUN}/export")},
        **{
            f"GET {RUN}/{part}": VIEWERS for part in ("recommendation", "posterior", "events", "map", "curve", "slices")
        },
        f"POST {RUN}/observations": VENDOR,
        f"POST {RUN}/messages": VENDOR,
        f"GET {RUN}/messages": VIEWERS,
        f"POST {RUN}/messages/{{number}}:update": VENDOR,
        **{f"POST {RUN}:{verb}": VENDOR for verb in ("stop", "pause", "resume", "replace_token")},
        **{f"POST {RUN}:{verb}": VENDOR for verb in ("archive", "unarchive", "delete")},
        f"PUT {RUN}/labels": VENDOR,
        **{f"{method} /v1/notices{what}": VENDOR for method, what in (("GET", ""), ("POST", ":test"))},
        "GET /v1/audit/verification": VIEWERS,
        "GET /v1/certificates": VIEWERS,
        "POST /v1/audit:verify": VIEWERS,
        **{f"GET /v1/audit/{what}": VIEWERS for what in ("entries", "checkpoint", "consistency")},
    },
}


def test_who_may_call_what_is_this_table(app, name):
    allowed = {f"{method} {path}": roles for path, methods, roles in _routes(app) if roles for method in methods}
    assert allowed == ALLOWED[name]
    assert set().union(*allowed.values()) <= set(ROLES[name]) <= set(get_args(Role))


@pytest.fixture
def tokens(name, request, tmp_path_factory):
    """A token of each role at the running service, issued beside it."""
    service = request.getfixturevalue(name)
    module, settings = {"curator": (curator_app, CuratorSettings), "modeler": (modeler_app, ModelerSettings)}[name]
    context = module.open_context(settings(data_dir=service.data))
    made = {}
    for role in ROLES[name]:
        if role == "modeler":
            made[role] = request.getfixturevalue("opened").token
        else:
            made[role] = context.authentication.issue(role, "roles", days=1)[0].text
    context.database.close()
    return made


def test_each_role_gets_403_where_it_is_not_allowed_and_only_there(app, name, tokens, request):
    """Over HTTP on the real process, for every route, method and role.

    What is not there is 404, and what would change something asks for a key or a body. So no test of a route asks
    again who may call it.
    """
    service = request.getfixturevalue(name)
    study = request.getfixturevalue("opened").id if name == "curator" else "std_0000000000000000"
    requests = 0
    with ExitStack() as stack:
        clients = {role: stack.enter_context(service.http(token)) for role, token in tokens.items()}
        for (role, http), (path, methods, roles) in product(clients.items(), list(_routes(app))):
            if roles is None:
                continue
            target = re.sub(r"{(\w+)_id}", "none_0000000000000000", path.replace("{study_id}", study))
            for method in methods:
                # No Idempotency-Key: what is allowed gets past the role and no further.
                reply = http.request(method, target, params={"seconds": 0} if target == "/v1/inbox/events" else {})
                requests += 1
                if role in roles and method == "GET":
                    assert reply.status_code not in (401, 403), (method, target, role)
                    assert (reply.status_code == 404) == ("none_" in target), (method, target, role)
                    # To a vendor it would be a record of a reply that was not sent.
                    head = http.head(target, params={"seconds": 0} if target == "/v1/inbox/events" else {})
                    assert head.status_code == (405 if role == "modeler" else reply.status_code), target
                    assert head.content == b""
                    if study in target:
                        assert http.get(target.replace(study, "std_0000000000000000")).status_code == 404, target
                elif role in roles and not path.endswith(CHANGES_NOTHING):
                    assert (reply.status_code, reply.json()["code"]) in NO_KEY_OR_NO_BODY, (method, target, role)
                elif role in roles:
                    assert reply.status_code not in (401, 403), (method, target, role)
                else:
                    assert (reply.status_code, reply.json()["code"]) == (403, "forbidden"), (method, target, role)
    assert requests > 15


def test_without_a_token_every_route_but_the_open_ones_is_401(app, name, request):
    with request.getfixturevalue(name).http("") as http:
        for path, methods, roles in _routes(app):
            reply = http.request(methods[0], path)
            assert (reply.status_code == 401) == (roles is not None), path
            if roles is None:
                assert reply.status_code == 200


# --- the contract --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def documents(curator, modeler):
    contracts = {}
    for service in (curator, modeler):
        with service.http("") as http:
            contracts[service.name] = http.get("/openapi.json").json()
    return contracts


@pytest.fixture
def document(name, documents):
    return documents[name]


def _operations(document):
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield f"{method} {path}", path, method, operation


def _walk(value):
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _walk(inner)


def test_the_contract_tells_every_route(document, app):
    documented = {(path, method.upper()) for _, path, method, _ in _operations(document)}
    served = {(path, method) for path, methods, _ in _routes(app) for method in methods}
    assert documented == served - {("/openapi.json", "GET"), ("/docs", "GET")}


def test_every_operation_says_what_it_does_under_a_name_of_its_own(document):
    names = []
    for where, _, _, operation in _operations(document):
        assert operation["summary"], where
        assert operation["description"].endswith("."), where
        names.append(operation["operationId"])
    assert len(names) == len(set(names))


def test_every_operation_documents_its_errors_as_problems(document):
    for where, path, method, operation in _operations(document):
        if path in OPEN:
            continue
        replies = operation["responses"]
        assert replies.keys() >= {"400", "401", "403", "404", "405", "413", "422", "500", "503"}, where
        if method == "post" and not path.endswith(CHANGES_NOTHING):
            assert "409" in replies, where
        for status, reply in replies.items():
            assert reply["description"], where
            if int(status) >= 400:
                schema = {"schema": {"$ref": "#/components/schemas/Problem"}}
                assert reply["content"] == {"application/problem+json": schema}, (where, status)


# A dry run creates nothing (200), and a query that must be measured first is pending (202).
TWO_WAYS = ("{study_id}:release", "/observations", "/v1/inbox:import", "/queries", "/queries/{query_id}", "/revisions")


def test_successful_replies_have_a_schema(document):
    for where, _, _, operation in _operations(document):
        good = [reply for status, reply in operation["responses"].items() if status in ("200", "201", "202")]
        assert len(good) == (2 if where.endswith(TWO_WAYS) else 1), where
        for reply in good:
            for content in reply["content"].values():
                assert content["schema"], where


def test_operations_ask_for_a_token_where_the_service_does(document):
    assert document["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    for where, path, _, operation in _operations(document):
        assert operation["security"] == ([] if path in OPEN else [{"token": []}]), where


def test_every_operation_that_needs_an_idempotency_key_says_so(document):
    """A client that is written from the contract alone must know the header."""
    for where, path, method, operation in _operations(document):
        if method != "post" or path.endswith(CHANGES_NOTHING):
            continue
        headers = {p["name"].lower(): p for p in operation.get("parameters", []) if p["in"] == "header"}
        assert "idempotency-key" in headers, where
        assert headers["idempotency-key"]["required"], where


def test_no_reference_dangles_and_no_schema_is_left_over(document):
    used = {value["$ref"] for value in _walk(document) if isinstance(value, dict) and "$ref" in value}
    used = {ref if isinstance(ref, str) else "" for ref in used}
    for ref in used:
        target = document
        for part in ref.removeprefix("#/").split("/"):
            target = target[part]
    defined = {f"#/components/schemas/{schema}" for schema in document["components"]["schemas"]}
    assert used <= defined
    assert "#/components/schemas/HTTPValidationError" not in defined | used


def test_the_contract_names_no_outside_address_and_no_secret(document):
    text = json.dumps(document)
    assert re.findall(r"https?://[a-z0-9.-]+", text) == []
    assert not re.search(r"blindopt_[0-9a-f]{16}", text)


def test_examples_in_the_contract_fit_their_patterns(document):
    for value in _walk(document):
        if isinstance(value, dict) and "pattern" in value and isinstance(value.get("examples"), list):
            for example in value["examples"]:
                assert re.search(value["pattern"], example)


def test_there_is_one_page_of_documentation_which_links_the_contract(name, request):
    """FastAPI's own would load scripts from elsewhere."""
    with request.getfixturevalue(name).http("") as http:
        page = http.get("/docs")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert '<a href="/openapi.json">' in page.text
        assert "<script" not in page.text
    with request.getfixturevalue(name).http() as http:
        for path in ("/redoc", "/docs/oauth2-redirect", "/openapi.yaml"):
            reply = http.get(path)
            assert (reply.status_code, reply.json()["code"]) == (404, "not_found")


def test_every_reply_carries_the_headers_that_keep_it_from_caches_and_frames(name, request):
    with request.getfixturevalue(name).http() as http:
        for path in ("/healthz", "/v1/meta", "/v1/nothing", "/openapi.json"):
            headers = http.get(path).headers
            assert headers["cache-control"] == "no-store"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
            assert re.fullmatch(r"[0-9a-f]{32}", headers["x-request-id"])
            assert "server" not in headers
        assert http.get("/healthz", headers={"X-Request-ID": "0123-abcd"}).headers["x-request-id"] == "0123-abcd"


def test_every_field_and_every_parameter_of_the_contract_is_described(document):
    fields = {
        f"{name}.{field}": described
        for name, schema in document["components"]["schemas"].items()
        for field, described in schema.get("properties", {}).items()
    }
    parameters = {
        f"{where} {parameter['name']}": parameter
        for where, _, _, operation in _operations(document)
        for parameter in operation.get("parameters", [])
    }
    assert len(fields) > len(parameters) > 20
    assert [name for name, described in (fields | parameters).items() if not described.get("description")] == []


def test_the_status_of_every_error_is_documented():
    entries = {kind: problems.documented(kind.status)[kind.status] for kind in errors.TABLE}
    assert [kind for kind, entry in entries.items() if not entry["description"]] == []
    assert [kind for kind, entry in entries.items() if list(entry["content"]) != ["application/problem+json"]] == []


def test_every_page_of_the_console_names_its_roles_but_those_that_anybody_may_see(app, name):
    pages = [route for route in _flat(app.routes) if app.state.console.paths.fullmatch(route.path)]
    by_role = [route for route in pages if route.endpoint.roles is not None]
    assert len(by_role) == len(app.state.console.entries) > 0
    for route in by_role:
        assert route.endpoint.roles
        assert set(route.endpoint.roles) <= set(ROLES[name]) - {"modeler"}
    open_to_all = {(route.path, *sorted(route.methods - {"HEAD"})) for route in pages if route not in by_role}
    reads = "/", "/console", "/console/static/{path:path}", "/console/login", "/console/{rest:path}"
    posts = "/console/login", "/console/logout", "/console/density"
    assert open_to_all == {(path, "GET") for path in reads} | {(path, "POST") for path in posts}
    assert not any(path.startswith("/console") for path in app.openapi()["paths"])


def test_every_reply_names_its_headers(document, name):
    exchanged = set()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            keyed = any(parameter["name"] == "idempotency-key" for parameter in operation.get("parameters", []))
            for status, reply in operation["responses"].items():
                assert "X-Request-ID" in reply["headers"]
                assert ("Retry-After" in reply["headers"]) == (status in {"409", "429", "502", "503"})
                assert ("Idempotency-Replayed" in reply["headers"]) == (keyed and status.startswith("2"))
                exchanged |= {path} if "Blindopt-Receipt" in reply["headers"] else set()
    of_study = (
        "", "/candidates", "/candidates/parts/{part}", "/queries", "/queries/{query_id}", "/revisions", "/answers",
        "/messages", "/messages/{message_id}",
    )  # fmt: skip
    with_receipts = {"/v1/studies/{study_id}" + path for path in of_study} if name == "curator" else set()
    assert {path for path in exchanged if not path.startswith("/v1/audit")} == with_receipts
    if name == "curator":
        replies = document["paths"]["/v1/studies/{study_id}/candidates"]["get"]["responses"]
        assert {"ETag", "Accept-Ranges", "Content-Range"} <= set(replies["206"]["headers"])
        assert document["components"]["schemas"]["SharedLogRecord"]["properties"].keys() == set(Exchange.__slots__)


def test_generators_can_use_the_contract(document):
    """Unions of objects name what tells them apart, no default is an object, and no header is a list."""
    schemas = document["components"]["schemas"]
    fields = [field for schema in schemas.values() for field in schema.get("properties", {}).values()]
    assert not any(isinstance(field.get("default"), dict) for field in fields)
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    replies = [reply for operation in operations for reply in operation["responses"].values()]
    contents = [content.get("schema", {}) for reply in replies for content in reply.get("content", {}).values()]
    for union in fields + contents:
        options = union.get("oneOf") or union.get("anyOf") or []
        if len([option for option in options if "$ref" in option]) > 1:
            assert set(union["discriminator"]["mapping"].values()) == {option["$ref"] for option in options}
    for body in (operation["requestBody"] for operation in operations if "requestBody" in operation):
        assert all("anyOf" not in content["schema"] for content in body["content"].values())
    parameters = [each for operation in operations for each in operation.get("parameters", [])]
    headers = [each["schema"] for each in parameters if each["in"] == "header"]
    assert {kind.get("type") for schema in headers for kind in schema.get("anyOf", [schema])} <= {"string", "null"}
