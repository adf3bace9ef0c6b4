"""Both services keep the contract that they publish, whoever asks and whatever is sent: schemathesis tries."""

import itertools
import json
import math
import os
import re
import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import Any

import pytest
import schemathesis
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, ValidationError
from schemathesis import hooks
from schemathesis.core.parameters import ParameterLocation
from schemathesis.engine import events, from_schema
from schemathesis.generation.meta import CoveragePhaseData, CoverageScenario
from starlette.responses import JSONResponse

from blindopt import wire
from blindopt.audit.checkpoints import Signer
from blindopt.client import Measurer, Owner, StudyClient, Vendor
from blindopt.client.owner import ReleasedStudy
from blindopt.errors import Remote
from tests.curator_service.queries.inbox.measured_study import draft as inbox_draft
from tests.curator_service.tuning_case import registered

EXAMPLES = int(os.environ.get("BLINDOPT_SCHEMATHESIS_EXAMPLES", "1"))
FULL = EXAMPLES > 4
"""Boundaries also where another test has them already: asked for by `make soak`."""
SEED = 20_231_117
FORECAST = {"epsilons": ["1"], "mechanisms": ["planar_laplace"], "functions": 2, "queries": 2, "rows_max": 10}
ALIKE = {CoverageScenario.INCORRECT_TYPE, CoverageScenario.VALID_OBJECT}
"""Three in four of all boundaries."""
ALTERNATIVE = re.compile(r"(oneOf|anyOf|allOf)/\d+/")
JOBS = {"POST /v1/tunings": 20 if FULL else 3, "POST /v1/studies/{study_id}/forecasts": 4 if FULL else 2}
"""What starts work of its own, and how often it may: after that, bodies are sent as they were made up."""
FOR_MODELERS = r"^/v1/(studies/\{study_id\}(/candidates.*|/queries.*|/revisions|/messages.*)?|audit/.*)$"
OF_MODELERS = r"^/v1/(studies/\{study_id\}/(candidates.*|queries.*|revisions|messages.*)|audit/countersignatures)$"
"""Where nobody else is let in."""
RUNS = 20 if FULL else 5
"""How many runs are set going; all others are held."""
SAME_BODY = {
    "/v1/tunings:preview": "/v1/tunings",
    "/v1/studies:check": "/v1/studies",
    "/v1/studies:forecast": "/v1/studies",
}
"""What is posted to the one is, type for type, what is posted to the other, and has its boundaries there."""
CHANGED = "/v1/studies/{study_id}"
EXACT = {"answers": {"mechanism": "none"}}
"""What is put there is what is posted to /v1/studies, and what it replaces."""
SAME = rf"^({'|'.join(map(re.escape, (*SAME_BODY, CHANGED)))})$"
FEW = EXAMPLES if FULL else 1
"""Examples where a role may read what others may read, and nothing else."""
OF_A_SYSTEM = {f"POST /v1/inbox/{what}:try_again" for what in ("system", "measurements/{measurement_id}")}
"""What a curator whose owner has no system that measures refuses; its own tests have one."""
OF_PARTS = {"GET /v1/studies/{study_id}/candidates/parts/{part}"}
"""The studies here are small, and published as one file: their parts are a 404."""
OF_MEANS = {"POST /v1/queries/{query_id}:release_mean"}
"""What is refused where no mean is held back; its own tests have one."""
FOR_LINKS = r"^/v1/links/"
OF_REPLIES = {"POST /v1/links/{link_id}:reply"}
"""What is refused where no request waits for a reply; test_links.py has some."""
FOR_MEASURERS = r"^/v1/(inbox.*|queries/.*)$"
# What waits unless it is told not to.
SHORT = {
    "GET /v1/inbox/events": {"seconds": 0.1},
    "GET /v1/studies/{study_id}/queries/{query_id}": {"wait": 0},
    "GET /v1/studies/{study_id}/revisions": {"wait": 0},
    "POST /v1/links/{link_id}:pull": {"wait": 0},
}
VERBS = ("answer", "decline", "correct")
HALTED = ("pause", "resume", "replace_token")
JSON = {"content-type": "application/json"}
MADE_UP: list[tuple[str, str, dict[str, str], bytes]] = [
    ("x", "", {}, b""),
    ("%00", "?limit=none&after=-1", {"idempotency-key": "k"}, b""),
    ("a" * 300, "?" + "q" * 300, {"idempotency-key": "k" * 5_000}, b""),
    ("..%2F", "", JSON, b"{"),
    ("-1", "", JSON | {"idempotency-key": "k"}, b"{}"),
]
"""A path's part, a query, headers and a body of requests that may be right or wrong: without a token nobody looks."""
OTHER_METHODS = {"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"}

