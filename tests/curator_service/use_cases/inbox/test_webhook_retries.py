"""The owner's system fails, dies and comes back, and so does the curator: each measurement is made once, and told."""

import os
import signal
import sqlite3
import time
from contextlib import closing

import pytest

from blindopt.errors import Remote
from tests.curator_service.use_cases.inbox.webhook_measurer import KEY, opened_lab

FAILED = 503, b"", {}
MANY = 200


@pytest.fixture
def lab():
    with opened_lab() as made:
        yield made


@pytest.fixture
def curator_of(make_service, tmp_path):
    """A curator whose owner's system is a lab."""

    def make(lab, **settings):
        secret = tmp_path / "secret"
        secret.write_text(KEY)
        told = {"measurer_url": lab.url, "measurer_secret_file": str(secret), "measurer_timeout_seconds": "5"}
        return make_service("curator", tmp_path, **told, **settings)

    return make


@pytest.fixture
def study_of(asked_of, small):
    """A study that the lab measures."""

    def make(curator):
        with curator.http() as http:
            files, headers = {"file": ("a.csv", small.csv)}, {"Idempotency-Key": "d"}
            made = http.post("/v1/datasets", files=files, data={"name": "n", "public": "true"}, headers=headers).json()
        return asked_of(curator, made["id"], source="webhook")

    return make


def attempts(curator, measurement):
    with closing(sqlite3.connect(f"file:{curator.database}?mode=ro", uri=True)) as db:
        return db.execute("SELECT attempts, next_at, problem FROM measurements WHERE id = ?", (measurement,)).fetchone()


def check_measured_once(lab, study, *queries):
    """All of the queries are answered with what the lab measured, and it worked once for each measurement."""
    items = [item for query in queries for item in study.of(query.id)]
    assert {item.state for item in items} == {"answered"}
    assert [item.value for item in items] == [item.record / 1000 for item in items]
    assert [lab.worked[item.id] for item in items] == [1] * len(items)


def test_a_system_that_fails_a_few_times_measures_each_once(lab, curator_of, study_of):
    lab.fails = lambda said, before: FAILED if before < 2 else None
    curator = curator_of(lab).start()
    with study_of(curator) as study:
        query = study.ask(3, 5)
        assert study.modeler.query(query.id, wait_s=50)[0].state == "answered"
        check_measured_once(lab, study, query)
        items = study.of(query.id)
        assert {call.key for call in lab.calls} == {item.id for item in items}
        assert [lab.heard(item.id) for item in items] == [3, 3]
        assert {item.system for item in items} == {None}
        assert lab.forged == 0


def killed_between(lab, curator, study, until, module=""):
    """The curator dies once the lab has measured and before it hears so; the lab is gone, too, and both come back."""
    pids = [curator.process.pid]

    def dies(said, before):
        if pids:
            lab.measure(said, lab.calls[-1].key)
            os.kill(pids.pop(), signal.SIGKILL)
            return FAILED
        return None

    lab.fails = dies
    query = study.ask(7)
    curator.process.wait(30)
    lab.close()
    (item,) = curator_rows(curator, query.id)
    curator.start()
    until(lambda: study.measurer.measurement(item).system.problem)  # it was asked, and nobody was there
    before = attempts(curator, item)
    curator.kill()
    assert attempts(curator, item)[0] >= before[0] > 0
    curator.start()
    waits = study.measurer.measurement(item).system
    assert (waits.state, waits.attempts >= before[0]) == ("waiting", True)
    lab.open()
    assert study.modeler.query(query.id, wait_s=50)[0].state == "answered"
    return query


def curator_rows(curator, query_id):
    with closing(sqlite3.connect(f"file:{curator.database}?mode=ro", uri=True)) as db:
        return [row[0] for row in db.execute("SELECT id FROM measurements WHERE query_id = ?", (query_id,))]


def test_a_kill_between_work_and_answer_makes_no_work_twice(lab, curator_of, study_of, until):
    curator = curator_of(lab).start()
    with study_of(curator) as study:
        query = killed_between(lab, curator, study, until)
        check_measured_once(lab, study, query)
        assert lab.heard(study.of(query.id)[0].id) >= 2
    told = curator.run("audit", "verify")
    assert (told.returncode, told.stderr) == (0, "")


def test_a_curator_that_asks_under_a_new_key_is_caught(lab, curator_of, study_of, until):
    """The control: the same way, and the lab works twice."""
    curator = curator_of(lab)
    curator.module = "tests.curator_service.use_cases.inbox.new_key_curator"
    curator.start()
    with study_of(curator) as study:
        query = killed_between(lab, curator, study, until)
        with pytest.raises(AssertionError):
            check_measured_once(lab, study, query)
        assert lab.worked[study.of(query.id)[0].id] == 2


