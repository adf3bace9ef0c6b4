"""Notices of real services to a real receiver: what people wait for, nothing private, and nothing lost by a kill."""

import re
from contextlib import ExitStack, closing

import pytest

from blindopt import wire
from blindopt.client import Owner, StudyClient, Vendor
from blindopt.errors import Remote
from tests import beside
from tests.builders import a_study_of
from tests.conftest import GAUSSIAN, _free_port
from tests.curator_service.tuning_case import NAMES as TUNING_NAMES
from tests.curator_service.tuning_case import registered
from tests.shared.service_kit.notices.notice_receiver import KEY, listening

LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=1.0)
BUDGET = wire.Budget(epsilon_per_row="5", epsilon_total="15", queries=10)
QUICK = wire.ForecastCreate(epsilons=["1"], mechanisms=["gaussian"], functions=2, queries=2, rows_max=10)
ID = re.compile(r"(ntc|std|qry|ds|fct|tun|run)_[0-9a-f]{16}")


@pytest.fixture(scope="module")
def parties(make_service, tmp_path_factory):
    """Both services with a receiver's address each, where nobody listens until a test does."""
    folder = tmp_path_factory.mktemp("notices")
    (folder / "key").write_bytes(KEY)
    shared = {"notify_secret_file": str(folder / "key"), "notify_timeout_seconds": "5"}
    ports = _free_port(), _free_port()
    urls = [f"http://127.0.0.1:{port}/notices" for port in ports]
    soon = {"wait_seconds_first": "0.1", "wait_seconds_max": "0.3", "retry_attempts": "1", "notify_wait_minutes": "0"}
    curator = make_service("curator", folder, notify_url=urls[0], **shared)
    modeler = make_service("modeler", folder, notify_url=urls[1], **shared, **soon)
    for service, port in ((curator, ports[0]), (modeler, ports[1])):
        service.receiver_port = port
        service.start()
    return curator, modeler


@pytest.fixture
def own(parties):
    curator, modeler = parties
    with Owner(curator.url, curator.token, timeout_s=240) as owner, Vendor(modeler.url, modeler.token) as v:
        yield owner, v


def _pending(service):
    return service.rows("SELECT count(*) FROM notices WHERE state = 'pending'")[0][0]


def _listening(service):
    return listening(port=service.receiver_port)


def _leaks(text: str, forbidden: set[str]) -> set[str]:
    """Which of the forbidden words and numbers are in a text."""
    return {word for word in forbidden if word in text and re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.])", text)}


def _private(owner, data, small):
    """A released study on private records, and a modeler's token."""
    more = {"kernel": small.kernel, "answers": LAPLACE, "budget": BUDGET, "name": "zq-study"}
    draft = owner.create_study(a_study_of(small, data.id, GAUSSIAN, **more))
    owner.release(draft.id, request=wire.ReleaseAsked(spec_sha256=draft.spec_sha256, confirm_chance=True))
    return draft.id, owner.grant(draft.id, wire.GrantCreate(name="zq-vendor")).token


def test_notices_of_a_private_study_hold_ids_and_counts_alone(parties, own, small, until):
    curator, _ = parties
    owner, _ = own
    with _listening(curator) as listener:
        data = owner.register("zq-private-file", small.csv)
        study, token = _private(owner, data, small)
        heard = []
        with StudyClient(curator.url, token, study) as client:
            for key, rows in (("a", range(7)), ("b", range(7, 8)), ("b", range(7, 8)), ("c", range(8, 10))):
                reply, _ = client.ask(wire.QueryRequest(rows=[wire.RowPlays(row=r) for r in rows]), key=key)
                heard += [answer.y for answer in reply.answers]
            with pytest.raises(Remote, match="privacy_budget_exhausted"):
                client.ask(wire.QueryRequest(rows=[wire.RowPlays(row=0)]), key="d")
        forecast = owner.wait_forecast(study, owner.start_forecast(study, QUICK).id, timeout_s=240)
        case = registered(owner, m=20)
        tuning = owner.wait_tuning(owner.start_tuning(case.spec("1", cap="1.2")).id, timeout_s=240)
        until(lambda: "tuning_ended" in listener.events and _pending(curator) == 0)
    events = [(n.event, n.subject.cap or n.subject.state, n.counts.percent) for n in listener.notices]
    assert events == [
        ("budget_80", "epsilon_per_row", 80),
        ("release_ended", "open", None),
        ("budget_80", "epsilon_total", 80),
        ("budget_80", "queries", 80),
        ("forecast_ended", None, None),
        ("budget_80", "epsilon", 83),
        ("tuning_ended", None, None),
    ]
    assert {forecast.id, tuning.id, study} <= _ids(listener)
    assert all(got.genuine for got in listener.got)
    assert [view.notice for view in owner.notices()] == listener.notices
    assert {view.state for view in owner.notices()} == {"delivered"}
    _check_silent(curator, listener, small, heard, [token, curator.token], ["zq-private-file", "zq-study", "zq-vendor"])


def _ids(listener):
    return {match[0] for got in listener.got for match in ID.finditer(got.body.decode())}


