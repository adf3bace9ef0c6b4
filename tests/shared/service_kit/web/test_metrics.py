"""/metrics: off unless asked for, for its own role, and nothing in it but counts."""

import re
from typing import get_args

import pytest

from blindopt import wire
from blindopt.client import Owner, StudyClient, Vendor
from blindopt.errors import StateConflict
from curator_service.context import open_context as open_curator
from curator_service.settings import Settings as CuratorSettings
from modeler_service.context import open_context as open_modeler
from modeler_service.settings import Settings as ModelerSettings
from service_kit.web.metrics import METHODS, PATH, Metrics
from service_kit.web.peers import Kind
from tests.curator_service.tuning.scoring.scorer import KEY, serving
from tests.curator_service.tuning_case import registered

pytest.importorskip("prometheus_client", reason="extra metrics")

WITHOUT_LABELS = (
    "blindopt_login_failed_total", "blindopt_log_sound", "blindopt_ready", "blindopt_leader", "blindopt_replicas",
    "blindopt_replication_lag_bytes", "blindopt_log_checkpoint_age_seconds", "blindopt_database_bytes",
    "blindopt_disk_bytes", "blindopt_disk_free_bytes", "blindopt_budget_share_max", "blindopt_commit_seconds_count",
    "blindopt_commit_seconds_sum", "blindopt_figures_unread_total", "blindopt_log_bytes_total",
    "blindopt_log_quota_share_max", "blindopt_log_quota_refused_total", "blindopt_log_archive_failed",
)  # fmt: skip
LABELS = {name: set() for name in WITHOUT_LABELS} | {
    "blindopt_requests_total": {"method", "route", "status"},
    "blindopt_request_seconds_bucket": {"method", "route", "le"},
    "blindopt_request_seconds_count": {"method", "route"},
    "blindopt_request_seconds_sum": {"method", "route"},
    "blindopt_jobs": {"kind", "state"},
    "blindopt_notices": {"state"},
    "blindopt_links": {"state"},
    "blindopt_peer_errors_total": {"kind"},
    "blindopt_commit_seconds_bucket": {"le"},
}
FRACTIONS = ("_sum", "_age_seconds", "_share_max")
CONTEXTS = {"curator": (open_curator, CuratorSettings), "modeler": (open_modeler, ModelerSettings)}
STATES = {
    "pending", "delivered", "connected", "trying", "absent", "revoked", "running", "completed", "failed", "cancelled",
    "queued", "paused", "waiting", "stopped",
}  # fmt: skip
SCORE = 0.7182818
ID = re.compile(r"[0-9a-f]{8}")
"""Ids, key ids and digests have such a part."""


def _samples(text):
    """Name, labels and value of each sample; comments are help and type alone."""
    samples = []
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP|TYPE) blindopt_\w+ .*", line)
            continue
        name, labels, value = re.fullmatch(r"(\w+)(\{.*\})? (\S+)", line).groups()
        samples.append((name, dict(re.findall(r'(\w+)="([^"]*)"', labels or "")), float(value)))
    return samples


def _issued(service, role):
    """A token, issued beside the service."""
    open_context, settings = CONTEXTS[service.name]
    with open_context(settings(data_dir=service.data)) as context:
        return context.authentication.issue(role, role, days=1)[0].text


def _read(service, token):
    with service.http(token) as http:
        reply = http.get(PATH)
        assert reply.status_code == 200, reply.text
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return reply.text


@pytest.fixture(scope="module")
def parties(make_service, tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "key").write_text(KEY)
    with serving(lambda request, count: (200, b'{"score": %r}' % SCORE)) as scorer:
        settings = {"metrics": "true", "scorer_url": scorer.url, "scorer_secret_file": str(folder / "key")}
        curator = make_service("curator", folder, **settings).start()
        yield curator, make_service("modeler", folder, metrics="true").start()


