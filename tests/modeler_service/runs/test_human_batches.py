"""Batches that people measure: each candidate is a query of its own, and each answer arrives when it is measured."""

import pytest

from blindopt.client import Vendor
from tests.modeler_service.runs.test_human_measured import QUICK, replays, smooth, spec_of

BATCH = {"algorithm": "gp_bucb", "batch_size": 4, "iterations": 4, "initial_rows": 4}


@pytest.fixture(scope="module")
def own(make_service, tmp_path_factory):
    return make_service("modeler", tmp_path_factory.mktemp("batches"), **QUICK).start()


def waiting_run(vendor, inbox_curator, until):
    run = vendor.start(spec_of(inbox_curator, **BATCH)).id
    until(lambda: len(inbox_curator.open) == 4)
    until(lambda: vendor.run(run).state == "waiting")
    return run


def answers(vendor, run):
    return [trial.y for trial in vendor.export(run).trials]


def test_an_answer_of_a_batch_arrives_while_others_are_measured_in_any_order(inbox_curator, vendor, own, until):
    """Found by hand: a batch of 4 was told only when nothing of it was open; three answers waited for the fourth."""
    run = waiting_run(vendor, inbox_curator, until)
    first, second, third, fourth = inbox_curator.open
    inbox_curator.answer(third, 0.3)
    until(lambda: answers(vendor, run) == [None, None, 0.3, None])
    assert vendor.run(run).view.open_measurements == 3
    inbox_curator.answer(first, None)
    until(lambda: vendor.run(run).view.declined == 1)
    inbox_curator.answer(third, 0.35)  # a correction while others are open: it counts from the next choice on
    inbox_curator.answer(second, 0.2)
    inbox_curator.measure = smooth
    inbox_curator.answer(fourth, 0.4)
    ended = vendor.wait(run, timeout_s=30)
    assert (ended.state, ended.trials, ended.declined) == ("completed", 7, 1)
    assert answers(vendor, run)[:4] == [None, 0.2, 0.35, 0.4]
    assert [len(rows) for rows in inbox_curator.rows.values()] == [1] * 8
    trials = vendor.export(run).trials
    assert [trial.query for trial in trials] == [1] * 4 + [5] * 4  # still chosen together
    assert len({trial.query_id for trial in trials}) == 8
    replays(own, run)


def test_events_come_in_order_though_answers_do_not(inbox_curator, vendor, own, until):
    run = waiting_run(vendor, inbox_curator, until)
    first, second, third, fourth = inbox_curator.open
    inbox_curator.answer(second, 0.2)
    until(lambda: answers(vendor, run) == [None, 0.2, None, None])
    inbox_curator.measure = smooth
    for query in (first, third, fourth):
        inbox_curator.answer(query, 0.1)
    vendor.wait(run, timeout_s=30)
    with own.http() as http, http.stream("GET", f"/v1/runs/{run}/events") as stream:
        numbers = [line.removeprefix("id: ") for line in stream.iter_lines() if line.startswith("id: ")]
    assert numbers == [str(number) for number in range(1, 9)]


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("sent", [1, 3])
def test_killed_between_the_queries_of_a_batch_none_is_sent_twice(sent, inbox_curator, make_service, tmp_path, until):
    own = make_service("modeler", tmp_path, **QUICK).start()
    with Vendor(own.url, own.token) as vendor:
        killed = []

        def kill(method, path):
            if method == "POST" and path.endswith("/queries") and len(inbox_curator.rows) == sent and not killed:
                killed.append(own.kill())
                raise ConnectionAbortedError  # the reply is lost, too

        inbox_curator.after = kill
        run = vendor.start(spec_of(inbox_curator, **BATCH)).id
        until(lambda: killed)
        inbox_curator.measure = smooth
        own.start()
        for query in inbox_curator.open:
            inbox_curator.answer(query, smooth(inbox_curator.rows[query][0]))
        ended = vendor.wait(run, timeout_s=30)
        assert (ended.state, ended.trials, len(inbox_curator.rows)) == ("completed", 8, 8)
        replays(own, run)


def test_a_cap_within_a_batch_ends_the_run_after_what_was_accepted_is_measured(inbox_curator, vendor, own, until):
    inbox_curator.cap = 2
    run = vendor.start(spec_of(inbox_curator, **BATCH)).id
    until(lambda: vendor.run(run).state == "waiting")
    refused = inbox_curator.refused
    assert (len(inbox_curator.open), refused) == (2, 1)
    inbox_curator.answer(inbox_curator.open[1], 0.2)
    until(lambda: answers(vendor, run)[:2] == [None, 0.2])
    assert inbox_curator.refused == refused  # what was refused is not asked again while others are measured
    inbox_curator.answer(inbox_curator.open[0], 0.1)
    ended = vendor.wait(run, timeout_s=30)
    assert (ended.state, ended.ended_because, ended.trials) == ("completed", "refused", 2)
    assert ended.recommendation.outcomes == 2
    replays(own, run)