def _check_silent(service, listener, small, heard, tokens, names):
    """The whole outbox as it is stored, and all that was sent: no name, no number of a record, no y, no token."""
    numbers = {part for line in small.csv.decode().splitlines()[1:] for part in line.split(",")}
    forbidden = {*numbers, *map(repr, heard), *tokens, *names, *small.names, *TUNING_NAMES}
    forbidden |= {token.partition(".")[2] for token in tokens} | {"127.0.0.1", "notices"}
    outbox = ["|".join(map(str, row)) for row in service.rows("SELECT once, body, problem FROM notices")]
    sent = [got.body.decode() for got in listener.got]
    assert len(outbox) >= len(sent) > 0
    for text in (*outbox, *sent):
        assert not _leaks(text, forbidden), text
    for text in sent:
        assert not re.search(r"\d\.\d", re.sub(r'"at":"[^"]*"', "", text)), text
    for planted in (names[0], small.names[2], repr(heard[0]), tokens[0], sorted(numbers)[17]):  # it would be found
        assert _leaks(sent[0].replace('"sentence":"', f'"sentence":"{planted} '), forbidden)


def test_a_kill_between_cause_and_delivery_loses_nothing_and_tells_each_once(parties, own, small, open_study, until):
    curator, _ = parties
    owner, _ = own
    study = open_study(owner, owner.register("small", small.csv, public=True), budget=wire.Budget(queries=5))
    with StudyClient(curator.url, study.token, study.id) as client:
        client.ask(wire.QueryRequest(rows=[wire.RowPlays(row=3, plays=4)]), key="a")
    assert _pending(curator) == 2
    curator.kill()
    with _listening(curator) as listener:
        curator.start()
        until(lambda: _pending(curator) == 0)
        test = owner.test_notices()
        assert (test.delivered, test.problem) == (True, None)
    assert listener.events == ["release_ended", "budget_80", "test"]
    assert [n.subject.study_id for n in listener.notices[:2]] == [study.id, study.id]
    assert len(set(listener.ids)) == 3
    last = owner.notices()[-2:]
    assert [view.notice.id for view in last] == listener.ids[:2]
    assert "nothing listens there" in owner.test_notices().problem


def test_runs_that_end_fail_and_wait_send_notices(parties, own, small, open_study, run_of, until):
    curator, modeler = parties
    owner, vendor = own
    study = open_study(owner, owner.register("small", small.csv, public=True))
    named = {"name": "zq-run-name"}
    with ExitStack() as stack:
        listener = stack.enter_context(_listening(modeler))
        done = vendor.wait(vendor.start(run_of(curator.url, study, iterations=3, **named)).id, timeout_s=240)
        until(lambda: listener.events == ["run_ended"])
        bad = vendor.wait(vendor.start(run_of("http://127.0.0.1:1", study, **named)).id, timeout_s=240)
        until(lambda: len(listener.got) == 2)
        long = vendor.start(run_of(curator.url, study, iterations=150, random=True, **named))
        until(lambda: vendor.run(long.id).view.trials > 3)
        curator.kill()
        until(lambda: len(listener.got) == 3)
        waits = "SELECT waits FROM runs WHERE id = ?"
        until(lambda: modeler.rows(waits, long.id)[0][0] > 3)  # it waits again and again, and is told once
        curator.start()
        ended = vendor.wait(long.id, timeout_s=240)
        until(lambda: len(listener.got) == 4)
    assert (done.state, bad.state, ended.state) == ("completed", "failed", "completed")
    events = [(n.event, n.subject.run_id, n.subject.problem, n.counts.answers) for n in listener.notices]
    assert events[:2] == [("run_ended", done.id, None, 4), ("run_failed", bad.id, "unreachable", 0)]
    assert (events[2][0], events[2][1], events[2][2]) == ("run_waiting", long.id, "unreachable")
    assert events[3] == ("run_ended", long.id, None, 151)
    heard = [trial.y for trial in vendor.export(done.id).trials]
    _check_silent(modeler, listener, small, heard, [study.token, modeler.token], ["zq-run-name"])


def _break_the_log(service):
    with closing(beside.connect(service.database)) as db:
        beside.drop_triggers(db, "log_UPDATE")
        db.execute("UPDATE log SET body = CAST(replace(CAST(body AS TEXT), '\"v\":1', '\"v\":2') AS BLOB)")
        db.commit()


def test_a_log_that_does_not_verify_sends_a_notice_when_it_is_found(parties, until):
    _, modeler = parties
    with _listening(modeler) as listener:
        _break_the_log(modeler)
        assert modeler.run("audit", "verify").returncode == 3
        until(lambda: "log_failed" in listener.events)
        before = len(listener.got)
        with modeler.http("") as http:
            until(lambda: http.get("/readyz").status_code == 503)  # on a busy machine the result before it counts
            until(lambda: http.get("/readyz").status_code == 503)
        until(lambda: _pending(modeler) == 0)
    assert len(listener.got) <= before + 1  # told in other words, it may be another fault; not each time
    assert listener.events[before:] in ([], ["log_failed"])
