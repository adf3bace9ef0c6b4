"""Every bad request has its documented answer, changes nothing, and leaves the service as it was."""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from blindopt import wire
from curator_service.context import open_context
from curator_service.settings import Settings
from tests.builders import a_study, registered_apart

NOBODY = "blindopt_0123456789abcdef." + "A" * 43
QUERY = {"rows": [{"row": 0, "plays": 1}]}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def every_state(curator, owner, small, dataset, open_study, opened):
    """A curator with a study in every state, and a token of every kind."""
    private = registered_apart(owner, "private", small.csv)
    archived = registered_apart(owner, "archived", small.csv)
    with curator.http() as http:
        http.post(f"/v1/datasets/{archived.id}:archive", headers={"Idempotency-Key": "archive"}).raise_for_status()
    draft = owner.create_study(opened.view.spec)
    closed, revoked = open_study(owner, dataset), open_study(owner, dataset)
    owner.close_study(closed.id)
    owner.revoke(revoked.id, revoked.grant_id)
    lines = ["p,q,r", *(f"{i},{2 * i},{i * i}" for i in range(50))]
    dependent = owner.register("dependent", "\n".join(lines).encode(), public=True)
    # The clock of this context is in the past, so that its token has expired by now.
    context = open_context(Settings(data_dir=curator.data), clock=lambda: datetime.now(UTC) - timedelta(days=3))
    expired, _ = context.authentication.issue("owner", "expired", days=2)
    auditor, _ = context.authentication.issue("auditor", "auditor", days=30)
    context.database.close()
    own = curator.rows("SELECT principal FROM tokens WHERE role = 'owner'")[0][0]
    return SimpleNamespace(
        curator=curator, public=dataset.id, private=private.id, archived=archived.id, dependent=dependent.id,
        draft=draft.id, draft_token=owner.grant(draft.id, wire.GrantCreate(name="early")).token,
        closed=closed, open=opened, revoked=revoked, expired=expired.text, auditor=auditor.text, own=own,
        spec=opened.view.spec.model_dump(mode="json"),
    )  # fmt: skip


TABLES = (
    "datasets", "studies", "releases", "queries", "replies", "tokens", "ledger", "keys", "countersignatures",
)  # fmt: skip


def _database_state(curator):
    """Everything that a refused request may not change."""
    (numbers,) = curator.rows(f"SELECT {', '.join(f'(SELECT count(*) FROM {table})' for table in TABLES)}")
    counts = dict(zip(TABLES, numbers, strict=True))
    states = curator.rows("SELECT id, state, releasing_key FROM studies ORDER BY id")
    files = sorted(str(path.relative_to(curator.data)) for path in (curator.data / "files").rglob("*"))
    return counts, states, files


def check_problem(reply, code):
    """A problem document of the documented form, as its headers say."""
    status = STATUS[code]
    assert (reply.status_code, reply.headers["content-type"]) == (status, "application/problem+json"), reply.text
    problem = wire.Problem.model_validate_json(reply.content)
    assert reply.json().keys() <= wire.Problem.model_fields.keys()
    assert (problem.status, problem.code) == (status, code), reply.text
    assert problem.type == f"urn:blindopt:problem:{code}"
    assert problem.instance == reply.request.url.path
    assert problem.request_id == reply.headers["x-request-id"]
    assert problem.title
    assert problem.detail
    assert ("retry-after" in reply.headers) == problem.retryable
    assert ("www-authenticate" in reply.headers) == (status == 401)
    assert ("allow" in reply.headers) == (status == 405)
    assert reply.headers["cache-control"] == "no-store"
    return problem


STATUS = {
    "bad_request": 400, "idempotency_key_missing": 400, "unauthenticated": 401, "forbidden": 403, "study_not_open": 403,
    "not_found": 404, "unknown_row": 404, "method_not_allowed": 405, "state_conflict": 409, "too_large": 413,
    "unsupported_media_type": 415,
    "invalid": 422, "dataset_invalid": 422, "release_impossible": 422,
}  # fmt: skip


