"""What a kill, a shutdown and a cut connection leave: the same run, the same answers, two logs that verify."""

import signal

import pytest

from blindopt import wire
from blindopt.client import Owner, StudyClient, Vendor
from blindopt.client.connection import Watch
from blindopt.errors import Unreachable
from tests.system.crashes import crash_checks as checks

LONG = 150
"""Trials of a run that is killed: many more than are answered between two looks at it."""


@pytest.fixture(scope="module")
def parties(make_service, tmp_path_factory):
    """A curator and a modeler that these tests may kill."""
    folder = tmp_path_factory.mktemp("crashes")
    # One run at a time, so that a second one waits in the queue.
    return make_service("curator", folder).start(), make_service("modeler", folder, concurrent_runs="1").start()


@pytest.fixture
def own(parties):
    """Owner and vendor; either may have been killed by the test before."""
    for service in parties:
        if service.process.poll() is not None:
            service.start()
    curator, modeler = parties
    with Owner(curator.url, curator.token, timeout_s=300) as owner, Vendor(modeler.url, modeler.token) as vendor:
        yield owner, vendor


@pytest.fixture(scope="module")
def data(parties, small):
    with Owner(parties[0].url, parties[0].token) as owner:
        return owner.register("small", small.csv, public=True)


@pytest.fixture(scope="module")
def exact(parties, data, open_study):
    """A study without noise: the rows of a run depend on the answers, and these on nothing else."""
    with Owner(parties[0].url, parties[0].token) as owner:
        return open_study(owner, data)


@pytest.fixture(scope="module")
def noisy(parties, data, open_study):
    """A study with noise: a row that is measured again has another y."""
    with Owner(parties[0].url, parties[0].token) as owner:
        return open_study(owner, data, noise_variance=1.0)


@pytest.fixture(scope="module")
def undisturbed(parties, exact, run_of):
    """The rows of a run that nobody kills."""
    with Vendor(parties[1].url, parties[1].token) as vendor:
        run = vendor.wait(vendor.start(run_of(parties[0].url, exact, iterations=LONG, seed=3)).id, timeout_s=240)
        assert run.state == "completed"
        return [trial.row for trial in vendor.export(run.id).trials]


def _answered(service, run_id):
    """From the database, so that it can be told of a killed service too."""
    return service.rows("SELECT count(*) FROM trials WHERE run_id = ? AND y IS NOT NULL", run_id)[0][0]


def _check_story(parties, study, run, length, folder):
    """A completed run: each trial charged and answered once, the choices right, two logs that tell the same."""
    granted = checks.Study(study.id, study.token)
    assert (run.state, run.ended_because, run.trials, run.problem) == ("completed", "budget", length, None)
    checks.check_runs(*parties, granted, [run.id], length)
    checks.check_choices(parties[1], [run.id])
    for service in parties:
        checks.check_service(service)
    checks.check_reconciled(*parties, [study.id], folder)


def test_both_killed_at_once_still_end_the_run_with_one_answer_a_trial(parties, own, noisy, run_of, until, tmp_path):
    curator, modeler = parties
    _, vendor = own
    run = vendor.start(run_of(curator.url, noisy, iterations=LONG, seed=5, random=True))
    until(lambda: _answered(modeler, run.id) >= 30)
    for service in parties:
        service.process.kill()
    for service in parties:
        service.process.wait()
        service.start()
    _check_story(parties, noisy, vendor.wait(run.id, timeout_s=240), LONG + 1, tmp_path)


def test_sigterm_ends_each_service_with_0_and_the_next_start_goes_on(
    parties, own, exact, undisturbed, run_of, until, tmp_path
):
    curator, modeler = parties
    _, vendor = own
    run = vendor.start(run_of(curator.url, exact, iterations=LONG, seed=3))
    statuses = []
    for moment, service in ((15, modeler), (45, curator)):
        until(lambda at=moment: _answered(modeler, run.id) >= at)
        statuses.append(service.stop())
        assert moment <= _answered(modeler, run.id) < LONG
        service.start()
    ended = vendor.wait(run.id, timeout_s=240)
    _check_story(parties, exact, ended, LONG + 1, tmp_path)
    assert [trial.row for trial in vendor.export(run.id).trials] == undisturbed
    assert statuses == [0, 0]


def test_a_stop_that_was_accepted_survives_a_restart(parties, own, exact, run_of, until):
    """The second run waits behind the first when it is told to stop: no restart may set it going."""
    curator, modeler = parties
    _, vendor = own
    first, second = (vendor.start(run_of(curator.url, exact, iterations=20_000)).id for _ in range(2))
    until(lambda: _answered(modeler, first) >= 5)
    vendor.stop(second)
    modeler.kill()
    modeler.start()
    vendor.stop(first)
    vendor.wait(first, timeout_s=240)
    until(lambda: vendor.run(second).view.ended_at or _answered(modeler, second) >= 3)
    ended = vendor.run(second).view
    if ended.ended_at is None:
        vendor.stop(second)
        vendor.wait(second, timeout_s=240)
    assert (ended.state, ended.trials) == ("stopped", 0)


def test_sigterm_ends_a_modeler_whose_curator_is_silent(parties, own, exact, run_of, until):
    """A curator that takes the request and never answers holds up a run, not the shutdown."""
    curator, modeler = parties
    _, vendor = own
    curator.process.send_signal(signal.SIGSTOP)
    try:
        run = vendor.start(run_of(curator.url, exact, iterations=5))
        until(lambda: vendor.run(run.id).state == "running")
        assert modeler.stop() == 0
    finally:
        curator.process.send_signal(signal.SIGCONT)
        if modeler.process.poll() is None:
            modeler.kill()
    modeler.start()
    assert vendor.wait(run.id, timeout_s=240).state == "completed"


def test_an_answer_lost_on_the_way_is_answered_again_with_the_same_bytes(parties, own, noisy, bad_network):
    """The connection breaks after the curator has answered: asked again, it measures nothing anew."""
    curator, _ = parties
    query = wire.QueryRequest(rows=[wire.RowPlays(row=9, plays=3)])
    count = "SELECT count(*) FROM queries WHERE study_id = ?"
    before, size = curator.rows(count, noisy.id)[0][0], len(curator.records())
    states = []
    with bad_network(curator.port, [0, 100]) as proxy:
        with StudyClient(proxy.url, noisy.token, noisy.id, watch=Watch(lambda *what: states.append(what))) as client:
            for _ in range(2):
                with pytest.raises(Unreachable):
                    client.ask(query, key="lost-1")
            reply, last = client.ask(query, key="lost-1")
        assert proxy.broken == 2
    assert curator.rows(count, noisy.id)[0][0] == before + 1
    ((stored,),) = curator.rows("SELECT body FROM replies WHERE idempotency_key = 'lost-1'")
    assert (last.body, last.exchange.replayed) == (stored, True)
    assert wire.QueryReply.model_validate_json(stored) == reply
    recorded = [recorded_exchange for r in curator.records()[size:] if (recorded_exchange := r.get("exchange"))]
    assert [e["replayed"] for e in recorded] == [False, True, True]
    assert {e["reply_sha256"] for e in recorded} == {last.exchange.reply_sha256}
    assert [exchange.as_json() for exchange, _ in states] == []  # an answer is told by who stores it
    assert last.exchange.as_json() == recorded[-1]


def test_the_logs_of_both_verify_after_all_of_this(parties, own):
    for service in parties:
        done = service.run_in_process("audit", "verify")
        assert (done.returncode, done.stderr) == (0, "")
        size = len(service.records())
        assert done.stdout.startswith(f"valid: {size} records, root ")
