"""Errors of the program: the reply, the log of the process, and the audit log."""

import asyncio
import errno
import io
import json
import logging
import shutil
import tempfile
import threading
import time
from contextlib import ExitStack, closing, contextmanager

import httpx
import pytest
from starlette.concurrency import run_in_threadpool

from blindopt import wire
from blindopt.audit import merkle_log
from blindopt.errors import AuditUnavailable
from curator_service import app as curator_app
from curator_service.settings import Settings as CuratorSettings
from curator_service.vault import Vault
from modeler_service import app as modeler_app
from modeler_service.settings import Settings as ModelerSettings
from service_kit.cli.log_format import JsonLines
from service_kit.context.authentication import Authentication
from service_kit.context.disk_space import DiskSpace
from service_kit.store import audit_log, schema
from service_kit.web.peers import PeerErrors
from service_kit.web.service_routes import Readiness
from tests import beside, postgres
from tests.builders import a_study_of
from tests.interventions import act_before, fail_at, record_calls

CANARY = "canary7f3a9c"
QUERY = {"rows": [{"row": 1}]}


@pytest.fixture
def log():
    """What the process writes to standard error."""
    stream, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(stream), root.level
    handler.setFormatter(JsonLines())
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def curator_app_(tmp_path):
    tempdir = tempfile.tempdir
    app = curator_app.build(CuratorSettings(data_dir=tmp_path / "curator"))
    tempfile.tempdir = tempdir
    yield app
    app.state.context.database.close()


@pytest.fixture
def modeler_app_(tmp_path):
    app = modeler_app.build(ModelerSettings(data_dir=tmp_path / "modeler"))
    yield app
    app.state.modeler.close()
    app.state.context.database.close()


def ask(app, token, method, path, **sent):
    """One request, answered in this process; a fault that reaches the server raises here."""

    async def talk():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "k"} | sent.pop("headers", {})
            return await client.request(method, path, headers=headers, **sent)

    return asyncio.run(talk())


@pytest.fixture
def owner(curator_app_):
    return curator_app_.state.context.authentication.issue("owner", "o", days=1)[0].text


@pytest.fixture
def vendor(modeler_app_):
    return modeler_app_.state.context.authentication.issue("vendor", "v", days=1)[0].text


@pytest.fixture
def variance():
    """Of the measurement noise, which is drawn for each answer."""
    return 0.0


@pytest.fixture
def granted(curator_app_, owner, small, variance):
    """An open study at the curator in this process, and its modeler's token."""

    def post(path, key, **sent):
        reply = ask(curator_app_, owner, "POST", path, headers={"Idempotency-Key": key}, **sent)
        assert reply.is_success, reply.text
        return reply.json()

    files = {"files": {"file": ("s.csv", small.csv)}, "data": {"name": "s", "public": "true"}}
    dataset = post("/v1/datasets", "1", **files)
    spec = a_study_of(small, dataset["id"], of_column={"noise_variance": variance})
    study = post("/v1/studies", "2", json=spec.model_dump(mode="json"))["id"]
    post(f"/v1/studies/{study}:release", "3")
    return study, post(f"/v1/studies/{study}/grants", "4", json={"name": "m"})["token"]


def _entries(context, after=-1):
    with context.database.read() as db:
        return list(audit_log.walk(db, after=after))


def _raises(*args, **kwargs):
    try:
        raise ValueError(CANARY)
    except ValueError as error:
        raise RuntimeError(CANARY) from error


class Broken:
    """A part of a service whose every method raises."""

    def __getattr__(self, name):
        return _raises


@contextmanager
def refusing_inserts(context, table):
    """The database refuses inserts into a table meanwhile."""
    with closing(beside.connect(context.database.path)) as db:
        beside.refuse_inserts(db, table, CANARY)
        yield
        beside.drop_triggers(db, "broken")
        db.commit()