class Case:
    """One bad request: what is sent, by whom, and what must come back."""

    def __init__(self, name, code, request, *, who="owner", key=True, **sent):
        self.name, self.code, self.status = name, code, STATUS[code]
        self.method, _, self.path = request.partition(" ")
        self.who, self.key, self.sent = who, key, sent
        # A refusal of a modeler is a record; an owner's leaves nothing.
        self.records = int(who in ("modeler", "early", "closed", "revoked"))

    def __repr__(self):
        return self.name

    def send(self, every_state):
        tokens = {
            "owner": None, "modeler": every_state.open.token, "early": every_state.draft_token,
            "closed": every_state.closed.token, "revoked": every_state.revoked.token, "expired": every_state.expired,
            "auditor": every_state.auditor, "nobody": NOBODY, "none": "",
        }  # fmt: skip
        sent = {k: v(every_state) if callable(v) else v for k, v in self.sent.items()}
        headers = sent.pop("headers", {})
        if self.key:
            headers = {"Idempotency-Key": f"refused {self.name}"[:200]} | headers
        path = self.path.format(
            open=every_state.open.id, draft=every_state.draft, closed=every_state.closed.id,
            revoked=every_state.revoked.id, public=every_state.public, grant=every_state.open.grant_id,
            kid=every_state.open.kid, other=every_state.closed.grant_id, own=every_state.own,
        )  # fmt: skip
        with every_state.curator.http(tokens[self.who]) as client:
            return client.request(self.method, path, headers=headers, **sent)


def study(**changes):
    """The body of a study that would be made, with changes; ``a__b`` reaches inside."""

    def body(every_state):
        spec = json.loads(json.dumps(every_state.spec))
        for name, value in changes.items():
            *inner, last = name.split("__")
            position = spec
            for part in inner:
                position = position[int(part) if part.isdecimal() else part]
            position[last] = value(every_state) if callable(value) else value
        return spec

    return body


def as_text(field, text):
    """The body of a study where this field is JSON that no Python value becomes."""
    return lambda every_state: json.dumps(study(**{field: "@"})(every_state)).replace('"@"', text).encode()


def _archived(every_state):
    return every_state.archived


def row(text):
    """A query whose only item is this JSON text."""
    return {"content": f'{{"rows": [{text}]}}'.encode(), "headers": JSON}


def file(content, filename="data.csv", **said):
    return {"files": {"file": (filename, content)}, "data": {"name": "refused", **said}}


def gaussian(**changes):
    return {"mechanism": "gaussian", "epsilon": "1", "delta": 1e-5} | changes


def po_gp_ucb(**changes):
    release = {"mechanism": "po_gp_ucb", "epsilon": "1", "delta": 1e-5, "r": 2, "acknowledge_refuted": True}
    return {k: v for k, v in (release | changes).items() if v is not None}


PRIVATE = gaussian()
OPEN, ASK = "/v1/studies/{open}", "POST /v1/studies/{open}/queries"

WHO = [
    Case("no token", "unauthenticated", "GET /v1/studies", who="none"),
    Case("unknown token", "unauthenticated", "GET /v1/studies", who="nobody"),
    Case("expired token", "unauthenticated", "GET /v1/studies", who="expired"),
    Case("revoked grant", "unauthenticated", "GET /v1/studies/{revoked}", who="revoked"),
    Case("revoked grant asks", "unauthenticated", "POST /v1/studies/{revoked}/queries", who="revoked", json=QUERY),
    *(
        Case(f"header {text[:20]!r}", "unauthenticated", "GET /v1/studies", who="none", headers={"Authorization": text})
        for text in (
            "", "Bearer", "Basic b3duZXI6", NOBODY, f"Bearer  {NOBODY}", f"Bearer {NOBODY} x", "Bearer blindopt_.",
            f"Bearer {NOBODY[:-1]}", f"Bearer {NOBODY}A", f"Bearer {'A' * 5000}",
        )
    ),
    Case("header not ascii", "unauthenticated", "GET /v1/studies", who="none", headers={"Authorization": b"\xff"}),
    Case(
        "right key id, wrong secret", "unauthenticated", "GET /v1/studies", who="none",
        headers=lambda every_state: {"Authorization": f"Bearer {every_state.open.token[:26]}{'B' * 43}"},
    ),
    Case("wrong token on an unknown path", "unauthenticated", "GET /v1/nothing", who="nobody"),
    Case("owner asks", "forbidden", ASK, json=QUERY),
    Case("modeler lists studies", "forbidden", "GET /v1/studies", who="modeler"),
    Case("auditor asks", "forbidden", ASK, who="auditor", json=QUERY),
]  # fmt: skip

