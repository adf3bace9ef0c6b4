"""Runs over a bad network, by a socket or by a link, whose connections the curator opens: nothing else changes."""

import json
import os

import httpx
import pytest

from blindopt import wire
from blindopt.client import Owner, Vendor
from tests.plain_browser import Browser
from tests.system.crashes import crash_checks as checks
from tests.system.meddler import between, cut, in_turn, late, middlebox, refused, reordered, repeated, truncated

RUNS, ITERATIONS = 3, 12
MANY = int(os.environ.get("BLINDOPT_CRASHES", "1")) > 1  # as in `make soak`


@pytest.fixture(scope="module")
def parties(make_service, tmp_path_factory):
    folder = tmp_path_factory.mktemp("links")
    quick = {"retry_seconds_max": "0.2", "retry_attempts": "40", "countersign_every": "5"}
    quick["curator_timeout_seconds"] = "5"
    curator = make_service("curator", folder, part_bytes="2400")  # the candidates come in three parts, side by side
    return curator.start(), make_service("modeler", folder, **quick).start()


@pytest.fixture(scope="module")
def linked(parties, tmp_path_factory, until):
    """Makes the link as its two users do; returns its address and how to point it elsewhere."""
    curator, modeler = parties
    file = tmp_path_factory.mktemp("link") / "link.json"
    made = modeler.run("link", "create", "hospital", "--url", modeler.url, "--save", str(file))
    assert made.returncode == 0, made.stderr
    assert file.stat().st_mode & 0o077 == 0
    token = json.loads(file.read_text())["token"]
    assert token not in made.stdout

    def connect(url):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"url": url}))
        added = curator.run("link", "add", str(file))
        assert added.returncode == 0, added.stderr
        assert token not in added.stdout + curator.run("link", "list").stdout
        with curator.http() as http:
            until(
                lambda: [(v["url"], v["state"]) for v in http.get("/v1/links").json()["links"]] == [(url, "connected")]
            )

    connect(modeler.url)
    return wire.LinkFile.model_validate_json(file.read_text()), connect


@pytest.fixture(scope="module")
def undisturbed(parties, open_study, small, run_of):
    """The study, and the rows that each seed chooses over a socket of the curator's."""
    curator, modeler = parties
    with Owner(curator.url, curator.token) as owner, Vendor(modeler.url, modeler.token) as vendor:
        opened = open_study(owner, owner.register("small", small.csv, public=True))
        started = [vendor.start(run_of(curator.url, opened, iterations=ITERATIONS, seed=s)).id for s in range(RUNS)]
        assert [vendor.wait(run, timeout_s=240).state for run in started] == ["completed"] * RUNS
        return opened, [[t.row for t in vendor.export(run).trials] for run in started]


def _play(parties, undisturbed, run_of, address):
    """Runs at an address of the curator: all complete with the rows of undisturbed ones, each charged once."""
    curator, modeler = parties
    opened, expected = undisturbed
    with Owner(curator.url, curator.token) as owner, Vendor(modeler.url, modeler.token) as vendor:
        before = owner.balance(opened.id).total_plays
        started = [vendor.start(run_of(address, opened, iterations=ITERATIONS, seed=s)).id for s in range(RUNS)]
        ended = [vendor.wait(run, timeout_s=240) for run in started]
        assert [(run.state, run.problem) for run in ended] == [("completed", None)] * RUNS
        assert [[t.row for t in vendor.export(run).trials] for run in started] == expected
        assert owner.balance(opened.id).total_plays - before == sum(map(len, expected))


def test_a_run_over_a_link_chooses_what_it_chooses_over_a_socket(parties, linked, undisturbed, run_of):
    curator, modeler = parties
    (candidates,) = (modeler.data / "candidates").iterdir()
    candidates.unlink()
    _play(parties, undisturbed, run_of, f"link://{linked[0].id}")
    lines = [line for line in map(json.loads, curator.log.splitlines()) if line["message"] == "request"]
    over = [line["route"] for line in lines if line["client"] == f"link:{linked[0].id}" and line["status"] == 200]
    fetches = [route for route in over if "candidates" in route]
    assert set(fetches) == {"/v1/studies/{study_id}/candidates/parts/{part}"}
    assert 3 <= len(fetches) <= 3 * RUNS  # runs that begin together fetch it each
    with modeler.http() as http:
        (view,) = http.get("/v1/links").json()["links"]
    assert (view["state"], view["address"], view["waiting"]) == ("connected", f"link://{linked[0].id}", 0)