def _check_silent_500(reply, log, *, kind="RuntimeError", at="_raises:"):
    assert (reply.status_code, reply.headers["content-type"]) == (500, "application/problem+json")
    problem = wire.Problem.model_validate_json(reply.content)
    assert (problem.code, problem.status, problem.retryable) == ("internal", 500, False)
    assert problem.request_id == reply.headers["x-request-id"]
    shown = reply.text + repr(reply.headers.items())
    for word in (CANARY, "Traceback", ".py", kind):
        assert word not in shown
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert CANARY not in log.getvalue()
    faults = [line for line in lines if line["message"] == "fault"]
    assert [(line["kind"], line["level"], line["request_id"]) for line in faults] == [
        (kind, "error", problem.request_id)
    ]
    assert faults[0]["at"].startswith(at)


STUDY = {
    "name": CANARY,
    "dataset_id": "d",
    "features": [{"column": "a", "lower": 0, "upper": 1}],
    "measurement": {"column": "b", "direction": "maximize"},
    "release": {"mechanism": "identity"},
    "answers": {"mechanism": "none"},
}
FAULTS = [
    ("studies", "GET", "/v1/studies", {}),
    ("studies", "POST", "/v1/studies", {"json": STUDY}),
    ("datasets", "POST", "/v1/datasets", {"files": {"file": ("a.csv", b"a\n1\n")}, "data": {"name": "n"}}),
]


@pytest.mark.parametrize(("part", "method", "path", "sent"), FAULTS, ids=lambda v: v if isinstance(v, str) else "")
def test_an_error_in_the_curator_is_logged_by_its_type_only(part, method, path, sent, curator_app_, owner, log):
    setattr(curator_app_.state.curator, part, Broken())
    _check_silent_500(ask(curator_app_, owner, method, path, **sent), log)


@pytest.mark.parametrize(
    ("broken", "name", "path"),
    [(audit_log, "page", "/v1/audit/entries"), (Authentication, "authenticate", "/v1/studies")],
    ids=["log", "authentication"],
)
def test_an_error_in_what_both_services_share_is_logged_by_its_type_only(
    broken, name, path, curator_app_, owner, log, monkeypatch
):
    act_before(monkeypatch, broken, name, _raises)
    _check_silent_500(ask(curator_app_, owner, "GET", path), log)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_error_in_the_modeler_is_logged_by_its_type_only(method, modeler_app_, vendor, log):
    modeler, modeler_app_.state.modeler = modeler_app_.state.modeler, Broken()
    sent = {"json": {"curator_url": f"http://{CANARY}", "study_id": "std_0123456789abcdef", "token": CANARY}}
    _check_silent_500(ask(modeler_app_, vendor, method, "/v1/runs", **sent), log)
    modeler_app_.state.modeler = modeler


def test_an_error_inside_a_transaction_leaves_nothing_and_the_next_request_works(curator_app_, granted, owner, log):
    study, token = granted
    context = curator_app_.state.context
    before = context.audit_trail.head()
    path = f"/v1/studies/{study}/queries"
    with refusing_inserts(context, "replies"):  # after the query was charged and inserted
        reply = ask(curator_app_, token, "POST", path, json=QUERY)
    _check_silent_500(reply, log, kind="StoreFault", at="")
    assert [entry.record["kind"] for entry in _entries(context, before.size - 1)] == ["exchange"]  # the 500 itself
    answered = ask(curator_app_, token, "POST", path, json=QUERY)
    assert answered.status_code == 201
    assert "idempotency-replayed" not in answered.headers
    assert [entry.record["kind"] for entry in _entries(context, before.size)] == ["charge", "exchange"]
    assert merkle_log.verify(_entries(context)) == context.audit_trail.head()