FINER = "0.0000000000001"
"""Than any amount that is counted."""
CAPS = {"budget": {"epsilon_per_row": "811"}, "reason": "more"}
FORECAST = {"epsilons": ["1"], "mechanisms": ["planar_laplace"]}
WHERE = [
    Case("unknown study", "not_found", "GET /v1/studies/std_0000000000000000"),
    Case("id of another form", "not_found", "GET /v1/studies/x"),
    Case("study on an unknown dataset", "not_found", "POST /v1/studies", json=study(dataset_id="ds_0000000000000000")),
    Case("grant on an unknown study", "not_found", "POST /v1/studies/std_0000000000000000/grants", json={"name": "m"}),
    Case("forecast of an unknown study", "not_found", "POST /v1/studies/std_0000000000000000/forecasts", json=FORECAST),
    Case("an unknown forecast is cancelled", "not_found", f"POST {OPEN}/forecasts/fct_0000000000000000:cancel"),
    Case("release of an unknown study", "not_found", "POST /v1/studies/std_0000000000000000:release"),
    Case("caps of an unknown study", "not_found", "PUT /v1/studies/std_0000000000000000/budget", json=CAPS),
    *(
        Case(f"{what} {which}", "not_found", f"POST /v1/studies/{study}/grants/{grant}{action}", **sent)
        for what, action, sent in (
            ("revoke", ":revoke", {}),
            ("rotate", ":rotate", {"json": {}}),
            ("revoke a token of", "/tokens/{kid}:revoke", {}),
        )
        for which, study, grant in (
            ("an unknown grant", "{open}", "grt_0123456789abcdef"),
            ("a grant by its key id", "{open}", "{kid}"),
            ("the grant of another study", "{draft}", "{grant}"),
            ("a principal that is no grant", "{open}", "{own}"),
        )
    ),
    Case("revoke an unknown token", "not_found", f"POST {OPEN}/grants/{{grant}}/tokens/0123456789abcdef:revoke"),
    Case(
        "revoke the token of another grant", "not_found",
        "POST /v1/studies/{closed}/grants/{other}/tokens/{kid}:revoke",
    ),
    Case("unknown path", "not_found", "GET /v1/nothing"),
    Case("a slash too much", "not_found", "GET /v1/studies/"),
    Case("unknown method", "method_not_allowed", f"DELETE {OPEN}"),
    Case("unknown method on a collection", "method_not_allowed", "PUT /v1/datasets"),
    Case("modeler: other study", "not_found", "GET /v1/studies/{closed}", who="modeler"),
    Case("modeler: unknown study", "not_found", "GET /v1/studies/std_0000000000000000", who="modeler"),
    Case("modeler: candidates of another study", "not_found", "GET /v1/studies/{closed}/candidates", who="modeler"),
    Case("modeler: asks another study", "not_found", "POST /v1/studies/{closed}/queries", who="modeler", json=QUERY),
    Case("modeler: log of another grant", "not_found", "GET /v1/audit/entries?grant_id={other}", who="modeler"),
    Case("modeler: unknown query", "not_found", f"GET {OPEN}/queries/qry_0000000000000000", who="modeler"),
    Case("modeler: a row past the last", "unknown_row", ASK, who="modeler", json={"rows": [{"row": 400}]}),
    Case("modeler: a row far past it", "unknown_row", ASK, who="modeler", json={"rows": [{"row": 0}, {"row": 2**50}]}),
]  # fmt: skip