@pytest.fixture(scope="module")
def played(parties, small, open_study, run_of):
    """A run, a query, a released tuning, refusals and unknown paths; and the texts that metrics must not contain."""
    curator, modeler = parties
    with Owner(curator.url, curator.token) as owner, Vendor(modeler.url, modeler.token) as vendor:
        answers = wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=1.0)
        study = open_study(owner, owner.register("zq_name", small.csv, public=True), answers=answers)
        run = vendor.wait(vendor.start(run_of(curator.url, study, iterations=4)).id, timeout_s=60)
        with StudyClient(curator.url, study.token, study.id) as client:
            reply, _ = client.ask(wire.QueryRequest(rows=[wire.RowPlays(row=9)]), key="zq-key")
        case = registered(owner, m=50)
        tuning = owner.wait_tuning(owner.start_tuning(case.http("1")).id, timeout_s=60)
        assert (run.state, tuning.state) == ("completed", "completed")
        trials = vendor.export(run.id).trials
    for service in parties:
        with service.http("blindopt_0000000000000000.zq_wrong") as http:
            http.get("/v1/zq_path")
        with service.http() as http:
            http.get("/v1/zq_path/../zq_other?zq_query=1")
            http.request("ZQMETHOD", "/v1/meta")
            http.get("/v1/runs/run_0000000000000000" if service is modeler else "/v1/tunings/tun_0000000000000000")
    values = [tuning.result.value, reply.answers[0].y, *(trial.y for trial in trials)]
    secrets = [study.token, curator.token, modeler.token]
    words = [study.id, study.grant_id, study.kid, run.id, tuning.id, case.validation.id, "zq", "ZQ", "blindopt_0"]
    words += [token.partition(".")[2] for token in secrets]
    # Of nine characters, which no sum of milliseconds begins with.
    return study, [*words, *secrets, f"{SCORE:.6g}", *(repr(value)[:9] for value in values)]


@pytest.mark.parametrize("party", ["curator", "modeler"])
def test_after_private_queries_it_tells_counts_by_fixed_labels_and_nothing_else(parties, played, party):
    service = parties[party == "modeler"]
    text = _read(service, _issued(service, "monitor"))
    with service.http() as http:
        templates = set(http.get("/openapi.json").json()["paths"]) | {"unmatched"}
    for name, labels, _ in _samples(text):
        assert set(labels) == LABELS[name]
        assert labels.get("route", "unmatched") in templates
        assert labels.get("method", "other") in METHODS | {"other"}
        assert labels.get("status", "2xx") in {"2xx", "3xx", "4xx", "5xx", "none"}
        assert labels.get("kind", "run") in {"run", "tuning", "forecast", *get_args(Kind)}
        assert labels.get("state", "running") in STATES
        assert not ID.search(" ".join(labels.values()))
    for forbidden in played[1]:
        assert forbidden not in text
    assert all(value == int(value) for name, _, value in _samples(text) if not name.endswith(FRACTIONS))


def test_the_check_would_find_a_path_or_a_value(played):
    """The control: the same check on an exposition that has a path, a key or a value in it."""
    metrics = Metrics(tuple)
    metrics.count_request("GET", f"/v1/studies/{played[1][0]}", 200, 0.01)
    metrics.count_request("GET", f"/v1/{played[1][-1]}", 200, 0.01)
    text = bytes(metrics.exposition().body).decode()
    assert played[1][0] in text
    assert played[1][-1] in text
    assert any(ID.search(" ".join(labels.values())) for _, labels, _ in _samples(text))


def test_a_duration_is_reported_to_the_millisecond():
    """The time of a draw depends on what was drawn. The control: a millisecond more is visible."""

    def exposition(seconds):
        metrics = Metrics(tuple)
        metrics.count_request("POST", "/v1/studies/{study_id}/queries", 201, seconds)
        return bytes(metrics.exposition().body)

    assert exposition(0.020031) == exposition(0.020446)
    assert exposition(0.020031) != exposition(0.021031)


