"""Tests of a connection: which step fails, and the advice that comes with it."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from blindopt import wire
from blindopt.client import Owner, Vendor
from blindopt.errors import AuditUnavailable, LogBroken, Remote
from modeler_service.context import open_context
from modeler_service.runs.curator_session import open_session
from modeler_service.settings import Settings

KEY = "curator+00000000+AQ=="


@pytest.fixture(scope="module")
def trying(modeler, curator, opened_once):
    """Posts a connection test; what is not changed is right."""
    with modeler.http() as http:

        def attempt(**changed):
            access = {"curator_url": curator.url, "study_id": opened_once.id, "token": opened_once.token} | changed
            reply = http.post("/v1/connections:test", json=wire.StudyAccess(**access).model_dump(mode="json"))
            assert reply.is_success, reply.text
            assert opened_once.token not in reply.text
            return wire.ConnectionReport.model_validate_json(reply.content)

        yield attempt


@pytest.fixture(scope="module")
def opened_once(owner, dataset, open_study):
    return open_study(owner, dataset)


def states(report):
    return [step.state for step in report.steps]


def test_a_good_connection_shows_the_study(trying, curator, opened_once):
    report = trying()
    assert report.ok
    assert trying(curator_url=curator.url.replace("127.0.0.1", "curator.localhost")).ok
    assert states(report) == ["ok"] * 4
    assert (report.study.id, report.study.n) == (opened_once.id, 400)


@pytest.mark.parametrize(
    ("changed", "failing", "says"),
    [
        ({"curator_url": "http://192.0.2.1:8410"}, "address", "use https"),
        ({"curator_url": "http://localhost:{closed}"}, "reach", "nothing listens at http://"),
        ({"curator_url": "http://curator.localhost:{closed}"}, "reach", "nothing listens at http://"),
        ({"curator_url": "http://curator.localhost.example:8410"}, "address", "use https"),
        ({"curator_url": "https://name-that-is-not-there.invalid"}, "reach", "no machine of the name"),
        ({"curator_url": "https://127.0.0.1:{plain}"}, "reach", "does not speak TLS"),
        ({"curator_url": "http://127.0.0.1:{plain}"}, "reach", "not as a curator"),
        ({"token": "blindopt_0123456789abcdef." + "A" * 43}, "token", "does not know this token"),
        ({"study_id": "std_0123456789abcdef"}, "token", "not for this study"),
        ({"log_key": KEY}, "key", "by another way"),
    ],
)
def test_the_step_that_fails_is_named_with_what_to_do(trying, strangers, changed, failing, says):
    report = trying(**{name: value.format(**strangers) for name, value in changed.items()})
    names = [step.name for step in report.steps]
    at = names.index(failing)
    assert not report.ok
    assert states(report) == ["ok"] * at + ["failed"] + ["not_tried"] * (3 - at)
    assert says in report.steps[at].detail


def test_the_modelers_own_address_is_no_curator(trying, modeler):
    reach = trying(curator_url=modeler.url).steps[1]
    assert (reach.state, "not as a curator" in reach.detail) == ("failed", True)


def test_a_host_that_is_not_allowed_is_refused_in_words(modeler, vendor, opened_once, curator, make_service, tmp_path):
    strict = make_service("modeler", tmp_path, allowed_curators="curator.example").start()
    access = {"curator_url": curator.url, "study_id": opened_once.id, "token": opened_once.token}
    with strict.http(strict.token) as http:
        for path in ("/v1/connections:test", "/v1/runs"):
            refused = http.post(path, json=access, headers={"Idempotency-Key": "k"})
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
            assert "its operator has not allowed it" in refused.json()["detail"]


def test_a_principal_tests_a_connection_at_a_time_and_another_may_meanwhile(modeler, opened_once):
    """A curator that says nothing keeps a thread of the modeler's until the timeout."""
    silent = socket.create_server(("127.0.0.1", 0))
    access = {"curator_url": f"http://127.0.0.1:{silent.getsockname()[1]}", "study_id": opened_once.id, "token": "t"}
    body = wire.StudyAccess(**access).model_dump_json()
    other = modeler.run("token", "create", "--name", "o").stdout.strip()

    def try_it(token):
        with modeler.http(token) as http:
            headers = {"content-type": "application/json"}
            replies.append((token, http.post("/v1/connections:test", content=body, headers=headers)))

    replies = []
    threads = [threading.Thread(target=try_it, args=(token,)) for token in (modeler.token, other)]
    for thread in threads:
        thread.start()
    held = [silent.accept()[0] for _ in threads]
    try_it(modeler.token)
    (_, refused) = replies.pop()
    assert (refused.status_code, refused.json()["code"]) == (503, "busy")
    for connection in held:
        connection.close()
    for thread in threads:
        thread.join()
    silent.close()
    assert [reply.status_code for _, reply in replies] == [200, 200]


