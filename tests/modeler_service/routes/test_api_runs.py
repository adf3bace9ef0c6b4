"""The vendor's REST API: what is refused, what is done once, what a viewer may do."""

import hashlib
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from blindopt import wire

CANARY = "canary7f3a9c"
JSON = {"Content-Type": "application/json"}
TOKEN = "blindopt_0123456789abcdef." + "A" * 43
SPEC = {"curator_url": "http://127.0.0.1:9", "study_id": "std_0123456789abcdef", "token": TOKEN}
NOBODY = "run_0123456789abcdef"


@pytest.fixture(scope="module")
def opened(owner, dataset, open_study):
    """A study that runs alone ask: a modeler disputes a query under its grant that it did not make."""
    return open_study(owner, dataset)


def _check_problem(reply, status, code):
    assert (reply.status_code, reply.headers["content-type"]) == (status, "application/problem+json"), reply.text
    problem = wire.Problem.model_validate_json(reply.content)
    assert (problem.code, problem.status) == (code, status)
    assert problem.request_id == reply.headers["x-request-id"]
    return problem


def _standing(modeler):
    return [
        modeler.rows(f"SELECT count(*) FROM {table}")[0][0] for table in ("runs", "trials", "replies", "tokens", "log")
    ]


def _case(called, /, **changes):
    return pytest.param({k: v for k, v in (SPEC | changes).items() if v is not None}, id=called)