REFUSED = (400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429)
"""Statuses of what the contract forbids; 413: a body too large to be read."""


@dataclass
class World:
    """What a service holds, so that requests find it. A request that ends something gets one of its own to end."""

    ids: dict[str, str]
    own: dict[str, dict[str, list[str]]]
    bodies: dict[str, Callable[[dict[str, Any]], dict[str, Any]]]
    number: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    begun: Counter[str] = field(default_factory=Counter)

    def mend(self, case: Any) -> None:
        """Make sense of three in four requests to each operation.

        They get ids that are there, and those that are well-formed a new key and a body.
        """
        label = case.operation.label
        self.number += 1
        self.sent[label] += 1
        if label in SHORT:  # a negative case keeps what it says
            positive = case.meta is None or case.meta.generation.mode.is_positive
            facts_of = dict(case.query or {})
            case.query = facts_of | {k: v for k, v in SHORT[label].items() if positive or _waits(facts_of.get(k, 0))}
        if self.sent[label] % 4 == 0 or case.meta is None or _has_wrong_path(case.meta):
            return
        for name in case.path_parameters.keys() - {"part"}:  # a number, and no id
            own = self.own.get(label, {}).get(name) or [self.ids[name]]
            case.path_parameters[name] = own[self.sent[label] % len(own)]
        if case.meta.generation.mode.is_positive:
            if "idempotency-key" in case.headers:
                case.headers["idempotency-key"] = str(self.number)
            if label in self.bodies and self.begun[label] < JOBS.get(label, math.inf):
                self.begun[label] += 1
                case.body = self.bodies[label](case.body)


def _has_wrong_path(facts_of: Any) -> bool:
    """Whether a case is to be refused for its path: it would be a request that is allowed, once that was mended."""
    return any(where.value == "path" and part.mode.is_negative for where, part in facts_of.components.items())


def _waits(facts_of: object) -> bool:
    """Whether it is a number of seconds that one may ask for: a negative case may be wrong elsewhere."""
    try:
        return 0 <= float(str(facts_of)) <= 600
    except ValueError:
        return False


@dataclass
class Sampling:
    """Which boundaries are sent where not all are: those that differ from others in one value alone get fewer.

    Each field of a body gets each kind of boundary once, however many alternatives of a union have a field of its name;
    of the remaining wrong types, valid bodies and methods that a path does not have one in 128 is sent, and of other
    boundaries one in 16. What operations share is one type in the code: a header, a field of a query, an object in a
    body that the contract describes in the same words. It gets each kind of boundary at one of them. Each operation
    gets one method that its path does not have; without a token all.
    Unless ``contents``, none is about a query or a body: for requests that are refused before these are read.
    """

    contents: bool = True
    sent: set[tuple[Any, ...]] = field(default_factory=set)
    passed: int = 0

    def keeps(self, context: Any, case: Any) -> bool:
        boundary = case.meta.phase.data if case.meta is not None else None
        if not isinstance(boundary, CoveragePhaseData):
            return True
        if not self.contents and boundary.parameter_location in (ParameterLocation.BODY, ParameterLocation.QUERY):
            return False
        is_alike = boundary.scenario in ALIKE
        is_method = boundary.scenario is CoverageScenario.UNSPECIFIED_HTTP_METHOD
        is_shared = boundary.parameter_location in (ParameterLocation.HEADER, ParameterLocation.QUERY)
        if not (is_alike or is_method or is_shared) and boundary.parameter_location is not ParameterLocation.BODY:
            return True
        field_of = "" if is_method else ALTERNATIVE.sub("", boundary.location or "")
        label = boundary.parameter_location if is_shared and boundary.parameter else case.operation.label
        if boundary.parameter_location is ParameterLocation.BODY:
            label = _shared_object(case.operation, field_of) or label
        kind = (label, boundary.parameter, boundary.scenario, field_of)
        if kind not in self.sent:
            self.sent.add(kind)
            return True
        self.passed += 1
        return self.passed % (128 if is_alike or is_method else 16) == 0


def _shared_object(operation: Any, location: str) -> str | None:
    """What the contract says of the object in a body in which a location is; None unless it says it in one place."""
    name = re.match(r"/properties/(\w+)/", location)
    body = operation.definition.raw["requestBody"]["content"].get("application/json")
    if name is None or body is None or "$ref" not in body["schema"]:
        return None
    components = operation.schema.raw_schema["components"]["schemas"]
    said = components[body["schema"]["$ref"].rpartition("/")[2]].get("properties", {}).get(name[1])
    text = json.dumps(said, sort_keys=True)
    return text if "$ref" in text else None