def test_counts_are_those_of_what_was_asked(parties, played):
    curator, modeler = parties
    before = {(n, *sorted(labels.items())): v for n, labels, v in _samples(_read(curator, curator.token))}
    with curator.http() as http:
        for _ in range(3):
            assert http.get("/v1/tunings/tun_0000000000000000").status_code == 404
        form = {"name": "zq_nobody", "password": "zq_guess"}
        assert http.post("/console/login", data=form, headers={"origin": curator.url}).status_code == 401
    after = {(n, *sorted(labels.items())): v for n, labels, v in _samples(_read(curator, curator.token))}
    labels = ("method", "GET"), ("route", "/v1/tunings/{tuning_id}")
    counted, timed = (
        ("blindopt_requests_total", *labels, ("status", "4xx")),
        ("blindopt_request_seconds_count", *labels),
    )
    assert [after[key] - before[key] for key in (counted, timed)] == [3, 3]
    assert after["blindopt_login_failed_total",] - before["blindopt_login_failed_total",] == 1
    assert after["blindopt_jobs", ("kind", "tuning"), ("state", "completed")] == 1
    queries = ("blindopt_requests_total", ("method", "POST"), ("route", "/v1/studies/{study_id}/queries"))
    assert after[*queries, ("status", "2xx")] == 1 + 5
    of_modeler = _samples(_read(modeler, modeler.token))
    assert ("blindopt_jobs", {"kind": "run", "state": "completed"}, 1) in of_modeler


def test_gauges_tell_the_size_of_the_database_and_the_disk(parties, played):
    curator, modeler = parties
    figures = {name: value for name, labels, value in _samples(_read(curator, curator.token)) if not labels}
    stored = sum(path.stat().st_size for path in curator.data.glob("curator.sqlite*"))
    assert 0 < figures["blindopt_database_bytes"] <= 2 * stored
    assert 0 < figures["blindopt_disk_free_bytes"] < figures["blindopt_disk_bytes"]
    assert figures["blindopt_log_checkpoint_age_seconds"] <= 60
    assert figures["blindopt_log_sound"] == figures["blindopt_ready"] == 1
    assert "blindopt_budget_share_max" not in {name for name, _, _ in _samples(_read(modeler, modeler.token))}


def test_commits_are_counted_until_a_study_hides_how_long_its_answers_take(parties, played, open_study, small):
    for service in parties:
        counts = {n: v for n, _, v in _samples(_read(service, service.token)) if n.startswith("blindopt_commit")}
        assert counts["blindopt_commit_seconds_count"] >= 5
    curator = parties[0]
    with Owner(curator.url, curator.token) as owner:
        paced = open_study(owner, owner.register("zq_paced", small.csv, public=True), reply_after_ms=100)
        assert "blindopt_commit" not in _read(curator, curator.token)
        owner.close_study(paced.id)
    assert "blindopt_commit" in _read(curator, curator.token)


def test_only_a_monitor_and_the_main_role_may_read_it(parties, played):
    for service, others in zip(parties, (("auditor", "measurer"), ("viewer",)), strict=True):
        with service.http("") as http:
            assert http.get(PATH).status_code == 401
        for role in others:
            with service.http(_issued(service, role)) as http:
                assert http.get(PATH).status_code == 403
        with service.http(_issued(service, "monitor")) as http:
            assert http.get(PATH).status_code == 200
            contract = http.get("/openapi.json").json()
        assert contract["paths"][PATH]["get"]["security"] == [{"token": []}]
    with parties[0].http(played[0].token) as http:  # a modeler's grant
        assert http.get(PATH).status_code == 403


def test_it_is_off_unless_asked_for(curator, modeler):
    for service in (curator, modeler):
        with service.http() as http:
            assert http.get(PATH).status_code == 404
            assert PATH not in http.get("/openapi.json").json()["paths"]


def test_without_the_library_a_service_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(StateConflict, match=r"pip install ./shared '\.\[metrics\]'"):
        Metrics(tuple)