@pytest.fixture(scope="module")
def strangers():
    """A port where nothing listens, and one of a web server that is no curator."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *_):
            pass

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = probe.getsockname()[1]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {"closed": closed, "plain": server.server_port}
    server.shutdown()


def test_a_mistyped_study_does_not_spoil_the_grant(make_service, tmp_path, small, open_study):
    """What was refused is in both logs alike: under the same grant a run goes on, and both verify."""
    curator, modeler = make_service("curator", tmp_path).start(), make_service("modeler", tmp_path).start()
    with Owner(curator.url, curator.token) as owner, Vendor(modeler.url, modeler.token) as vendor:
        study = open_study(owner, owner.register("small", small.csv, public=True))
        access = {"curator_url": curator.url, "token": study.token, "iterations": 4}
        wrong = vendor.wait(vendor.start(wire.RunCreate(study_id="std_0123456789abcdef", **access)).id, timeout_s=60)
        assert (wrong.state, wrong.problem.code) == ("failed", "not_found")
        right = vendor.wait(vendor.start(wire.RunCreate(study_id=study.id, **access)).id, timeout_s=60)
        assert (right.state, right.ended_because) == ("completed", "budget")
        wrong = vendor.wait(vendor.start(wire.RunCreate(study_id="std_0123456789abcdef", **access)).id, timeout_s=60)
        assert wrong.problem.code == "not_found"
        mistyped = {"curator_url": curator.url, "token": study.token, "study_id": "std_fedcba9876543210"}
        with modeler.http() as http:
            assert http.post("/v1/connections:test", json=mistyped).json()["ok"] is False
    exports = []
    for side in (curator, modeler):
        assert side.run("audit", "verify").returncode == 0
        exports.append(tmp_path / f"{side.name}.jsonl")
        exports[-1].write_text(side.run("audit", "export").stdout)
    compared = curator.run("audit", "reconcile", study.id, *map(str, exports))
    assert compared.returncode == 0, compared.stdout + compared.stderr


# --- an import, which requests the study too ----------------------------------------------------------


def test_an_import_trusts_no_other_key_than_the_run_was_given_and_disputes_it(
    make_service, tmp_path, curator, owner, dataset, open_study
):
    modeler, opened = make_service("modeler", tmp_path).start(), open_study(owner, dataset)
    body = wire.ObservationImport(observations=[wire.Observation(row=0, y=0.0)])
    with Vendor(modeler.url, modeler.token) as vendor:
        for key, code in ((KEY, "protocol_violated"), (None, None)):
            spec = wire.RunCreate(
                curator_url=curator.url,
                study_id=opened.id,
                token=opened.token,
                log_key=key,
                algorithm=wire.RandomRows(name="random"),
                hold=True,
            )
            held = vendor.start(spec).id
            if code is None:
                assert vendor.import_observations(held, body).total == 1
                continue
            with pytest.raises(Remote) as refused:
                vendor.import_observations(held, body)
            assert refused.value.remote_code == code
            assert vendor.run(held).view.observations == 0
    disputes = [record["details"] for record in modeler.records() if record["kind"] == "log.disputed"]
    assert [dispute["study_id"] for dispute in disputes] == [opened.id]


def test_a_modeler_whose_log_does_not_verify_sends_no_request_for_an_import(tmp_path):
    settings = Settings(data_dir=tmp_path)
    with open_context(settings) as context:
        context.audit_trail.report(LogBroken("a record is missing"))
        access = wire.StudyAccess(curator_url="http://127.0.0.1:9", study_id="std_0123456789abcdef", token="t")
        session = open_session(context, settings, access, "t", "vendor:x")
        with pytest.raises(AuditUnavailable, match="does not verify"), session:
            pass