WHAT = [
    # What the wire refuses is tested there, field by field; here a few of each kind, at the door.
    *(
        Case(f"query item {text[:40]}", "invalid", ASK, who="modeler", **row(text))
        for text in (
            *(f'{{"row": {n}}}' for n in ("-1", "NaN", "1e400", "1" + "0" * 400)),
            *(f'{{"row": 1, "plays": {n}}}' for n in ("0", "101", "null")),
            *('{"row": 1, "more": 2}', "[]"),
        )
    ),
    Case("no rows", "invalid", ASK, who="modeler", json={"rows": []}),
    Case("too many rows", "invalid", ASK, who="modeler", json={"rows": [{"row": 0}] * 101}),
    Case("far too many rows", "invalid", ASK, who="modeler", json={"rows": [{"row": 0}] * 1001}),
    Case("unknown field", "invalid", ASK, who="modeler", json=QUERY | {"x": 1}),
    Case("empty body", "invalid", ASK, who="modeler"),
    Case("a list as body", "invalid", ASK, who="modeler", json=[]),
    Case("broken JSON", "invalid", ASK, who="modeler", **row('{"row": 1')),
    *(
        Case(f"{name}, {who}", "invalid", request, who=who, content=content, headers=JSON)
        for who, request in (("modeler", ASK), ("owner", "POST /v1/studies"))
        for name, content in {
            "not UTF-8": b'{"rows": "\xff\xfe"}',
            "a number of 5000 digits": b'{"rows": [{"row": ' + b"1" * 5000 + b"}]}",
            "nested without end": b"[" * 50_000,
        }.items()
    ),
    Case("half a surrogate", "invalid", "POST /v1/studies", headers=JSON, content=as_text("name", '"\\ud800"')),
    Case("no content type", "unsupported_media_type", ASK, who="modeler", content=json.dumps(QUERY).encode()),
    Case("owner: broken JSON", "invalid", "POST /v1/studies", content=b'{"name": ', headers=JSON),
    Case("owner: empty body", "invalid", "POST /v1/studies"),
    *(
        Case(f"study: {name}", "invalid", "POST /v1/studies", json=study(**changes))
        for name, changes in {
            "unknown field inside": {"measurement__x": 1},
            "a name with a line break": {"name": "a\nb"},
            "identity on private data": {"dataset_id": lambda every_state: every_state.private},
            "unknown mechanism": {"release": {"mechanism": "magic"}},
            "private answers without a bound": {"answers": {"mechanism": "laplace", "epsilon": "1"}},
            "a total finer than what is counted": {"budget": {"epsilon_total": FINER}},
            "a cap on answers without noise": {"budget": {"epsilon_per_row": "9"}},
            "a cap on a refuted release": {"budget": {"epsilon_total": "9"}, "release": po_gp_ucb()},
            "unknown feature": {"features__0__column": "nothing"},
            "unknown measurement": {"measurement__column": "nothing"},
            "feature twice": {"features": lambda every_state: [every_state.spec["features"][0]] * 2},
            "feature as measurement": {"measurement__column": "zq_left"},
            "bounds equal": {"features__0__lower": 1.0, "features__0__upper": 1.0},
            "a bound of 400 digits": {"features__0__upper": 10**400},
            "no acknowledgement": {"release": po_gp_ucb(acknowledge_refuted=None)},
            "an epsilon of 0": {"release": gaussian(epsilon="0")},
            "a delta as text": {"release": gaussian(delta="1e-5")},
        }.items()
    ),
    *(
        Case(
            f"study: {field} is {number}", "invalid", "POST /v1/studies", headers=JSON,
            content=as_text(field, number),
        )
        for field in ("features__0__lower", "kernel__mean")
        for number in ("NaN", "1e400")
    ),
    Case("grant without end", "invalid", f"POST {OPEN}/grants", json={"name": "m", "expires_in_days": 0}),
    Case("grant for ever", "invalid", f"POST {OPEN}/grants", json={"name": "m", "expires_in_days": 3661}),
    Case("token for ever", "invalid", f"POST {OPEN}/grants/{{grant}}:rotate", json={"expires_in_days": 3661}),
    Case(
        "a countersignature that is none", "invalid", "POST /v1/audit/countersignatures", who="modeler",
        json={"note": "n", "key": "k"},
    ),
    Case("a log of no grant", "invalid", "GET /v1/audit/entries?grant_id=x"),
    *(
        Case(f"consistency from {first} to {second}", "invalid", "GET /v1/audit/consistency",
             params={"first": first, "second": second})
        for first, second in ((0, 1), (2, 1), (1, 2**40), ("x", 1))
    ),
    *(
        Case(f"page: {k}={v}", "invalid", "GET /v1/studies", params={k: v})
        for k, values in {"page_size": ("0", "1001", "x"), "page_token": ("x", "-1", "9" * 16)}.items()
        for v in values
    ),
]  # fmt: skip