@dataclass
class Tried:
    """What was found, and which statuses each operation answered with."""

    faults: list[str] = field(default_factory=list)
    statuses: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    requests: int = 0

    @property
    def reached(self) -> set[str]:
        """Operations that did what they are for."""
        return {name for name, statuses in self.statuses.items() if min(statuses) < 300}


def _try(
    url: str,
    authorization: str | None = None,
    mend: Callable[[Any], None] = lambda case: None,
    *,
    boundaries: bool = True,
    examples: int = EXAMPLES,
    only: str = "",
    but: str = "",
    not_posted_to: str = "",
    contents: bool = True,
) -> Tried:
    """Send what the contract at ``url`` allows and what it forbids; ``mend`` sees each case before it leaves.

    ``boundaries``: each parameter and field at its limits, missing and of another type, and every other method.
    Where not all are sent, and unless ``contents``, queries and bodies have none.
    ``only``, ``but``, ``not_posted_to``: regular expressions for paths; by default all of them.
    """
    config = schemathesis.Config.from_dict(
        {
            "seed": SEED,
            "headers": {"Authorization": authorization} if authorization else {},
            "continue-on-failure": True,
            "cache": {"enabled": False},  # a run learns nothing from the one before
            "request-timeout": 60.0,  # nothing here is about speed
            "generation": {
                "deterministic": True,
                "database": "none",
                "max-examples": examples,
                "with-security-parameters": False,
            },
            # A schema cannot tell that a column is in a dataset: what it allows may still be refused.
            "checks": {
                "positive_data_acceptance": {"enabled": False},
                "negative_data_rejection": {"expected-statuses": [*map(str, REFUSED), "5xx"]},
            },
            # Ids come from ``mend`` alone, so that no example spoils what another one needs.
            "phases": {
                "stateful": {"enabled": False},
                "examples": {"enabled": not boundaries},  # those of decimals: boundaries have such too
                "coverage": {"enabled": boundaries, "extra-data-sources": {"responses": False}},
                "fuzzing": {"extra-data-sources": {"responses": False}},
            },
        }
    )
    schema, tried = schemathesis.openapi.from_url(f"{url}/openapi.json", config=config), Tried()
    schema = schema.include(path_regex=only) if only else schema
    schema = schema.exclude(path_regex=but) if but else schema
    schema = schema.exclude(path_regex=not_posted_to, method=["POST", "PUT"]) if not_posted_to else schema
    with _hooks(mend, (lambda context, case: True) if FULL else Sampling(contents).keeps):
        for event in from_schema(schema).execute():
            if isinstance(event, events.NonFatalError | events.FatalError):
                tried.faults.append(repr(event))
            if isinstance(event, events.ScenarioFinished):
                _read(event.recorder, tried)
    return tried


@contextmanager
def _hooks(mend: Callable[[Any], None], keeps: Callable[[Any, Any], bool]) -> Iterator[None]:
    """Let ``keeps`` choose cases and ``mend`` change each before its call. Hooks are those of all schemas."""

    @schemathesis.hook
    def filter_case(context: Any, case: Any) -> bool:
        return keeps(context, case)

    @schemathesis.hook
    def before_call(context: Any, case: Any, kwargs: Any) -> None:
        mend(case)

    try:
        yield
    finally:
        hooks.unregister(filter_case)
        hooks.unregister(before_call)


def _read(recorder: Any, tried: Tried) -> None:
    for nodes in recorder.checks.values():
        tried.faults += [
            f"{node.name}: {node.failure_info.failure}\n{node.failure_info.code_sample}"
            for node in nodes
            if node.failure_info is not None
        ]
    for identity, interaction in recorder.interactions.items():
        operation, reply = recorder.cases[identity].value.operation, interaction.response
        where = f"{interaction.request.method} {interaction.request.uri}"
        tried.requests += 1
        if reply is None:
            tried.faults.append(f"no answer: {where}")
            continue
        if interaction.request.method == operation.method.upper():
            tried.statuses[operation.label].add(reply.status_code)
        elif reply.status_code not in (401, 405) and "}:" not in operation.path:  # nothing is there to GET: 404
            tried.faults.append(f"not 405: {where} {reply.status_code}")
        # Schemathesis does not look at the bodies of replies to methods that the contract does not tell.
        if reply.status_code >= 400 and not _is_problem(reply):
            tried.faults.append(f"not a problem document: {where} {reply.status_code} {reply.content[:200]!r}")


def _is_problem(reply: Any) -> bool:
    try:
        problem = wire.Problem.model_validate_json(reply.content)
    except ValidationError:
        return False
    kind = reply.headers["content-type"]
    return problem.status == reply.status_code and "application/problem+json" in (kind, *kind)