def test_a_request_over_a_link_has_one_id_in_the_logs_of_both_processes(parties, linked):
    sent, answered = (
        {line["request_id"]: line for line in map(json.loads, party.log.splitlines()) if line["message"] == message}
        for party, message in zip(reversed(parties), ("exchange", "request"), strict=True)
    )
    over = {identity for identity, line in answered.items() if line["client"] == f"link:{linked[0].id}"}
    assert len(over) >= RUNS * ITERATIONS
    assert over <= sent.keys()
    assert {sent[each]["status"] for each in over} == {answered[each]["status"] for each in over}


def test_both_home_pages_show_the_link_and_its_state(parties, linked, tmp_path):
    (tmp_path / "password").write_text("correct horse battery staple")
    for service in parties:
        assert service.run("user", "add", "ann", "--password-file", str(tmp_path / "password")).returncode == 0
        with httpx.Client(base_url=service.url, trust_env=False, timeout=60) as client:
            browser = Browser(service.url, client)
            browser.send("POST", "/console/login", data={"name": "ann", "password": "correct horse battery staple"})
            browser.get("/")
        assert browser.status == 200
        assert f"connected grants have the address link://{linked[0].id}" in browser.shown


def test_a_new_grant_has_the_address_of_the_only_link(parties, linked, undisturbed):
    curator, _ = parties
    with Owner(curator.url, curator.token) as owner:
        grant = owner.grant(undisturbed[0].id, wire.GrantCreate(name="acme"))
    assert grant.url == f"link://{linked[0].id}"


@pytest.mark.slow(every=7)
@pytest.mark.parametrize("fault", [late, refused, cut, repeated, reordered, middlebox("reply of before"), in_turn])
def test_a_bad_network_changes_no_choice_and_no_charge(parties, undisturbed, run_of, fault):
    with between(parties[0], fault) as net:
        _play(parties, undisturbed, run_of, net.url)
        assert net.seen
        assert min(net.seen.values()) >= (2 if fault is in_turn else 3), f"hardly anything happened: {net.seen}"


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("fault", [cut, repeated, *((late, refused, truncated) if MANY else ())])
def test_a_bad_network_under_a_link_changes_no_choice_and_no_charge(parties, linked, undisturbed, run_of, fault):
    with between(parties[1], fault) as net:
        linked[1](net.url)
        _play(parties, undisturbed, run_of, f"link://{linked[0].id}")
        assert min(net.seen.values()) >= 3, f"hardly anything happened: {net.seen}"
        linked[1](parties[1].url)


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("party", [0, 1])
def test_a_kill_in_the_middle_changes_no_choice_and_no_charge(parties, linked, undisturbed, run_of, until, party):
    opened, expected = undisturbed
    curator, modeler = parties
    with Vendor(modeler.url, modeler.token) as vendor:
        settings = run_of(f"link://{linked[0].id}", opened, iterations=40, seed=1)
        run = vendor.start(settings).id
        until(lambda: vendor.run(run).view.trials >= 8)
        parties[party].kill()
        parties[party].start()
    with Vendor(modeler.url, modeler.token) as vendor:
        ended = vendor.wait(run, timeout_s=240)
        assert (ended.state, ended.problem) == ("completed", None)
        rows = [t.row for t in vendor.export(run).trials]
    assert rows[: len(expected[1])] == expected[1]
    with Owner(curator.url, curator.token) as owner:
        assert owner.balance(opened.id).total_plays >= len(rows)


def test_after_all_of_this_both_logs_verify_and_say_the_same(parties, undisturbed, tmp_path):
    for service in parties:
        checks.check_service(service)
    checks.check_reconciled(*parties, [undisturbed[0].id], tmp_path)


def test_a_revoked_link_is_refused_and_both_sides_say_so(parties, linked, until):
    curator, modeler = parties
    kid = linked[0].token.removeprefix("blindopt_").partition(".")[0]
    assert modeler.run("token", "revoke", kid).returncode == 0
    with curator.http() as http:
        until(lambda: http.get("/v1/links").json()["links"][0]["state"] == "trying", 60)
        assert "refuses the token" in http.get("/v1/links").json()["links"][0]["problem"]
    with modeler.http() as http:
        assert http.get("/v1/links").json()["links"][0]["state"] == "revoked"