LARGE = b"x" * ((1 << 20) + 1)


def _chunks(every_state):
    for _ in range(33):
        yield b"x" * (1 << 15)


SIZE = [
    Case("owner announces too much", "too_large", "POST /v1/studies", content=LARGE),
    Case("modeler announces too much", "too_large", ASK, who="modeler", content=LARGE),
    Case("modeler sends 64 KiB and a byte", "too_large", ASK, who="modeler", content=b" " * ((64 << 10) + 1)),
    Case("modeler sends 64 KiB", "invalid", ASK, who="modeler", content=b" " * (64 << 10), headers=JSON),
    Case("owner sends 80,000 unknown keys", "invalid", "POST /v1/studies", json={f"{i:05}": 1 for i in range(80_000)}),
    Case("owner sends too much in chunks", "too_large", "POST /v1/studies", content=_chunks, headers=JSON),
    Case("modeler sends too much in chunks", "too_large", ASK, who="modeler", content=_chunks, headers=JSON),
    Case("too much for a route without a body", "too_large", "POST /v1/studies/{draft}:release", content=_chunks),
    Case("modeler uploads much", "too_large", "POST /v1/datasets", who="modeler", **file(LARGE)),
]  # fmt: skip

FORM = {"Content-Type": "multipart/form-data"}
BOUND = {"Content-Type": "multipart/form-data; boundary=x"}

FILES = [
    Case("file: nothing", "dataset_invalid", "POST /v1/datasets", **file(b"")),
    Case("file: a missing value", "dataset_invalid", "POST /v1/datasets", **file(b"a,b\n1,\n")),
    Case("file: 100,000 columns", "dataset_invalid", "POST /v1/datasets", **file(b"c," * 100_000 + b"\n")),
    Case("file: Parquet that is none", "dataset_invalid", "POST /v1/datasets", **file(b"PAR1 x PAR1", "x.parquet")),
    Case("file: CSV called Parquet", "dataset_invalid", "POST /v1/datasets", **file(b"a,b\n1,2\n", "x.PARQUET")),
    Case("file: a column it has not", "dataset_invalid", "POST /v1/datasets", **file(b"a,b\n1,2\n", columns='["c"]')),
    Case("file: a column twice", "dataset_invalid", "POST /v1/datasets", **file(b"a,b\n1,2\n", columns='["a","a"]')),
    Case("file: no columns", "dataset_invalid", "POST /v1/datasets", **file(b"a,b\n1,2\n", columns="[]")),
    Case("file: columns that are no list", "invalid", "POST /v1/datasets", **file(b"a,b\n1,2\n", columns="a,b")),
    Case("file: public is maybe", "invalid", "POST /v1/datasets", **file(b"a,b\n1,2\n", public="maybe")),
    Case("file: no name", "invalid", "POST /v1/datasets", **file(b"a,b\n1,2\n", name="")),
    Case("file: a long name", "invalid", "POST /v1/datasets", **file(b"a,b\n1,2\n", name="n" * 201)),
    Case("no file", "invalid", "POST /v1/datasets", data={"name": "n"}),
    Case("file and import", "invalid", "POST /v1/datasets", **file(b"a,b\n1,2\n", import_name="x.csv")),
    *(
        Case(f"import of {name}", "not_found", "POST /v1/datasets", data={"name": "n", "import_name": name})
        for name in ("x.csv", "../curator.sqlite", "/etc/passwd", "..", "secrets/seal.key")
    ),
    Case("JSON instead of a form", "unsupported_media_type", "POST /v1/datasets", json={"name": "n"}),
    Case("a form without its boundary", "bad_request", "POST /v1/datasets", content=b"--x\r\n", headers=FORM),
    Case("a broken form", "bad_request", "POST /v1/datasets", content=b"x", headers=BOUND),
]  # fmt: skip