@pytest.fixture(scope="module", autouse=True)
def direct() -> Iterator[None]:
    """Requests go to loopback, whatever proxies the environment tells; nor is it read again for each of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("requests.sessions.get_environ_proxies", lambda *_, **__: {})
        patch.setattr("requests.sessions.get_netrc_auth", lambda *_, **__: None)
        yield


# --- both services, with something in them --------------------------------------------------------


@pytest.fixture
def at_boundaries(request: pytest.FixtureRequest) -> bool:
    """Whether boundaries are sent: not where slow tests are left out, which has examples alone."""
    return request.config.getoption("--slow") != "no"


@pytest.fixture(scope="module")
def curator(make_service, tmp_path_factory):
    """One of its own: odd requests would litter the logs of the others' curator."""
    limits = {"rate_per_second": "100000", "rate_burst": "100000", "bad_tokens_per_minute": "100000"}
    return make_service("curator", tmp_path_factory.mktemp("openapi"), **limits).start()


@pytest.fixture(scope="module")
def modeler(make_service, tmp_path_factory):
    """One of its own, which works on one run at a time and gives up on a curator at once."""
    limits = {"rate_per_second": "100000", "rate_burst": "100000", "bad_tokens_per_minute": "100000"}
    limits |= {"concurrent_runs": "1", "retry_attempts": "1"}
    return make_service("modeler", tmp_path_factory.mktemp("openapi"), **limits).start()


@pytest.fixture(scope="module")
def opened(curator, small, open_study):
    with Owner(curator.url, curator.token) as owner:
        return open_study(owner, owner.register("small", small.csv, public=True))