@pytest.mark.parametrize(
    "body",
    [
        # What the wire refuses is tested there, field by field; here a few of each kind, at the door.
        _case("no token", token=None),
        _case("a curator that is no address", curator_url="curator"),
        _case("a password in the address", curator_url="http://a:b@127.0.0.1"),
        _case("plain http to another machine", curator_url="http://curator.example"),
        _case("plain http to a name that looks near", curator_url="http://localhost.example"),
        _case("a study with a path", study_id="std_0123456789abcdef/../x"),
        _case("a token with a line break", token="x\r\nX-Header: y"),
        _case("unknown field of an algorithm", algorithm={"name": "random", "delta_ucb": 0.1}),
        _case("a seed that is no whole number", seed=0.5),
        _case("a kernel without its noise", kernel={"lengthscale": 1.0, "signal_variance": 1.0}),
        _case("a name with a line break", name="a\nb"),
    ],
)
def test_a_run_that_cannot_be_right_is_refused_and_not_stored(body, modeler):
    before = _standing(modeler)
    with modeler.http() as http:
        problem = _check_problem(http.post("/v1/runs", json=body, headers={"Idempotency-Key": "bad"}), 422, "invalid")
    assert problem.errors
    assert _standing(modeler) == before


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "code"),
    [
        ("GET", "/v1/runs/x", {}, 404, "not_found"),
        ("GET", f"/v1/runs/{NOBODY}/export", {"params": {"format": "xml"}}, 422, "invalid"),
        ("POST", f"/v1/runs/{NOBODY}:stop", {"headers": {"Idempotency-Key": "k"}}, 404, "not_found"),
        ("POST", "/v1/runs", {"json": SPEC}, 400, "idempotency_key_missing"),
        ("POST", "/v1/runs", {"json": SPEC, "headers": {"Idempotency-Key": "k" * 201}}, 400, "idempotency_key_missing"),
        ("POST", "/v1/runs", {"content": b"{", "headers": JSON}, 422, "invalid"),
        ("POST", "/v1/runs", {"content": b"\xff", "headers": JSON}, 422, "invalid"),
        ("POST", "/v1/runs", {"content": b"x" * ((1 << 20) + 1)}, 413, "too_large"),
        ("POST", "/v1/runs", {"content": (b"x" * (1 << 15) for _ in range(33)), "headers": JSON}, 413, "too_large"),
        ("DELETE", "/v1/runs", {}, 405, "method_not_allowed"),
        ("GET", "/v1/runs", {"params": {"page_size": "0"}}, 422, "invalid"),
        ("GET", "/v1/studies", {}, 404, "not_found"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_bad_requests_have_their_documented_answer(method, path, sent, status, code, modeler):
    before = _standing(modeler)
    with modeler.http() as http:
        _check_problem(http.request(method, path, **sent), status, code)
        assert http.get("/readyz").json()["status"] == "ok"
    assert _standing(modeler) == before


@pytest.mark.parametrize(
    "body",
    [
        SPEC | {"algorithm": {"name": CANARY}},
        SPEC | {"curator_url": f"ftp://{CANARY}"},
        SPEC | {"curator_url": f"http://{CANARY}.example"},
        SPEC | {"study_id": CANARY},
        SPEC | {"token": CANARY * 30},
        SPEC | {"token": [CANARY]},
        SPEC | {"name": f"{CANARY}\n"},
        SPEC | {"seed": CANARY},
        SPEC | {"more": CANARY},
    ],
    ids=str,
)
def test_what_was_sent_is_neither_echoed_nor_logged(body, modeler):
    with modeler.http() as http:
        reply = http.post("/v1/runs", json=body, headers={"Idempotency-Key": "canary"})
    assert reply.status_code == 422
    assert CANARY not in reply.text + repr(reply.headers.items())
    assert CANARY not in modeler.log
    assert TOKEN not in reply.text


def test_a_run_started_again_under_its_key_is_the_same_run(modeler, curator, opened, run_of, vendor):
    spec = run_of(curator.url, opened, iterations=3).model_dump(mode="json")
    with modeler.http() as http:
        key = {"Idempotency-Key": "one run"}
        first = http.post("/v1/runs", json=spec, headers=key)
        assert (first.status_code, first.json()["state"]) == (201, "queued")
        again = http.post("/v1/runs", json=spec, headers=key)
        assert (again.status_code, again.content) == (201, first.content)
        assert again.headers["idempotency-replayed"] == "true"
        other = http.post("/v1/runs", json=spec | {"seed": 9}, headers=key)
        _check_problem(other, 422, "idempotency_key_reused")
    ended = vendor.wait(first.json()["id"], timeout_s=60)
    assert (ended.state, ended.trials) == ("completed", 4)
    assert modeler.rows("SELECT count(*) FROM trials WHERE run_id = ?", ended.id) == [(4,)]


def test_a_token_of_the_curator_opens_nothing_at_the_modeler(modeler, curator, opened):
    for token in (curator.token, opened.token):
        with modeler.http(token) as http:
            _check_problem(http.get("/v1/runs"), 401, "unauthenticated")


def test_a_run_with_a_token_that_is_none_fails_as_unauthenticated(curator, opened, vendor, run_of):
    spec = run_of(curator.url, opened).model_copy(update={"token": TOKEN})
    run = vendor.wait(vendor.start(spec).id, timeout_s=60)
    assert (run.state, run.problem.code, run.trials) == ("failed", "unauthenticated", 0)
    assert "refused this grant: mistyped, expired or revoked. Ask the owner" in run.problem.detail
    assert TOKEN not in run.model_dump_json()


# --- a curator that does not keep to the protocol -------------------------------------------------


@pytest.fixture
def hostile():
    """A server that answers every request with what ``reply`` says."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, kind, body = self.server.reply(self.path)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def honest(curator, opened):
    """Study and candidates of an honest curator."""
    with curator.http(opened.token) as http:
        path = f"/v1/studies/{opened.id}"
        return http.get(path).json(), http.get(f"{path}/candidates").content


def _npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("lie", ["page", "500", "not finite", "pickle", "shape", "digest", "huge", "text", "more rows"])
def test_a_curator_that_lies_fails_the_run_and_nothing_else(
    lie, hostile, honest, vendor, modeler, opened, run_of, tmp_path
):
    study, file = honest
    z = np.frombuffer(file[-6400:]).reshape(400, 2).copy()
    if lie == "not finite":
        z[3, 1] = np.nan
        file = _npy(z)
    if lie == "pickle":
        file = _npy(np.array([[Bomb(tmp_path / "unpickled")] * 2] * 400, dtype=object))
    if lie == "shape":
        file = _npy(z.T.copy())
    if lie == "text":
        file = b"no matrix"
    digest = "0" * 64 if lie == "digest" else hashlib.sha256(file).hexdigest()
    study = study | {"release_sha256": digest} | {"huge": {"n": 10**12}, "more rows": {"n": 401}}.get(lie, {})

    def reply(path):
        if lie == "page":
            return 200, "text/html", f"<h1>{CANARY}</h1>".encode()
        if lie == "500":
            return 500, "text/html", CANARY.encode()
        if path.endswith("/candidates"):
            return 200, "application/x-npy", file
        return 200, "application/json", json.dumps(study).encode()

    hostile.reply = reply
    url = f"http://127.0.0.1:{hostile.server_address[1]}"
    run = vendor.wait(vendor.start(run_of(url, opened, iterations=2)).id, timeout_s=60)
    assert (run.state, run.ended_because, run.trials) == ("failed", "failed", 0)
    assert run.problem.code in ("unreachable", "protocol_violated", "numerical_failure")
    assert CANARY not in run.model_dump_json() + modeler.log
    assert not (tmp_path / "unpickled").exists()
    assert not list((modeler.data / "candidates").glob("*.part"))
    assert modeler.rows("SELECT count(*) FROM trials WHERE run_id = ?", run.id) == [(0,)]