STATE = [
    Case("asks before the release", "study_not_open", "POST /v1/studies/{draft}/queries", who="early", json=QUERY),
    Case("looks before the release", "study_not_open", "GET /v1/studies/{draft}", who="early"),
    Case("fetches before the release", "study_not_open", "GET /v1/studies/{draft}/candidates", who="early"),
    Case("asks a closed study", "study_not_open", "POST /v1/studies/{closed}/queries", who="closed", json=QUERY),
    Case("releases an open study again", "state_conflict", f"POST {OPEN}:release"),
    Case("releases a closed study", "state_conflict", "POST /v1/studies/{closed}:release"),
    Case("closes a draft", "state_conflict", "POST /v1/studies/{draft}:close"),
    Case("archived data", "state_conflict", "POST /v1/studies", json=study(dataset_id=_archived, release=PRIVATE)),
]  # fmt: skip

KEYS = [
    Case(f"{name}, key {key!r:.9}", "idempotency_key_missing", f"POST {path}", key=False, who=who,
         headers={} if key is None else {"Idempotency-Key": key}, **sent)
    for key in (None, "", "k" * 201)
    for name, path, who, sent in (
        ("register", "/v1/datasets", "owner", file(b"a,b\n1,2\n")),
        ("archive", "/v1/datasets/{public}:archive", "owner", {}),
        ("create", "/v1/studies", "owner", {"json": study()}),
        ("release", "/v1/studies/{draft}:release", "owner", {}),
        ("close", f"{OPEN}:close", "owner", {}),
        ("grant", f"{OPEN}/grants", "owner", {"json": {"name": "m"}}),
        ("revoke", f"{OPEN}/grants/{{grant}}:revoke", "owner", {}),
        ("revoke a token", f"{OPEN}/grants/{{grant}}/tokens/{{kid}}:revoke", "owner", {}),
        ("rotate", f"{OPEN}/grants/{{grant}}:rotate", "owner", {"json": {}}),
        ("countersign", "/v1/audit/countersignatures", "modeler", {"json": {"note": "n", "key": "k"}}),
        ("ask", f"{OPEN}/queries", "modeler", {"json": QUERY}),
    )
]  # fmt: skip


@pytest.mark.parametrize("case", [*WHO, *WHERE, *WHAT, *SIZE, *FILES, *STATE, *KEYS], ids=repr)
def test_a_bad_request_is_refused_as_documented_and_changes_nothing(case, every_state):
    curator = every_state.curator
    before, records = _database_state(curator), curator.rows("SELECT count(*) FROM log")[0][0]
    reply = case.send(every_state)
    problem = check_problem(reply, case.code)
    assert _database_state(curator) == before
    added = [json.loads(body) for (body,) in curator.rows("SELECT body FROM log WHERE seq >= ? ORDER BY seq", records)]
    assert len(added) == case.records
    for record in added:  # a refusal of a modeler
        assert record["kind"] == "exchange"
        exchange = record["exchange"]
        assert (exchange["status"], exchange["request_id"]) == (case.status, problem.request_id)
    with curator.http("") as client:
        assert client.get("/healthz").json()["status"] == client.get("/readyz").json()["status"] == "ok"


def test_the_reply_does_not_say_why_a_token_is_refused(every_state):
    """No token, an unknown one, a wrong secret, an expired one, a revoked one: one answer."""
    codes = set()
    for case in WHO:
        if case.status == 401:
            problem = case.send(every_state).json()
            codes.add(json.dumps({k: v for k, v in problem.items() if k not in ("instance", "request_id")}))
    assert len(codes) == 1


def test_what_is_not_there_and_what_is_another_s_read_alike_to_a_modeler(every_state):
    replies = [
        case.send(every_state).json()
        for case in WHERE
        if case.name in ("modeler: other study", "modeler: unknown study")
    ]
    assert len(replies) == 2
    stripped = [{k: v for k, v in r.items() if k not in ("instance", "request_id")} for r in replies]
    assert stripped[0] == stripped[1]


def test_an_error_in_a_file_has_its_row_its_line_and_its_column(every_state):
    text = b'a,b,c\n1,2,3\n4,x,6\n"7\n",,inf\n'  # the last row takes two lines
    with every_state.curator.http() as client:
        problem = client.post("/v1/datasets", **file(text), headers={"Idempotency-Key": "placed"}).json()
    places_of_errors = [(error["row"], error["line"], error["column"]) for error in problem["errors"]]
    assert sorted(places_of_errors) == [(2, 3, "b"), (3, 5, "b"), (3, 5, "c")]
    assert problem["errors_total"] == 3