@pytest.fixture(scope="module")
def at_curator(curator, opened, small) -> World:
    witness = Signer.of("modeler", bytes(range(32)))
    with Owner(curator.url, curator.token) as owner, StudyClient(curator.url, opened.token, opened.id) as study:
        query, _ = study.ask(wire.QueryRequest(rows=[wire.RowPlays(row=3)]), key="first")
        sent = study.send_message(wire.RecommendationMessage(row=3), key="sent")
        capped = opened.view.spec.model_copy(update={"budget": wire.Budget(queries=1)})
        owner.release(raised := owner.create_study(capped).id)
        owner.release(grouped := owner.create_study(_of_groups(opened.view.spec)).id)
        ReleasedStudy(owner, grouped).answer_all()
        granted = [owner.grant(opened.id, wire.GrantCreate(name="other")) for _ in range(4)]
        grants = [grant.id for grant in granted[:2]]
        signed = witness.countersign(study.checkpoint().note, 1_700_000_000)
        archived, (closed, changed, kept, shelved, *drafts) = (
            owner.register("old", small.csv),
            _drafts(owner, opened, 16),
        )
        deleted, drafts = drafts[:4], drafts[4:]
        unused, erased = ([owner.register(name, small.csv).id for _ in range(4)] for name in ("unused", "erased"))
        with curator.http() as http:
            for n, dataset in enumerate(erased):
                http.post(f"/v1/datasets/{dataset}:archive", headers={"Idempotency-Key": f"e {n}"}).raise_for_status()
            http.post(f"/v1/studies/{shelved}:archive", headers={"Idempotency-Key": "shelved"}).raise_for_status()
        read = owner.study(changed).view.spec_sha256
        owner.release(closed)
        lines = small.csv.splitlines(keepends=True)
        # Another file: attacks on it take no time, and no answer about it left without noise.
        apart = owner.register("apart", b"".join(lines[:31]), public=True).id
        undecided = [owner.register("june", b"".join(lines[:n])).id for n in range(21, 25)]
        previewed = owner.create_study(opened.view.spec.model_copy(update={"dataset_id": apart})).id
        quick = wire.ForecastCreate(**FORECAST)
        forecast = owner.wait_forecast(opened.id, owner.start_forecast(opened.id, quick).id, timeout_s=240)
        cancelled = owner.cancel_forecast(opened.id, owner.start_forecast(opened.id, quick).id)
        ends = [owner.grant(opened.id, wire.GrantCreate(name="rotates")).id for _ in range(9)]
        uploads = [_uploaded(curator) for _ in range(2)]
        draft = inbox_draft(small, opened.view.spec.dataset_id)
        inbox = [_query_of(curator, owner, draft) for _ in range(4)]
        with Measurer(curator.url, curator.token) as measurer:
            answered = wire.Measured(measurement_id=inbox[2][1], value=1.0)
            measurer.answer(inbox[2][0], wire.AnswerCreate(values=[answered]))
        case = registered(owner, m=20)
        tuning = case.spec("0.01").model_dump(mode="json")
        tuned = owner.wait_tuning(owner.start_tuning(case.spec()).id, timeout_s=240)
        ended_early = _cancelled(owner, case)
    spec = opened.view.spec.model_dump(mode="json")
    real = {name: spec[name] for name in ("dataset_id", "features", "measurement")}
    sound = real | {"release": {"epsilon": "1"}, **EXACT}  # a made-up release may be of 0, and refused
    caps, drafted = itertools.count(2), itertools.count()
    column = {"column": small.names[0], "outer": [-10.0, 10.0]}
    return World(
        ids={
            "dataset_id": spec["dataset_id"],
            "study_id": opened.id,
            "query_id": query.id,
            "grant_id": grants[0],
            "kid": granted[2].kid,
            "forecast_id": forecast.id,
            "tuning_id": tuned.id,
            "measurement_id": inbox[0][1],
            "upload_id": uploads[0],
            "message_id": wire.MessageView.model_validate_json(sent).id,
        },
        own={
            **{f"POST /v1/queries/{{query_id}}:{verb}": {"query_id": [inbox[n][0]]} for n, verb in enumerate(VERBS)},
            "POST /v1/uploads/{upload_id}:discard": {"upload_id": uploads[1:]},
            "POST /v1/datasets/{dataset_id}:archive": {"dataset_id": [archived.id]},
            "POST /v1/datasets/{dataset_id}:bounds": {"dataset_id": [apart]},
            "POST /v1/datasets/{dataset_id}:withhold": {"dataset_id": [apart]},
            "POST /v1/datasets/{dataset_id}:decide": {"dataset_id": undecided},
            "POST /v1/datasets/{dataset_id}:delete": {"dataset_id": unused},
            "POST /v1/datasets/{dataset_id}:erase": {"dataset_id": erased},
            "POST /v1/studies/{study_id}:release": {"study_id": drafts},
            "POST /v1/studies/{study_id}:archive": {"study_id": [kept]},
            "POST /v1/studies/{study_id}:unarchive": {"study_id": [shelved]},
            "POST /v1/studies/{study_id}:delete": {"study_id": deleted},
            "PUT /v1/studies/{study_id}": {"study_id": [changed]},
            "POST /v1/studies/{study_id}:close": {"study_id": [closed]},
            "PUT /v1/studies/{study_id}/budget": {"study_id": [raised]},
            "POST /v1/studies/{study_id}:preview": {"study_id": [previewed]},
            "POST /v1/studies/{study_id}:open_group": {"study_id": [grouped]},
            "GET /v1/studies/{study_id}/groups": {"study_id": [grouped]},
            "POST /v1/studies/{study_id}:answer_all": {"study_id": [grouped]},
            "GET /v1/studies/{study_id}/answers": {"study_id": [grouped]},
            "POST /v1/studies/{study_id}/grants/{grant_id}:revoke": {"grant_id": grants},
            "POST /v1/studies/{study_id}/grants/{grant_id}:rotate": {"grant_id": ends},
            "POST /v1/studies/{study_id}/grants/{grant_id}/tokens/{kid}:revoke": {"grant_id": [granted[2].id]},
            "POST /v1/studies/{study_id}/forecasts/{forecast_id}:cancel": {"forecast_id": [cancelled.id]},
            "POST /v1/tunings/{tuning_id}:cancel": {"tuning_id": [ended_early]},
        },
        bodies={
            "POST /v1/datasets": lambda body: {"name": body["name"], "file": "a,b\n1,2\n3,4\n"},
            "POST /v1/datasets/{dataset_id}:withhold": lambda body: {"record": 3},
            "POST /v1/datasets/{dataset_id}:letter": lambda body: {"record": 3},
            "POST /v1/datasets/{dataset_id}:decide": lambda body: {"separate": body.get("separate") or "another month"},
            "POST /v1/datasets/{dataset_id}:clips": lambda body: {"columns": [column]},
            "POST /v1/datasets/{dataset_id}:bounds": lambda body: {"columns": [column], "epsilon": "40"},
            "POST /v1/uploads": lambda body: {"file": "a,b\n1,x\n"},
            "POST /v1/uploads/{upload_id}:read": lambda body: {"columns": ["a"]},
            # What is made up may not go together: the first one does.
            "POST /v1/studies": lambda body: body | real | {"budget": {}} if next(drafted) else spec,
            "POST /v1/studies:check": lambda body: body | sound | {"budget": {}},
            # One and the same: each set of public inputs has a forecast of its own.
            "POST /v1/studies:forecast": lambda body: {"name": "n", **sound},
            # Once: then it is another draft, and 409.
            "PUT /v1/studies/{study_id}": lambda body: body | sound | {"budget": {}, "replaces": read},
            "POST /v1/studies/{study_id}:release": lambda body: {"spec_sha256": read},  # all are alike
            "POST /v1/studies/{study_id}/queries": lambda body: {"rows": [{"row": 3, "plays": 1}]},
            "POST /v1/studies/{study_id}/forecasts": lambda body: FORECAST,
            "POST /v1/studies/{study_id}/messages": lambda body: {"kind": "recommendation", "row": 3},
            "POST /v1/studies/{study_id}:open_record": lambda body: {"row": 3},
            "POST /v1/studies/{study_id}:open_group": lambda body: {"row": 0},
            "POST /v1/messages/{message_id}:decide": lambda body: {"decision": "accepted"},
            "PUT /v1/studies/{study_id}/budget": lambda body: {"budget": {"queries": next(caps)}, "reason": "more"},
            "POST /v1/queries/{query_id}:answer": lambda body: _value(inbox[0][1]),
            "POST /v1/queries/{query_id}:decline": lambda body: {"reason": "other"},
            "POST /v1/queries/{query_id}:correct": lambda body: _value(inbox[2][1]),
            "POST /v1/inbox:import": lambda body: f"measurement_id,value\n{inbox[3][1]},\n",
            # Its answers have no noise: no cap can hold.
            "PUT /v1/datasets/{dataset_id}/account/caps": lambda body: {"epsilon": None, "delta": None},
            "POST /v1/tunings": lambda body: tuning,
            "POST /v1/tunings:preview": lambda body: tuning,
            "POST /v1/audit/countersignatures": lambda body: {"note": signed, "key": witness.verifier.vkey},
        },
    )