@pytest.mark.parametrize("variance", [1.0])
def test_an_error_after_a_charge_keeps_it_and_the_same_key_gets_an_answer_without_another_charge(
    curator_app_, granted, log
):
    """An answer with noise is charged before it is drawn: nothing that goes wrong then may be drawn twice for free."""
    study, token = granted
    context = curator_app_.state.context
    before = context.audit_trail.head()
    path = f"/v1/studies/{study}/queries"
    with refusing_inserts(context, "replies"):
        reply = ask(curator_app_, token, "POST", path, json=QUERY)
    _check_silent_500(reply, log, kind="StoreFault", at="")
    assert ask(curator_app_, token, "POST", path, json=QUERY).status_code == 201
    kinds = [entry.record["kind"] for entry in _entries(context, before.size - 1)]
    # Charged, a 500, answered. PostgreSQL refuses with COMMIT: the charge is undone, and what was drawn thrown away.
    assert kinds == (["exchange", "charge", "exchange"] if postgres.ON else ["charge", "exchange", "exchange"])


def test_a_500_to_a_modeler_is_recorded_like_any_other_reply(curator_app_, granted):
    """The modeler's log has the 500, so the curator's log must have it, too."""
    study, token = granted
    context = curator_app_.state.context
    before = context.audit_trail.head().size
    curator_app_.state.curator.queries.ask = _raises
    reply = ask(curator_app_, token, "POST", f"/v1/studies/{study}/queries", json=QUERY)
    assert reply.status_code == 500
    exchanges = [entry.record.get("exchange") for entry in _entries(context, before - 1)]
    assert [(e["status"], e["reply_sha256"]) for e in exchanges] == [(500, merkle_log.sha256(reply.content))]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_without_its_record_an_exchange_does_not_happen(method, curator_app_, granted, monkeypatch):
    """The record of an answer shares its transaction; any other reply is held back until it is recorded."""
    study, token = granted

    paths = {"GET": f"/v1/studies/{study}/candidates", "POST": f"/v1/studies/{study}/queries"}
    sent = {"json": {"rows": [{"row": 2}]}} if method == "POST" else {}
    with monkeypatch.context() as broken:
        fail_at(broken, audit_log, "append", AuditUnavailable("the disk is full"))
        reply = ask(curator_app_, token, method, paths[method], **sent)
    assert (reply.status_code, reply.json()["code"], reply.json()["retryable"]) == (503, "audit_unavailable", True)
    assert reply.headers["retry-after"] == "1"
    assert b"NUMPY" not in reply.content
    again = ask(curator_app_, token, method, paths[method], **sent)
    assert again.is_success
    assert "idempotency-replayed" not in again.headers


