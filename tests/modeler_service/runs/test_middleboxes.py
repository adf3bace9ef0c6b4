"""Proxies, filters and login pages between the parties: no word of the curator, so nothing to dispute."""

import json
from types import SimpleNamespace

import pytest

from blindopt import wire
from blindopt.client import StudyClient
from blindopt.client.connection import Watch
from blindopt.errors import Unreachable
from modeler_service.runs.scheduler import is_cut_off
from tests.system.meddler import MIDDLEBOXES, between, middlebox

SAYS = {
    "web page": "something between you and the curator answered with a web page (200): a login page, a filter or",
    "error page": "something between you and the curator answered with a web page (502)",
    "blocking page": "something between you and the curator answered with a web page (403)",
    "redirect": "something between you and the curator answered with a redirect (302), perhaps to a login page",
    "json of its own": "a reply (200) arrived without the curator's receipt",
    "cut JSON": "did not arrive as it was sent: it is not the JSON of the protocol",
    "without receipt": "arrived without the curator's receipt",
    "without headers": "arrived without the curator's receipt",
    "nothing": "something between you and the curator answered with an empty reply (204)",
    "compressed": "something on the way encoded it",
    "garbled": "did not arrive as it was sent",
    "reply of before": "the reply to another request arrived",
}
QUERY = wire.QueryRequest(rows=[wire.RowPlays(row=1)])


def test_every_kind_of_middlebox_is_tried():
    assert SAYS.keys() == {*MIDDLEBOXES, "reply of before"} - {"another type"}


@pytest.mark.parametrize("kind", SAYS)
def test_what_a_middlebox_answers_is_named_and_recorded_nowhere(kind, curator, owner, opened, tmp_path):
    token, observed = owner.grant(opened.id, wire.GrantCreate(name=kind)).token, []

    def observe(exchange, receipt):
        observed.append(exchange)

    with (
        between(curator, middlebox(kind, 1.0)) as net,
        StudyClient(net.url, token, opened.id, watch=Watch(observe)) as client,
    ):
        if kind == "reply of before":
            client.study()
            del observed[:]
        calls = [lambda: client.study(), lambda: client.revisions(), lambda: client.ask(QUERY, key=kind)]
        for call in calls:
            with pytest.raises(Unreachable) as raised:
                call()
            assert SAYS[kind] in str(raised.value)
        assert observed == []
        with pytest.raises(Unreachable):
            client.download(tmp_path / "z.npy", opened.sha256, max_bytes=1 << 20)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_media_type_changes_nothing(curator, owner, opened, tmp_path):
    token = owner.grant(opened.id, wire.GrantCreate(name="type")).token
    with between(curator, middlebox("another type", 1.0)) as net, StudyClient(net.url, token, opened.id) as client:
        assert client.study().id == opened.id
        assert client.ask(QUERY, key="k")[0].answers
        client.download(tmp_path / "z.npy", opened.sha256, max_bytes=1 << 20)


@pytest.fixture
def switched(curator):
    """A network with a login page in front of the curator from its request ``net.last`` on, until ``net.open``."""

    def fault(net, forward):
        net.turns += 1
        if net.open or net.turns < net.last:
            return forward()
        return MIDDLEBOXES["web page"]((0, [], b""))

    with between(curator, fault) as net:
        net.open, net.last = False, 6
        yield net


def test_a_run_waits_behind_a_login_page_and_goes_on_when_it_is_gone(
    switched, curator, modeler, owner, dataset, open_study, vendor, run_of, until, tmp_path
):
    study = open_study(owner, dataset)
    run = vendor.start(run_of(switched.url, study, iterations=6)).id
    waiting = until(lambda: (view := vendor.run(run).view).state == "waiting" and view)
    assert (waiting.waiting_for, waiting.problem.code, waiting.can_resume) == ("curator", "unreachable", True)
    assert SAYS["web page"] in waiting.problem.detail
    assert 0 < waiting.trials < 7
    switched.open = True
    vendor.resume(run)
    assert vendor.wait(run, timeout_s=60).state == "completed"
    reconciled(curator, modeler, study, tmp_path)


@pytest.mark.slow(sibling="test_a_run_waits_behind_a_login_page_and_goes_on_when_it_is_gone")
def test_a_run_that_met_a_login_page_first_fails_and_can_be_resumed(
    switched, curator, modeler, owner, dataset, open_study, vendor, run_of, tmp_path
):
    study = open_study(owner, dataset)
    switched.last = 0
    run = vendor.start(run_of(switched.url, study, iterations=3)).id
    failed = vendor.wait(run, timeout_s=60)
    assert (failed.state, failed.problem.code, failed.can_resume) == ("failed", "unreachable", True)
    vendor.replace_token(run, study.token)
    switched.open = True
    resumed = vendor.resume(run)
    assert (resumed.ended_at, resumed.problem) == (None, None)
    ended = vendor.wait(run, timeout_s=60)
    assert (ended.state, ended.can_resume) == ("completed", False)
    reconciled(curator, modeler, study, tmp_path)


def reconciled(curator, modeler, study, folder):
    """Both logs verify, and the parties reconcile without a difference."""
    for side in (curator, modeler):
        assert side.run_in_process("audit", "verify").returncode == 0
        (folder / side.name).write_text(side.run_in_process("audit", "export").stdout)
    compared = curator.run_in_process("audit", "reconcile", study.id, str(folder / "curator"), str(folder / "modeler"))
    assert compared.stdout.endswith(" 0 differences\n"), compared.stdout + compared.stderr


@pytest.mark.parametrize(
    ("code", "detail", "expected"),
    [
        ("unreachable", "did not answer in time", True),
        ("protocol_violated", "the reply is not what this version of the protocol says", True),  # before 0.3.0
        ("protocol_violated", "the curator's answer came without a receipt of its log", True),  # before 0.3.0
        ("protocol_violated", "the curator gave place 3 of the shared log twice", False),
        ("unauthenticated", "unauthenticated (401): ...", False),
        ("internal", "a fault on our side", False),
    ],
)
def test_what_no_curator_signed_can_be_resumed_and_a_dispute_cannot(code, detail, expected):
    problem = json.dumps({"code": code, "detail": detail})
    assert is_cut_off(SimpleNamespace(state="failed", problem=problem, archived_at=None)) is expected
    assert not is_cut_off(SimpleNamespace(state="failed", problem=problem, archived_at="2026-01-01"))
    assert not is_cut_off(SimpleNamespace(state="completed", problem=problem, archived_at=None))
