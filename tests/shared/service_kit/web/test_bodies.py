"""JSON bodies: what a refusal costs, counted in steps of the interpreter, and that large ones leave the event loop."""

import asyncio
import json
import re
import sys
import threading
import time

import httpx
import pytest
from fastapi import Depends, FastAPI, Request

from blindopt import bodies, faults, wire
from blindopt.bodies import parse
from blindopt.errors import Forbidden, Invalid
from blindopt.faults import SHOWN, SMALL_BYTES
from curator_service.routes import studies
from modeler_service.routes import runs
from service_kit.web import dependencies, problems
from tests.interventions import act_before

QUERY = json.dumps({"rows": [{"row": row} for row in range(1_000)]}).encode()
HUNDRED = {f"unknown {number}": 1 for number in range(100)}


def many(count=90_000):
    """A body of so many unknown keys."""
    return {f"{number:06}": 1 for number in range(count)}


def crowded(rows):
    return [{"row": row} | HUNDRED for row in range(rows)]


SEEN = {"row": 1, "y": 0.5}
# What 64 KiB can hold is refused by the limit of their route above that.
HOSTILE = {
    "a query": (wire.QueryRequest, lambda: many(5_000)),
    "a query of 100 unknown keys in each row": (wire.QueryRequest, lambda: {"rows": crowded(999)}),
    "a countersignature": (wire.Countersigning, lambda: many(5_000)),
    "a study": (wire.StudyCreate, many),
    "a run": (wire.RunCreate, many),
    "a run after 10,000 observations": (wire.RunCreate, lambda: {"observations": [SEEN] * 9_999, **many()}),
}