@pytest.mark.parametrize("kind", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
def test_a_full_disk_is_reported_and_stores_nothing(kind, curator_app_, owner, monkeypatch):
    sent = {"files": {"file": ("a.csv", b"a\n1\n")}, "data": {"name": "n"}}
    with monkeypatch.context() as broken:
        fail_at(broken, Vault, "new_dataset", OSError(kind, CANARY, CANARY))
        reply = ask(curator_app_, owner, "POST", "/v1/datasets", **sent)
    assert (reply.status_code, reply.json()["code"], reply.json()["retryable"]) == (503, "storage_unavailable", True)
    assert CANARY not in reply.text
    assert ask(curator_app_, owner, "GET", "/v1/datasets").json()["datasets"] == []
    assert ask(curator_app_, owner, "POST", "/v1/datasets", **sent).status_code == 201


def test_a_database_that_cannot_be_read_for_now_is_reported_as_such(curator_app_, owner):
    """As many slow readers as there are connections."""
    database = curator_app_.state.context.database
    with ExitStack() as readers:
        for _ in range(18):
            db = readers.enter_context(database.read())
        db.engine.pool._timeout = 0.05
        reply = ask(curator_app_, owner, "GET", "/v1/studies")
    assert (reply.status_code, reply.json()["code"], reply.json()["retryable"]) == (503, "storage_unavailable", True)
    assert ask(curator_app_, owner, "GET", "/v1/studies").status_code == 200


def _change_last_record(context):
    with closing(beside.connect(context.database.path)) as db, db:
        beside.drop_triggers(db, "log_UPDATE")
        db.execute("UPDATE log SET body = CAST(? AS BLOB) WHERE seq = (SELECT max(seq) FROM log)", (CANARY,))


@pytest.mark.parametrize("fault", ["a trigger", "the log"])
def test_a_service_whose_database_or_log_is_damaged_is_not_ready(fault, curator_app_, owner):
    context = curator_app_.state.context
    if fault == "the log":
        _change_last_record(context)
    else:
        context.database.write(lambda db: beside.drop_triggers(db, "log_DELETE"))
    reply = ask(curator_app_, "", "GET", "/readyz")
    assert (reply.status_code, reply.json()["code"]) == (503, "audit_unavailable")
    assert CANARY not in reply.text
    assert ask(curator_app_, "", "GET", "/healthz").status_code == 200


def test_while_the_disk_is_nearly_full_no_new_work_begins_and_other_requests_go_on(curator_app_, modeler_app_, owner):
    vendor = modeler_app_.state.context.authentication.issue("vendor", "v", days=1)[0].text
    study, csv = "/v1/studies/std_0123456789abcdef", {"file": ("d.csv", b"a,b\n1,2\n")}
    run = wire.RunCreate(curator_url="http://127.0.0.1:1", study_id="std_0123456789abcdef", token="t" * 80, name="r")
    work = {
        (curator_app_, owner): {
            "/v1/datasets": {"files": csv, "data": {"name": "d"}},
            "/v1/uploads": {"files": csv},
            f"{study}:release": {},
            f"{study}/forecasts": {"json": {}},
            "/v1/tunings": {"json": {}},
        },
        (modeler_app_, vendor): {"/v1/runs": {"json": run.model_dump(mode="json")}},
    }
    for (app, token), requests in work.items():
        kept = app.state.disk
        app.state.disk = DiskSpace(kept._folder, kept.free * 2)
        for path, sent in requests.items():
            reply = ask(app, token, "POST", path, **sent, headers={"Idempotency-Key": path})
            assert (reply.status_code, reply.json()["code"]) == (503, "storage_unavailable"), path
            assert "DISK_MIN_BYTES" in reply.json()["detail"]
        assert ask(app, token, "GET", "/v1/runs" if app is modeler_app_ else "/v1/datasets").status_code == 200
        app.state.disk = kept
        for path, sent in requests.items():  # the control: with room, each comes to its own check
            reply = ask(app, token, "POST", path, **sent, headers={"Idempotency-Key": f"{path} again"})
            assert reply.status_code != 503, path


def test_a_monitor_reads_at_readyz_schema_and_disk_and_nobody_else_does(tmp_path):
    tempdir = tempfile.tempdir
    app = curator_app.build(CuratorSettings(data_dir=tmp_path / "curator"))
    full = curator_app.build(CuratorSettings(data_dir=tmp_path / "full", disk_min_bytes=1 << 60))
    tempfile.tempdir = tempdir
    issue = app.state.context.authentication.issue
    monitor, auditor = (issue(role, role, days=1)[0].text for role in ("monitor", "auditor"))
    shown = ask(app, monitor, "GET", "/readyz").json()
    assert shown["schema_version"] == schema.VERSION
    assert 0 < shown["disk_free_bytes"] < shutil.disk_usage(tmp_path).total
    for token in ("", auditor, "blindopt_0000000000000000.x"):
        assert ask(app, token, "GET", "/readyz").json() == {"status": "ok"}
    reply = ask(full, "", "GET", "/readyz")
    assert (reply.status_code, reply.json()["code"]) == (503, "storage_unavailable")
    assert "DISK_MIN_BYTES" in reply.json()["detail"]
    for each in (app, full):
        each.state.context.database.close()


@pytest.mark.parametrize("status", [200, 503])
def test_frequent_readiness_requests_share_one_check(status, curator_app_, owner, monkeypatch):
    """The request needs no token, and a check writes to the disk: its result is reused, whatever it is."""
    context = curator_app_.state.context
    if status == 503:
        _change_last_record(context)
    checks = record_calls(monkeypatch, context.database, "check_writable")
    began = time.monotonic()
    assert [ask(curator_app_, "", "GET", "/readyz").status_code for _ in range(5)] == [status] * 5
    assert 1 <= len(checks) <= 1 + (time.monotonic() - began)  # one a second, where the machine is busy


def test_health_is_reported_while_every_thread_waits_and_the_disk_is_slow(curator_app_):
    """Uploads once held all threads, and a check of the database takes as long as the disk does."""
    free, begun = threading.Event(), threading.Event()
    check = curator_app_.state.context.audit_trail.check_ready
    readiness = Readiness(check, oldest_seconds=3600.0)  # a busy machine may take 10 s for three
    curator_app_.state.readiness = readiness

    async def talk():
        transport = httpx.ASGITransport(curator_app_)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get("/readyz")).status_code == 200
            readiness._check = lambda: (begun.set(), free.wait())  # hangs, where it was well a moment ago
            waiting = [asyncio.create_task(run_in_threadpool(free.wait)) for _ in range(60)]
            await asyncio.sleep(0)
            try:
                statuses = [(await client.get(path)).status_code for path in ("/healthz", "/readyz", "/healthz")]
                assert begun.is_set()
            finally:
                free.set()
            await asyncio.gather(*waiting)
            return statuses

    assert asyncio.run(talk()) == [200, 200, 200]