def test_many_errors_are_counted_and_the_first_are_listed(every_state):
    text = "a,b\n" + "1,x\n" * 10_500
    with every_state.curator.http() as client:
        problem = client.post("/v1/datasets", **file(text.encode()), headers={"Idempotency-Key": "many"}).json()
    assert problem["errors_total"] == 10_500
    (error,) = problem["errors"]
    assert (error["row"], error["line"], error["column"], error["count"]) == (1, 2, "b", 10_500)


def test_every_error_of_a_request_is_listed_with_its_field(every_state):
    unknown = {"features__0__column": "x", "measurement__column": "x", "release": {"mechanism": "identity"}}
    body = study(**unknown, dataset_id=lambda s: s.private)
    with every_state.curator.http() as client:
        problem = client.post("/v1/studies", json=body(every_state), headers={"Idempotency-Key": "fields"}).json()
    fields = [error["field"] for error in problem["errors"]]
    assert fields == ["features.0.column", "measurement.column", "measurement.column", "release.mechanism"]


def test_a_release_that_cannot_be_made_leaves_a_draft_with_the_reason_and_no_file(every_state, owner, until):
    release = wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1", delta=1e-5, r=1, acknowledge_refuted=True)
    of_r = wire.ColumnMeasurement(column="r", direction="maximize")
    bounds = {"lower": -1000.0, "upper": 1000.0}
    spec = a_study(release, dataset_id=every_state.dependent, columns="pq", measurement=of_r, **bounds)
    draft = owner.create_study(spec)
    before = _database_state(every_state.curator)
    before[0]["ledger"] += 1  # charged before anything is computed from the data, and once for all tries
    with every_state.curator.http() as client:
        for number in range(2):
            path, key = f"/v1/studies/{draft.id}:release", {"Idempotency-Key": f"dependent-{number}"}
            problem = check_problem(client.post(path, headers=key), "release_impossible")
            assert "p, q" in problem.detail
            assert _database_state(every_state.curator) == before
        check_problem(client.post(f"/v1/studies/{draft.id}:preview"), "release_impossible")
        check_problem(client.post(path, headers=key), "release_impossible")
    kinds = [r["kind"] for r in every_state.curator.records() if r.get("details", {}).get("study_id") == draft.id]
    assert kinds == ["study.created", "charge", *["release.begun", "release.abandoned"] * 3]
    view = owner.study(draft.id).view
    assert (view.state, view.release_problem) == ("draft", problem.detail)
    stored = every_state.curator.rows("SELECT release_problem FROM studies WHERE id = ?", draft.id)
    assert stored == [(problem.detail,)]  # it outlives the process
    with every_state.curator.http() as client:  # nobody waits for this one, so nobody is told
        headers = {"Idempotency-Key": "alone", "Prefer": "respond-async;wait=10"}
        begun = client.post(path, headers=headers)
        assert (begun.status_code, begun.headers["preference-applied"]) == (202, "respond-async")
        until(lambda: owner.study(draft.id).view.state == "draft")
    assert "p, q" in owner.study(draft.id).view.release_problem


def test_an_archived_dataset_takes_no_new_study_but_its_old_ones_go_on(owner, small, open_study, curator):
    dataset = owner.register("soon archived", small.csv, public=True)
    study = open_study(owner, dataset)
    with curator.http() as client:
        reply = client.post(f"/v1/datasets/{dataset.id}:archive", headers={"Idempotency-Key": f"a {dataset.id}"})
        assert (reply.status_code, reply.json()["state"]) == (200, "archived")
    with curator.http(study.token) as client:
        query_reply = client.post(f"/v1/studies/{study.id}/queries", json=QUERY, headers={"Idempotency-Key": "k"})
    assert query_reply.status_code == 201


def test_after_all_of_this_the_log_verifies(curator):
    done = curator.run_in_process("audit", "verify")
    assert (done.returncode, done.stderr) == (0, "")
