"""The owner's system and the curator fail, die and come back: each measurement is made once, and published."""

import os
import signal
import time
from contextlib import closing
from functools import partial

import pytest

from blindopt.errors import Remote
from tests import beside
from tests.curator_service.queries.inbox.owners_system import KEY, serve_owners_system

FAILED = 503, b"", {}
MANY = 60


@pytest.fixture
def system():
    with serve_owners_system() as system:
        yield system


@pytest.fixture
def curator_of(make_service, tmp_path):
    """Makes a curator that calls an owner's system."""

    def make(system, **settings):
        secret = tmp_path / "secret"
        secret.write_text(KEY)
        webhook = {"measurer_url": system.url, "measurer_secret_file": str(secret), "measurer_timeout_seconds": "5"}
        return make_service("curator", tmp_path, **webhook, **settings)

    return make


@pytest.fixture
def open_study(open_measured):
    """Opens a study that the owner's system measures."""
    return partial(open_measured, source="webhook")


def attempts(curator, measurement):
    with closing(beside.connect(curator.database)) as db:
        return db.execute("SELECT attempts, next_at, problem FROM measurements WHERE id = ?", (measurement,)).fetchone()


def check_measured_once(system, study, *queries):
    """All queries are answered with what the system measured, and it worked once for each measurement."""
    items = [item for query in queries for item in study.items(query.id)]
    assert {item.state for item in items} == {"answered"}
    assert [item.value for item in items] == [item.record / 1000 for item in items]
    assert [system.worked[item.id] for item in items] == [1] * len(items)


def test_a_system_that_fails_a_few_times_measures_each_once(system, curator_of, open_study):
    system.fails = lambda call, before: FAILED if before < 2 else None
    curator = curator_of(system).start()
    with open_study(curator) as study:
        query = study.ask(3, 5)
        assert study.modeler.query(query.id, wait_s=50)[0].state == "answered"
        check_measured_once(system, study, query)
        items = study.items(query.id)
        assert {call.key for call in system.calls} == {item.id for item in items}
        assert [system.call_count(item.id) for item in items] == [3, 3]
        assert {item.system for item in items} == {None}
        assert system.forged == 0


def killed_between(system, curator, study, until, module=""):
    """The curator dies between the measurement and the reply; the system goes too, and both come back."""
    pids = [curator.process.pid]

    def dies(call, before):
        if pids:
            system.measure(call, system.calls[-1].key)
            os.kill(pids.pop(), signal.SIGKILL)
            return FAILED
        return None

    system.fails = dies
    query = study.ask(7)
    curator.process.wait(30)
    system.close()
    (item,) = curator_rows(curator, query.id)
    curator.start()
    until(lambda: study.measurer.measurement(item).system.problem)  # it was asked, and nobody was there
    before = attempts(curator, item)
    curator.kill()
    assert attempts(curator, item)[0] >= before[0] > 0
    curator.start()
    waits = study.measurer.measurement(item).system
    assert (waits.state, waits.attempts >= before[0]) == ("waiting", True)
    system.open()
    assert study.modeler.query(query.id, wait_s=50)[0].state == "answered"
    return query


def curator_rows(curator, query_id):
    with closing(beside.connect(curator.database)) as db:
        return [row[0] for row in db.execute("SELECT id FROM measurements WHERE query_id = ?", (query_id,))]


def test_a_kill_between_work_and_answer_makes_no_work_twice(system, curator_of, open_study, until):
    curator = curator_of(system).start()
    with open_study(curator) as study:
        query = killed_between(system, curator, study, until)
        check_measured_once(system, study, query)
        assert system.call_count(study.items(query.id)[0].id) >= 2
    verified = curator.run("audit", "verify")
    assert (verified.returncode, verified.stderr) == (0, "")


@pytest.mark.slow(sibling="test_a_kill_between_work_and_answer_makes_no_work_twice")
def test_a_curator_that_asks_under_a_new_key_is_caught(system, curator_of, open_study, until):
    """The control: the same way, and the system works twice."""
    curator = curator_of(system)
    curator.module = "tests.curator_service.queries.inbox.new_key_curator"
    curator.start()
    with open_study(curator) as study:
        query = killed_between(system, curator, study, until)
        with pytest.raises(AssertionError):
            check_measured_once(system, study, query)
        assert system.worked[study.items(query.id)[0].id] == 2