def test_a_formatted_traceback_is_its_type_alone(log):
    logger = logging.getLogger("some.library")
    try:
        _raises()
    except RuntimeError:
        logger.exception("it failed", extra={"fields": {"run": "run_1"}})
    line = json.loads(log.getvalue())
    assert line.items() >= {"message": "it failed", "error": "RuntimeError", "run": "run_1", "level": "error"}.items()
    assert CANARY not in log.getvalue()


def test_a_host_header_does_not_change_what_was_asked(curator_app_, granted):
    """The log and the idempotency of a request read its path; the bearer chooses the Host header."""
    study, token = granted
    context = curator_app_.state.context
    path = f"/v1/studies/{study}/queries"
    for host in ("evil/v2", "evil?x=", "evil#", "[::1", "a b", ""):
        reply = ask(curator_app_, token, "POST", path, json=QUERY, headers={"Host": host})
        assert reply.status_code in (201, 400), host
        exchange = _entries(context)[-1].record["exchange"]
        assert exchange["path"] == path, host


# --- errors of peers ----------------------------------------------------------------------------------


def test_a_client_that_goes_in_the_midst_of_its_body_is_a_peer_and_no_fault(modeler_app_, log):
    """Of a body that a route reads itself. The control is each fault above."""
    token, link = modeler_app_.state.context.authentication.issue("link", "l", days=1)
    headers = {"authorization": f"Bearer {token.text}", "content-type": "application/octet-stream"}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": f"/v1/links/{link.id}:reply",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("192.0.2.1", 1),
    }

    async def talk():
        messages = iter([{"type": "http.request", "body": b"{", "more_body": True}])

        async def receive():
            return next(messages, {"type": "http.disconnect"})

        async def send(message):
            raise AssertionError(message)

        await modeler_app_(scope, receive, send)

    for _ in range(3):
        asyncio.run(talk())
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["peer"] for line in lines if line["message"] == "peer"] == ["192.0.2.1"]
    assert [line for line in lines if line["level"] == "error"] == []
    assert modeler_app_.state.peers.counts["disconnected"] == 3


def test_each_peer_and_kind_is_logged_once_a_minute_and_counted_each_time(log):
    now = [0.0]
    peers = PeerErrors(lambda: now[0])
    for now[0] in (0.0, 1.0, 59.9, 60.0, 61.0):
        for peer in ("link:a", "link:b"):
            peers.note("not_allowed", peer, request_id=f"{now[0]}")
    peers.note("unreachable", "link:a")
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    seen = [(line["peer"], line["code"], line.get("request_id")) for line in lines]
    often = [(peer, "not_allowed", at) for at in ("0.0", "60.0") for peer in ("link:a", "link:b")]
    assert seen == [*often, ("link:a", "unreachable", None)]
    assert peers.counts == {"disconnected": 0, "not_allowed": 10, "unreachable": 1, "protocol_violated": 0}