def _uploaded(curator) -> str:
    """A file that waits for decisions."""
    key = {"Idempotency-Key": os.urandom(8).hex()}
    with curator.http() as http:
        return str(http.post("/v1/uploads", files={"file": ("a.csv", b"a,b\n1,x\n")}, headers=key).json()["id"])


def _query_of(curator, owner, draft) -> tuple[str, str]:
    """A pending query of a study of its own, and its measurement."""
    study = owner.create_study(draft).id
    owner.release(study)
    token = owner.grant(study, wire.GrantCreate(name="m")).token
    with StudyClient(curator.url, token, study) as modeler, Measurer(curator.url, curator.token) as measurer:
        query, _ = modeler.ask(wire.QueryRequest(rows=[wire.RowPlays(row=3)]), key="first")
        return query.id, next(measurer.measurements(query_id=query.id)).id


def _value(measurement_id: str) -> dict[str, Any]:
    return {"values": [{"measurement_id": measurement_id, "value": 1.5}]}


def _cancelled(owner, case) -> str:
    """A tuning that was cancelled while the one before it ran."""
    first, second = (owner.start_tuning(case.spec()).id for _ in range(2))
    try:
        return owner.cancel_tuning(second).id
    except Remote:  # both had ended
        return _cancelled(owner, case)
    finally:
        owner.wait_tuning(first, timeout_s=240)


def _newest_link(modeler) -> str:
    with modeler.http() as http:
        return str(http.get("/v1/links").json()["links"][-1]["id"])


def _of_groups(spec: wire.StudyCreate) -> wire.StudyCreate:
    cells = wire.GridCells(kind="grid", parts=[2] * len(spec.features))
    release = wire.GroupsRelease(mechanism="groups", epsilon="1", cells=cells)
    answers = wire.AutoAnswers(epsilon="1", value_bound=1.0)
    return spec.model_copy(update={"release": release, "answers": answers})


def _drafts(owner, opened, number):
    return [owner.create_study(opened.view.spec).id for _ in range(number)]