def steps_of(work):
    """How many functions of Python and C were called; what was refused."""
    count = 0

    def step(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    refused = None
    sys.setprofile(step)
    try:
        work()
    except Invalid as error:
        refused = error
    finally:
        sys.setprofile(None)
    return count, refused


@pytest.mark.parametrize(("model", "made"), HOSTILE.values(), ids=HOSTILE)
def test_a_refusal_costs_a_bounded_number_of_steps_however_many_errors_there_are(model, made):
    """Ten times the 1,000 steps that an answer to a query takes; each of 90,000 errors took seven."""
    content = made()
    body = json.dumps(content).encode()
    parse_again = (lambda: parse(body, model), lambda: parse(body, model))
    for work in parse_again:  # the first time, the model is built
        used = time.process_time()
        steps, refused = steps_of(work)
        used = time.process_time() - used
    print(f"{len(body):,} bytes: {steps:,} steps, {1_000 * used:.1f} ms of processor time")
    assert len(refused.errors) == SHOWN
    read = sum(10_000 for part in content.values() if isinstance(part, list))
    assert steps <= 10_000 + 5 * read


def test_unknown_keys_are_counted_before_the_model_is_built(monkeypatch):
    class Untouched:
        def validate_json(self, body):
            raise AssertionError("built")

        json_schema = staticmethod(wire.StudyCreate.model_json_schema)

    monkeypatch.setattr(faults, "adapter_of", lambda model: Untouched())
    with pytest.raises(Invalid) as refused:
        parse(json.dumps(many()).encode(), wire.StudyCreate)
    assert refused.value.errors[0] == {"field": "000000", "message": "is no field here"}


def test_no_more_than_the_shown_errors_become_objects(monkeypatch):
    decoded = []

    class Counting(json.JSONDecoder):
        def raw_decode(self, *arguments):
            decoded.append(1)
            return super().raw_decode(*arguments)

    monkeypatch.setattr(json, "JSONDecoder", Counting)
    body = json.dumps({"rows": [{"row": "x"}] * 900}).encode()
    with pytest.raises(Invalid) as refused:
        parse(body, wire.QueryRequest)
    assert len(decoded) == len(refused.value.errors) == 50
    assert refused.value.errors[49] == {
        "field": "rows.49.row",
        "message": "is text: write a whole number without quotes",
    }


@pytest.mark.parametrize("text", [r"a\": {\"b\": 1, \\", "x" * 10, 'c": 1, "d', "\u00e9: \\", "\\"])
def test_a_text_that_looks_like_fields_is_a_text(text):
    """Its quotes are escaped, so it is one string of the body."""
    features = [{"column": f"{number} {text}"} for number in range(999)]
    body = json.dumps({"features": features, "name": "x" * SMALL_BYTES}).encode()
    with pytest.raises(Invalid) as refused:
        parse(body, wire.StudyCreate)
    assert not any(error["message"].startswith("is no field here") for error in refused.value.errors)


@pytest.mark.parametrize("name", [" ", "\u3000", "\u00a0 "])
def test_a_name_that_shows_nothing_is_refused(name):
    body = {"name": name, "expires_in_days": 1}
    with pytest.raises(Invalid, match=r"^name must be one line of characters that can be seen"):
        asyncio.run(dependencies._parsed(json.dumps(body).encode(), wire.GrantCreate))
    seen = asyncio.run(dependencies._parsed(json.dumps(body | {"name": f"{name}a"}).encode(), wire.GrantCreate))
    assert seen.name == f"{name}a"


def test_a_field_may_be_written_with_escapes():
    body = json.dumps({"rows": [{"row": row} for row in range(1_000)]}).replace("row", r"\u0072ow")
    body += " " * SMALL_BYTES
    assert parse(body.encode(), wire.QueryRequest).rows[-1].row == 999


@pytest.mark.parametrize("broken", [b"", b"{", b'{"a', b"\xff" * 10, b"[" * 1_000, b"nul", b'"\\ud800"', b'{"\\x": 1}'])
@pytest.mark.parametrize("padding", [0, SMALL_BYTES])
def test_what_is_no_json_is_refused_as_the_body(broken, padding):
    with pytest.raises(Invalid) as refused:
        parse(broken + b" " * padding, wire.QueryRequest)
    assert [error["field"] for error in refused.value.errors] == ["body"] or broken == b'"\\ud800"'


def test_every_route_of_the_services_that_takes_json_is_bounded():
    """A model that takes fields of any name could not be checked before it is built."""
    seen = 0
    for module in (studies, runs):
        for route in module.router.routes:
            assert isinstance(route, dependencies.BoundedRoute)
            if route.body_field is not None:
                seen += 1
    assert seen > 5


def test_a_large_body_is_parsed_beside_the_event_loop_and_a_small_one_on_it(monkeypatch):
    threads = []
    act_before(monkeypatch, bodies, "parse", lambda *_: threads.append(threading.current_thread()))
    small = QUERY
    for body in (small, small + b" " * SMALL_BYTES):
        sent = iter([{"type": "http.request", "body": body}])

        async def receive(sent=sent):
            return next(sent)

        scope = {"type": "http", "headers": [(b"content-type", b"application/json")], "method": "POST"}
        request = Request(scope, receive)
        assert len(asyncio.run(dependencies.body_of(request, wire.QueryRequest)).rows) == 1_000
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


def test_a_body_is_refused_after_the_dependencies_and_no_kind_of_it_passes():
    """A model of which every field has a default must not be made of a refusal."""

    class AllDefaults(wire.QueryRequest):
        rows: list[wire.RowPlays] = []

    def forbid(request: Request) -> None:
        if "x-forbid" in request.headers:
            raise Forbidden("no")

    async def echo(body: AllDefaults) -> int:
        return len(body.rows)

    app = FastAPI()
    app.router.routes.append(dependencies.BoundedRoute("/echo", echo, methods=["POST"], dependencies=[Depends(forbid)]))

    @app.middleware("http")
    async def name(request, call_next):
        request.state.request_id = "0"
        return await call_next(request)

    problems.install(app)

    def post(content, **headers):
        async def send():
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
                return await client.post("/echo", content=content, headers=headers)

        headers = {"content-type": "application/json"} | headers
        return asyncio.run(send())

    assert post(QUERY).json() == 1_000
    contents = (b"{}", b"null", b"[]", b"x", b'{"a": 1}')
    assert [post(content).status_code for content in contents] == [200, *[422] * 4]
    assert post(b"x", **{"x-forbid": "1"}).status_code == 403


def test_a_body_that_ends_too_soon_is_no_fault_of_ours():
    messages = iter([{"type": "http.request", "body": b'{"rows"', "more_body": True}, {"type": "http.disconnect"}])

    async def receive():
        return next(messages)

    scope = {"type": "http", "headers": [(b"content-type", b"application/json")]}
    with pytest.raises(Invalid, match="ended before its body"):
        asyncio.run(dependencies.body_of(Request(scope, receive), wire.QueryRequest))


@pytest.mark.parametrize("tail", [b'\\"' * 1_000, b"\\" * 1_001, b'\\"' * 1_000 + b"\\"], ids=["quotes", "odd", "both"])
def test_a_text_without_an_end_is_read_once(tail):
    """It is one string up to the end; the control begins another one at each quote, which takes quadratic time."""
    body = b'{"rows":"' + tail
    spans = [string.span() for string in bodies._STRING.finditer(body)]
    assert spans == [(1, 8), (8, len(body))]
    ended = re.compile(rb'"((?:[^"\\]|\\.)*+)"(\s*+:)?', re.DOTALL)
    assert [string.span() for string in ended.finditer(body)] != spans
    with pytest.raises(Invalid):
        parse(body, wire.QueryRequest)