@pytest.mark.slow(sibling="test_a_system_that_fails_a_few_times_measures_each_once")
def test_a_system_that_is_down_is_asked_by_few_and_then_measures_all(system, curator_of, open_study, until):
    """Sixty wait: a few find out that it is down, from then on one call at a time asks whether it is back."""
    system.fails = lambda call, before: (500, b"", {})
    curator = curator_of(system, query_rows_max="1000").start()
    with open_study(curator) as study:
        queries = [study.ask(*range(at, at + 30), key=f"from {at}") for at in range(0, MANY, 30)]
        held = until(lambda: (state := study.measurer.system()).failures >= 6 and state)
        assert (held.state, held.waiting, held.given_up) == ("held", MANY, 0)
        assert held.problem == "the other party answered 500"
        assert held.next_at is not None
        calls = list(system.calls)
        assert {call.beside for call in calls[4:]} == {0}  # four threads, then one at a time
        assert len({call.measurement for call in calls}) < 12
        system.fails = lambda call, before: None
        tried = study.measurer.try_again()
        assert 0 < tried.measurements < 12  # those that had failed; all others are due
        for query in queries:
            assert study.modeler.query(query.id, wait_s=50)[0].state == "answered"
        check_measured_once(system, study, *queries)
        back = study.measurer.system()
        assert (back.state, back.failures, back.problem, back.waiting) == ("asked", 0, None, 0)


def test_what_a_system_says_of_when_to_come_back_holds(system, curator_of, open_study):
    """Another measurement waits, too. Only a lower bound on the time is checked."""
    system.fails = lambda call, before: (429, b"", {"Retry-After": "3"}) if len(system.calls) == 1 else None
    curator = curator_of(system).start()
    with open_study(curator) as study:
        first = study.ask(3)
        while not system.calls:
            time.sleep(0.01)
        time.sleep(0.3)
        waits = study.items(first.id)[0].system
        second = study.ask(4)
        for query in (first, second):
            assert study.modeler.query(query.id, wait_s=50)[0].state == "answered"
        assert min(call.at for call in system.calls[1:]) - system.calls[0].at >= 2.9
        assert (waits.state, waits.attempts, waits.problem) == ("waiting", 1, "the other party answered 429")


def test_what_is_too_old_is_left_to_people_and_is_tried_when_somebody_says_so(system, curator_of, open_study, until):
    system.fails = lambda call, before: (200, b'{"value": "a text of the system"}', {})
    curator = curator_of(system, measurer_hours="0.0001").start()
    with open_study(curator) as study:
        query = study.ask(3)
        item = until(lambda: (shown := study.items(query.id)[0]).problem and shown)
        call = item.system
        assert (item.state, call.state, call.attempts, call.next_at) == ("open", "given_up", 3, None)
        assert item.problem == call.problem == '"value" must be a number'
        assert [given_up.id for given_up in study.measurer.inbox_page(system="given_up").items] == [item.id]
        assert study.measurer.inbox_page(system="waiting").items == []
        assert study.measurer.system().given_up == 1
        curator.kill()
        curator.start()
        time.sleep(1.0)  # a restart by itself asks for nothing that was given up
        assert system.call_count(item.id) == 3
        system.fails = lambda call, before: None
        tried = study.measurer.try_again(item.id, key="again")
        assert tried.measurements == 1
        assert study.modeler.query(query.id, wait_s=50)[0].state == "answered"
        check_measured_once(system, study, query)
        assert study.measurer.try_again(item.id, key="again") == tried  # the stored reply: no call is made
        with pytest.raises(Remote, match="answered"):
            study.measurer.try_again(item.id)
        with pytest.raises(Remote, match="no such measurement"):
            study.measurer.try_again("msr_0123456789abcdef")
        (details,) = [r["details"] for r in curator.records() if r["kind"] == "measurement.tried_again"]
        assert details == {"measurements": 1, "measurement_id": item.id}
        assert "a text of the system" not in curator.log + str(curator.records())


@pytest.mark.slow(sibling="test_what_is_too_old_is_left_to_people_and_is_tried_when_somebody_says_so")
def test_while_the_system_is_down_what_is_too_old_is_left_to_people_without_being_asked_for(
    system, curator_of, open_study, until
):
    system.close()
    curator = curator_of(system, measurer_hours="0.001").start()
    with open_study(curator) as study:
        query = study.ask(*range(40), key="many")
        until(lambda: study.measurer.system().given_up == 40)
        items = study.items(query.id)
        (problem,) = {item.problem for item in items}
        assert problem.startswith("nothing listens at http://127.0.0.1:")
        assert problem.endswith(": check the address and its port")
        assert min(item.system.attempts for item in items) == 0
        system.open()
        assert study.measurer.try_again().measurements == 40
        assert study.modeler.query(query.id, wait_s=50)[0].state == "answered"
        check_measured_once(system, study, query)


def test_there_is_nothing_to_try_where_people_measure(owner, dataset, open_measured, curator):
    with open_measured(curator, dataset.id) as study:
        item = study.items(study.ask(3).id)[0]
        assert item.system is None
        with pytest.raises(Remote, match="MEASURER_URL"):
            study.measurer.try_again(item.id)
        state = study.measurer.system()
        assert (state.state, state.waiting, state.given_up) == ("none", 0, 0)