@pytest.fixture(scope="module")
def at_modeler(curator, opened, modeler, run_of, issue) -> World:
    issue(modeler, "link")
    with Owner(curator.url, curator.token) as owner:  # a grant is one modeler's: others' queries are a dispute
        opened = replace(opened, token=owner.grant(opened.id, wire.GrantCreate(name="modeler")).token)
    with Vendor(modeler.url, modeler.token) as vendor, socket.create_server(("127.0.0.1", 0)) as silent:
        run = vendor.wait(vendor.start(run_of(curator.url, opened, iterations=2)).id, timeout_s=240)
        nowhere = f"http://127.0.0.1:{silent.getsockname()[1]}"  # where soon nobody listens
        vendor.start(run_of(nowhere, opened))  # keeps the next one in the queue
        stopped = vendor.stop(vendor.start(run_of(nowhere, opened)).id)
        held = vendor.start(run_of(curator.url, opened, hold=True))  # never started
        deleted = [vendor.stop(vendor.start(run_of(curator.url, opened, hold=True)).id) for _ in range(4)]
        vendor.send_message(run.id, wire.RecommendationWish(kind="recommendation"))
        halted = [vendor.pause(vendor.start(run_of(nowhere, opened)).id).id for _ in range(3)]
        assert (run.state, stopped.state) == ("completed", "stopped"), run.problem
    # Not all settings go together: that is tested elsewhere.
    real, made = {"curator_url": nowhere, "algorithm": {"name": "gp_bucb"}, "stop": {}}, itertools.count()
    return World(
        ids={"run_id": run.id, "number": "1", "link_id": _newest_link(modeler)},
        own={
            "POST /v1/runs/{run_id}:stop": {"run_id": [stopped.id]},
            "POST /v1/runs/{run_id}:delete": {"run_id": [ended.id for ended in deleted]},
            "POST /v1/runs/{run_id}/observations": {"run_id": [held.id]},
            **{
                f"POST /v1/runs/{{run_id}}:{verb}": {"run_id": [run_id]}
                for verb, run_id in zip(HALTED, halted, strict=True)
            },
        },
        bodies={
            "POST /v1/runs": lambda body: body | real | {"hold": next(made) >= RUNS},
            "POST /v1/runs/{run_id}/messages": lambda body: {"kind": "recommendation"},
            "POST /v1/runs/{run_id}/observations": lambda body: {"observations": [{"row": 3, "y": 0.5}]},
        },
    )


@pytest.fixture(scope="module")
def issue() -> Callable[..., str]:
    """A new token of a role; its Authorization header."""

    def make(service, role: str) -> str:
        return f"Bearer {service.run_in_process('token', 'create', '--role', role, '--name', role).stdout.strip()}"

    return make


@pytest.fixture(scope="module")
def operations() -> Callable[..., dict[str, bool]]:
    """Each operation of a service's contract, and whether it asks for a token."""

    def facts_of(service) -> dict[str, bool]:
        with service.http("") as http:
            paths = http.get("/openapi.json").json()["paths"]
        return {f"{m.upper()} {path}": bool(o["security"]) for path, item in paths.items() for m, o in item.items()}

    return facts_of


def _check_kept(tried: Tried) -> None:
    assert not tried.faults, f"{len(tried.faults)} of {tried.requests} requests:\n\n" + "\n\n".join(tried.faults[:20])


@pytest.mark.slow(sibling="test_the_modeler_keeps_its_contract_with_every_role")
def test_the_curator_keeps_its_contract_with_every_role(curator, opened, at_curator, issue, operations):
    """Boundaries for the owner, and for a modeler where it alone is let in: all else is 403 before its body is read."""
    reached = set()
    owner, auditor, modeler = f"Bearer {curator.token}", issue(curator, "auditor"), f"Bearer {opened.token}"
    for bearer, boundaries, only, but, not_posted_to, examples in (
        (owner, True, "", "" if FULL else OF_MODELERS, "" if FULL else SAME, EXAMPLES),
        (owner, False, SAME, "", "", max(2, EXAMPLES)),
        (auditor, False, "", "", "" if FULL else ".", FEW),  # it posts nothing: test_roles_and_openapi.py has every 403
        *([(modeler, False, "", "", "", FEW)] if FULL else [(modeler, False, FOR_MODELERS, OF_MODELERS, SAME, FEW)]),
        (modeler, True, FOR_MODELERS if FULL else OF_MODELERS, "", "", EXAMPLES),
        (issue(curator, "measurer"), False, FOR_MEASURERS, "", "", FEW),
    ):
        tried = _try(
            curator.url, bearer, at_curator.mend,
            boundaries=boundaries, only=only, but=but, not_posted_to=not_posted_to, examples=examples,
        )  # fmt: skip
        _check_kept(tried)
        reached |= tried.reached
    assert reached == set(operations(curator)) - OF_A_SYSTEM - OF_MEANS - OF_PARTS


def test_what_has_its_boundaries_elsewhere_has_the_same_body_there(curator):
    with curator.http("") as http:
        contract = http.get("/openapi.json").json()
    paths, schemas = contract["paths"], contract["components"]["schemas"]
    for path, there in SAME_BODY.items():
        assert paths[path]["post"]["requestBody"] == paths[there]["post"]["requestBody"], path
    put, posted = (
        schemas[body["$ref"].rpartition("/")[2]]
        for body in (
            paths[where][method]["requestBody"]["content"]["application/json"]["schema"]
            for where, method in ((CHANGED, "put"), ("/v1/studies", "post"))
        )
    )
    assert {name: schema for name, schema in put["properties"].items() if name != "replaces"} == posted["properties"]