def test_a_system_that_is_down_is_asked_by_few_and_then_measures_all(lab, curator_of, study_of, until):
    """Hundreds wait: a few find out that it is down, from then on one call at a time asks whether it is back."""
    lab.fails = lambda said, before: (500, b"", {})
    curator = curator_of(lab, query_rows_max="1000").start()
    with study_of(curator) as study:
        queries = [study.ask(*range(at, min(at + 100, MANY)), key=f"from {at}") for at in range(0, MANY, 100)]
        held = until(lambda: (found := study.measurer.system()).failures >= 6 and found)
        assert (held.state, held.waiting, held.given_up) == ("held", MANY, 0)
        assert held.problem == "the other party answered 500"
        assert held.next_at is not None
        heard = list(lab.calls)
        assert {call.beside for call in heard[4:]} == {0}  # four threads, then one at a time
        assert len({call.measurement for call in heard}) < 12
        lab.fails = lambda said, before: None
        told = study.measurer.try_again()
        assert 0 < told.measurements < 12  # what had failed; all others are due
        for query in queries:
            assert study.modeler.query(query.id, wait_s=50)[0].state == "answered"
        check_measured_once(lab, study, *queries)
        back = study.measurer.system()
        assert (back.state, back.failures, back.problem, back.waiting) == ("asked", 0, None, 0)


def test_what_a_system_says_of_when_to_come_back_holds(lab, curator_of, study_of):
    """For it as a whole: another measurement waits, too. The times are its own, and only a lower bound is held."""
    lab.fails = lambda said, before: (429, b"", {"Retry-After": "3"}) if len(lab.calls) == 1 else None
    curator = curator_of(lab).start()
    with study_of(curator) as study:
        first = study.ask(3)
        while not lab.calls:
            time.sleep(0.01)
        time.sleep(0.3)
        waits = study.of(first.id)[0].system
        second = study.ask(4)
        for query in (first, second):
            assert study.modeler.query(query.id, wait_s=50)[0].state == "answered"
        assert min(call.at for call in lab.calls[1:]) - lab.calls[0].at >= 2.9
        assert (waits.state, waits.attempts, waits.problem) == ("waiting", 1, "the other party answered 429")


def test_a_redirect_is_not_followed_at_a_retry_either(lab, curator_of, study_of, until):
    """Nor does a reply tell the curator another address in any other way: it calls the one of its settings."""
    with opened_lab() as elsewhere:
        steps = {0: FAILED, 1: (302, b"", {"Location": elsewhere.url}), 2: (307, b"", {"Location": elsewhere.url})}
        steps[3] = 503, b"", {"Content-Location": elsewhere.url, "Refresh": f"0; url={elsewhere.url}"}
        lab.fails = lambda said, before: steps.get(before)
        curator = curator_of(lab).start()
        with study_of(curator) as study:
            query = study.ask(3)
            assert study.modeler.query(query.id, wait_s=50)[0].state == "answered"
            assert lab.heard(study.of(query.id)[0].id) == 5
            assert elsewhere.calls == []


def test_what_is_too_old_is_left_to_people_and_is_tried_when_somebody_says_so(lab, curator_of, study_of, until):
    lab.fails = lambda said, before: (200, b'{"value": "a text of the system"}', {})
    curator = curator_of(lab, measurer_hours="0.0001").start()
    with study_of(curator) as study:
        query = study.ask(3)
        item = until(lambda: (found := study.of(query.id)[0]).problem and found)
        system = item.system
        assert (item.state, system.state, system.attempts, system.next_at) == ("open", "given_up", 3, None)
        assert item.problem == system.problem == '"value" must be a number'
        assert [one.id for one in study.measurer.inbox_page(system="given_up").items] == [item.id]
        assert study.measurer.inbox_page(system="waiting").items == []
        assert study.measurer.system().given_up == 1
        curator.kill()
        curator.start()
        time.sleep(1.0)  # a restart by itself asks for nothing that was given up
        assert lab.heard(item.id) == 3
        lab.fails = lambda said, before: None
        told = study.measurer.try_again(item.id, key="again")
        assert told.measurements == 1
        assert study.modeler.query(query.id, wait_s=50)[0].state == "answered"
        check_measured_once(lab, study, query)
        assert study.measurer.try_again(item.id, key="again") == told  # the stored reply: nothing is asked
        with pytest.raises(Remote, match="answered"):
            study.measurer.try_again(item.id)
        with pytest.raises(Remote, match="no such measurement"):
            study.measurer.try_again("msr_0123456789abcdef")
        (record,) = [one for one in curator.records() if one["kind"] == "measurement.tried_again"]
        assert record["details"] == {"measurements": 1, "measurement_id": item.id}
        assert "a text of the system" not in curator.log + str(curator.records())


def test_while_the_system_is_down_what_is_too_old_is_left_to_people_without_being_asked_for(
    lab, curator_of, study_of, until
):
    lab.close()
    curator = curator_of(lab, measurer_hours="0.001").start()
    with study_of(curator) as study:
        query = study.ask(*range(40), key="many")
        until(lambda: study.measurer.system().given_up == 40)
        items = study.of(query.id)
        assert {item.problem for item in items} == {"the connection to the other party failed (ConnectError)"}
        assert min(item.system.attempts for item in items) == 0
        lab.open()
        assert study.measurer.try_again().measurements == 40
        assert study.modeler.query(query.id, wait_s=50)[0].state == "answered"
        check_measured_once(lab, study, query)


def test_there_is_nothing_to_try_where_people_measure(owner, dataset, asked_of, curator):
    with asked_of(curator, dataset.id) as asked:
        item = asked.of(asked.ask(3).id)[0]
        assert item.system is None
        with pytest.raises(Remote, match="MEASURER_URL"):
            asked.measurer.try_again(item.id)
        told = asked.measurer.system()
        assert (told.state, told.waiting, told.given_up) == ("none", 0, 0)