def test_the_modeler_keeps_its_contract_with_every_role(modeler, at_modeler, issue, operations, at_boundaries):
    reached, link = set(), issue(modeler, "link")
    at_modeler.ids["link_id"] = _newest_link(modeler)
    for bearer, boundaries, only, not_posted_to, examples in (
        (f"Bearer {modeler.token}", True, "", "", EXAMPLES),
        (issue(modeler, "viewer"), False, "", "" if FULL else ".", FEW),
        (link, True, FOR_LINKS, "", EXAMPLES),
    ):
        tried = _try(
            modeler.url, bearer, at_modeler.mend,
            boundaries=boundaries and at_boundaries, only=only, not_posted_to=not_posted_to,
            examples=examples if at_boundaries else max(2, examples),
        )  # fmt: skip
        _check_kept(tried)
        reached |= tried.reached
    assert reached == set(operations(modeler)) - OF_REPLIES


@pytest.fixture(params=["curator", "modeler"])
def served(request, issue) -> tuple[Any, dict[str, str | None]]:
    """A service with something in it, and what is sent as Authorization where no good token is."""
    service = request.getfixturevalue(request.param)
    revoked = issue(service, {"curator": "owner", "modeler": "vendor"}[request.param])
    assert service.run_in_process("token", "revoke", revoked.partition("_")[2][:16]).returncode == 0
    return service, {"none": None, "malformed": "Bearer blindopt_0123456789abcdef.short", "revoked": revoked}


@pytest.mark.slow(every=2)
def test_without_a_good_token_there_is_401_and_nothing_else(served, operations):
    """It is said before a path, a query or a body is read: whatever these hold, the reply is the same."""
    service, bearers = served
    faults = []
    with service.http("") as http:
        paths = http.get("/openapi.json").json()["paths"]
        for label, secured in operations(service).items():
            method, path = label.split()
            documented = paths[path][method.lower()]["responses"]
            for bearer, authorization in bearers.items():
                bearer_header = {} if authorization is None else {"authorization": authorization}
                for value, query, headers, content in MADE_UP if secured else MADE_UP[:1]:
                    url = re.sub(r"\{\w+\}", value, path) + query
                    reply = http.request(method, url, headers=bearer_header | headers, content=content)
                    right = reply.status_code == (401 if secured else 200) and str(reply.status_code) in documented
                    if not right or (secured and not _is_problem(reply)):
                        faults.append(f"{bearer}: {method} {url}: {reply.status_code} {reply.content[:200]!r}")
            for other in OTHER_METHODS - {method.upper() for method in paths[path]}:
                reply = http.request(other, re.sub(r"\{\w+\}", "x", path))
                right = (200,) if other == "HEAD" and not secured and method == "GET" else (401, 405)
                if reply.status_code not in right or (other != "HEAD" and not _is_problem(reply)):
                    faults.append(f"{other} {path}: {reply.status_code} {reply.content[:200]!r}")
    assert faults == []


@pytest.mark.skipif(not FULL, reason="`make soak` makes up more of them")
@pytest.mark.parametrize("bearer", ["none", "malformed", "revoked"])
def test_without_a_good_token_whatever_is_made_up_gets_401(served, bearer, request, operations):
    service, bearers = served
    world = request.getfixturevalue(f"at_{service.name}")
    tried = _try(
        service.url, bearers[bearer], world.mend, boundaries=bearer == "none", contents=False, examples=2
    )  # fmt: skip
    _check_kept(tried)
    assert tried.statuses == {label: {401} if secured else {200} for label, secured in operations(service).items()}


# --- the check itself -----------------------------------------------------------------------------


class Sample(BaseModel):
    number: int


@contextmanager
def _served(app: FastAPI) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def test_a_service_that_breaks_its_contract_is_caught():
    app = FastAPI()

    @app.get("/undocumented")
    def undocumented() -> JSONResponse:
        return JSONResponse({}, 418)

    @app.get("/fault")
    def fault() -> JSONResponse:
        return JSONResponse({}, 500)

    @app.get("/shape")
    def shape() -> Sample:
        return JSONResponse({"number": "seven"})

    @app.get("/right")
    def right() -> Sample:
        return Sample(number=7)

    with _served(app) as url:
        faults = _try(url).faults
    pairs = {(fault.partition(":")[0], path) for fault in faults for path in app.openapi()["paths"] if path in fault}
    assert {(name, path) for name, path in pairs if name != "not a problem document"} == {
        ("status_code_conformance", "/undocumented"),
        ("status_code_conformance", "/fault"),
        ("not_a_server_error", "/fault"),
        ("response_schema_conformance", "/shape"),
    }
    assert ("not a problem document", "/right") in pairs  # FastAPI's own 405
