"""Runs that are paused, resumed, stopped, that wait for their curator, and whose worker is stuck."""

import socket
import threading
import time
from contextlib import closing, suppress

import pytest

from blindopt import wire
from blindopt.client import Owner, Vendor
from blindopt.errors import AuditUnavailable, Remote
from modeler_service import store
from modeler_service.runs import scheduler
from tests.modeler_service.in_process_modeler import modeler_at_work, request_of
from tests.modeler_service.in_process_modeler import start as start_run
from tests.tcp_proxy import TcpProxy

LENGTH = 70


@pytest.fixture(scope="module")
def own_curator(make_service, tmp_path_factory):
    """A curator that these tests kill."""
    return make_service("curator", tmp_path_factory.mktemp("pause")).start()


@pytest.fixture(scope="module")
def quick(make_service, tmp_path_factory):
    """A modeler that is quick to give up, to wait, and to take a run from its worker; two workers."""
    settings = {
        "retry_attempts": "2",
        "retry_seconds_max": "0.2",
        "wait_seconds_first": "0.2",
        "wait_seconds_max": "0.4",
        "lease_seconds": "1.5",
        "curator_timeout_seconds": "60",
        "concurrent_runs": "2",
    }
    return make_service("modeler", tmp_path_factory.mktemp("pause"), **settings).start()


@pytest.fixture
def vendor(quick):
    if quick.process.poll() is not None:
        quick.start()
    with Vendor(quick.url, quick.token) as client:
        yield client


@pytest.fixture(scope="module")
def exact(own_curator, small, open_study):
    """A study without noise: which rows a run asks depends on its seed and the answers alone."""
    with Owner(own_curator.url, own_curator.token) as owner:
        return open_study(owner, owner.register("small", small.csv, public=True))


@pytest.fixture
def start(own_curator, exact, vendor, run_of):
    """Starts a run of LENGTH trials."""
    if own_curator.process.poll() is not None:
        own_curator.start()

    def start_on(url=own_curator.url, seed=3, opened=exact):
        return vendor.start(run_of(url, opened, iterations=LENGTH, initial_rows=0, seed=seed)).id

    return start_on


@pytest.fixture(scope="module")
def undisturbed(quick, own_curator, exact, run_of):
    """The rows of a run without any disturbance."""
    with Vendor(quick.url, quick.token) as client:
        run = client.start(run_of(own_curator.url, exact, iterations=LENGTH, initial_rows=0, seed=3))
        assert client.wait(run.id, timeout_s=60).state == "completed"
        return [trial.row for trial in client.export(run.id).trials]


@pytest.fixture
def silent(own_curator):
    """A curator that takes every connection and never finishes an answer."""
    with closing(Relay(own_curator.port, silent=True)) as curator:
        yield curator


def rows_of(vendor, run_id):
    return [trial.row for trial in vendor.export(run_id).trials]


def finished(vendor, run_id):
    run = vendor.wait(run_id, timeout_s=60)
    assert (run.state, run.ended_because, run.trials, run.problem) == ("completed", "budget", LENGTH, None)
    return rows_of(vendor, run_id)


# --- pause, resume, stop --------------------------------------------------------------------------------------


@pytest.mark.slow(sibling="test_a_run_that_waits_can_be_paused_resumed_and_stopped")
def test_a_paused_run_halts_and_a_resumed_run_queries_the_rows_of_an_undisturbed_run(
    start, vendor, until, undisturbed, own_curator
):
    run = start()
    for moment in (10, 40):
        until(lambda at=moment: vendor.run(run).view.trials >= at)
        vendor.pause(run)
        paused = until(lambda: (view := vendor.run(run).view).state == "paused" and view)
        assert moment <= paused.trials < LENGTH
        assert (paused.ended_at, paused.ended_because, paused.waits_until) == (None, None, None)
        queries = own_curator.rows("SELECT count(*) FROM queries WHERE idempotency_key LIKE ?", f"{run}:%")[0][0]
        assert queries == paused.trials == vendor.run(run).view.trials  # no query is sent meanwhile
        assert vendor.resume(run).state in ("queued", "running")
    assert finished(vendor, run) == undisturbed


def test_pausing_and_resuming_twice_changes_nothing(start, vendor, until, undisturbed):
    run = start()
    until(lambda: vendor.run(run).view.trials >= 5)
    for _ in range(2):
        vendor.pause(run)
    until(lambda: vendor.run(run).state == "paused")
    assert vendor.pause(run).state == "paused"
    for _ in range(3):
        vendor.resume(run)
    assert finished(vendor, run) == undisturbed


def test_a_pause_that_is_taken_back_at_once_does_not_lose_the_run(start, vendor, undisturbed):
    """Whichever comes first, the halt or the resumption."""
    run = start()
    for _ in range(25):
        if vendor.run(run).view.ended_at is not None:
            break
        vendor.pause(run)
        vendor.resume(run)
    assert finished(vendor, run) == undisturbed


def test_a_run_is_stopped_from_every_state_and_then_stays_so(start, vendor, until, silent):
    running, paused = start(), start(seed=4)
    until(lambda: vendor.run(paused).view.trials >= 3)
    vendor.pause(paused)
    until(lambda: vendor.run(paused).state == "paused")
    vendor.stop(running)
    assert until(lambda: (view := vendor.run(running).view).ended_at and view).state == "stopped"
    # Both workers are kept busy by a curator that does not answer, so that a third run waits in the queue.
    stuck = [start(silent.url, seed=n) for n in (1, 2)]
    queued = start(seed=5)
    for run in (queued, paused, running):
        assert vendor.stop(run).state == "stopped"
        assert vendor.run(run).view.ended_because == "stopped"
        for again in (vendor.resume, vendor.pause):
            with pytest.raises(Remote) as refused:
                again(run)
            assert refused.value.remote_code == "state_conflict"
        assert vendor.stop(run).state == "stopped"
    assert vendor.run(queued).view.trials == 0
    assert vendor.run(paused).view.trials >= 3
    for run in stuck:  # a request that cannot be called back: the lease ends it
        with suppress(Remote):
            vendor.stop(run)
        until(lambda run=run: vendor.run(run).view.ended_at)


# --- waiting --------------------------------------------------------------------------------------------------


def test_a_run_whose_curator_is_gone_waits_and_goes_on_by_itself(start, vendor, until, undisturbed, own_curator):
    run = start()
    until(lambda: vendor.run(run).view.trials >= 10)
    own_curator.kill()
    waiting = until(lambda: (view := vendor.run(run).view).state == "waiting" and view)
    assert waiting.problem.code == "unreachable"
    assert waiting.waits_until is not None
    assert waiting.ended_at is None
    assert 10 <= waiting.trials < LENGTH
    own_curator.start()
    assert finished(vendor, run) == undisturbed


def test_a_run_that_waits_can_be_paused_resumed_and_stopped(start, vendor, until, own_curator):
    paused, stopped = start(), start(seed=4)
    until(lambda: min(vendor.run(paused).view.trials, vendor.run(stopped).view.trials) >= 5)
    own_curator.kill()
    until(lambda: {vendor.run(run).state for run in (paused, stopped)} == {"waiting"})
    vendor.pause(paused)
    vendor.stop(stopped)
    until(lambda: (vendor.run(paused).state, vendor.run(stopped).state) == ("paused", "stopped"))
    own_curator.start()
    assert vendor.run(paused).view.waits_until is None
    vendor.resume(paused)
    finished(vendor, paused)
    assert vendor.run(stopped).state == "stopped"


def test_a_run_without_an_answer_at_the_first_contact_fails(start, vendor):
    run = vendor.wait(start("http://127.0.0.1:9"), timeout_s=60)
    assert (run.state, run.ended_because, run.problem.code, run.trials) == ("failed", "failed", "unreachable", 0)


def test_a_run_that_waited_longer_than_it_may_fails(make_service, tmp_path, open_study, small, run_of, until):
    curator = make_service("curator", tmp_path).start()
    limits = {"wait_hours": "0.0003", "wait_seconds_first": "0.2", "wait_seconds_max": "0.2", "retry_attempts": "1"}
    modeler = make_service("modeler", tmp_path, **limits).start()
    with Owner(curator.url, curator.token) as owner, Vendor(modeler.url, modeler.token) as client:
        opened = open_study(owner, owner.register("small", small.csv, public=True))
        run = client.start(run_of(curator.url, opened, iterations=300)).id
        until(lambda: client.run(run).view.trials >= 3)
        curator.kill()
        until(lambda: client.run(run).state == "waiting")
        ended = client.wait(run, timeout_s=60)
    assert (ended.state, ended.ended_because, ended.problem.code) == ("failed", "failed", "unreachable")
    assert ended.trials >= 3
    modeler.stop()


# --- stuck workers --------------------------------------------------------------------------------------------


@pytest.mark.slow(sibling="test_a_run_whose_curator_falls_silent_in_the_middle_waits_and_goes_on")
def test_a_curator_that_never_finishes_its_answer_costs_its_run_its_worker_and_no_other_run(
    start, vendor, until, silent, undisturbed, bad_network, own_curator, quick
):
    """Each byte is in time for the socket's timeout; only the lease ends it. There are two workers."""
    stuck = [start(silent.url, seed=n) for n in range(4)]
    assert finished(vendor, start()) == undisturbed
    for run in stuck:
        ended = until(lambda run=run: (view := vendor.run(run).view).ended_at and view)
        assert (ended.state, ended.problem.code, ended.problem.detail) == ("failed", "unreachable", scheduler.STUCK)
    # What was stuck writes no more, though its connection still lives.
    before = [vendor.run(run).view for run in stuck]
    silent.close()
    assert finished(vendor, start()) == undisturbed
    assert [vendor.run(run).view for run in stuck] == before


def test_a_run_whose_curator_falls_silent_in_the_middle_waits_and_goes_on(
    start, vendor, until, undisturbed, own_curator
):
    relay = Relay(own_curator.port)
    with closing(relay):
        run = start(relay.url)
        until(lambda: vendor.run(run).view.trials >= 10)
        relay.silent = True
        waiting = until(lambda: (view := vendor.run(run).view).state == "waiting" and view)
        assert waiting.problem.detail == scheduler.STUCK
        relay.silent = False
        assert finished(vendor, run) == undisturbed


class Relay(TcpProxy):
    """Passes bytes on; while ``silent`` it takes connections and sends a byte of a header now and then."""

    def __init__(self, port, *, silent=False):
        self.silent = silent
        super().__init__(port)

    def _carry(self, source, target, carried, remaining):
        if not any(carried is back for back in self.back):
            super()._carry(source, target, carried, remaining)
            return
        with suppress(OSError):
            while data := source.recv(65_536):
                if not self.silent:
                    target.sendall(data)
                    continue
                target.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while self.silent:
                    target.sendall(b"x")
                    time.sleep(0.05)
                target.shutdown(socket.SHUT_RDWR)
                return


# --- restarts -------------------------------------------------------------------------------------------------


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_restart_leaves_each_run_in_its_state(how, start, vendor, until, undisturbed, own_curator, quick):
    paused, stopped, waiting = start(), start(seed=4), start(seed=5)
    until(lambda: min(vendor.run(run).view.trials for run in (paused, stopped)) >= 3)
    vendor.pause(paused)
    vendor.stop(stopped)
    until(lambda: (vendor.run(paused).state, vendor.run(stopped).state) == ("paused", "stopped"))
    until(lambda: vendor.run(waiting).view.trials >= 3)
    own_curator.kill()
    until(lambda: vendor.run(waiting).state == "waiting")
    getattr(quick, how)()
    quick.start()
    assert [vendor.run(run).state for run in (paused, stopped)] == ["paused", "stopped"]
    assert vendor.run(waiting).state in ("waiting", "queued", "running")
    own_curator.start()
    assert len(finished(vendor, waiting)) == LENGTH
    assert [vendor.run(run).state for run in (paused, stopped)] == ["paused", "stopped"]
    vendor.resume(paused)
    assert finished(vendor, paused) == undisturbed


@pytest.mark.slow(sibling="test_a_restart_leaves_each_run_in_its_state")
def test_queued_and_running_runs_go_on_after_a_kill(start, vendor, until, undisturbed, quick):
    started = [start() for _ in range(4)]  # two workers: two are queued
    until(lambda: vendor.run(started[0]).view.trials >= 5)
    quick.kill()
    quick.start()
    for run in started:
        assert finished(vendor, run) == undisturbed


# --- moments that are hard to meet: in one process, with a stand-in for the work of a run -----------------------


class StandIn:
    """Works on a run until it is interrupted; completes it once ``done`` is set."""

    def __init__(self):
        self.begun, self.done, self.at_once = 0, threading.Event(), 0

    def of(self, context, settings, folder, identity, lease_number, interrupt, crowded):
        self.interrupt = interrupt
        return self

    def work(self):
        self.begun += 1
        self.at_once += 1
        try:
            while not self.done.wait(0.005):
                self.interrupt.check()
            return {"state": "completed", "ended_because": "budget"}
        finally:
            self.at_once -= 1


@pytest.fixture
def work():
    return StandIn()


@pytest.fixture
def modeler(tmp_path, work):
    with modeler_at_work(tmp_path, worker=work.of, concurrent_runs=3) as modeler:
        yield modeler


def test_a_run_with_another_token_is_taken_up_again(modeler, work, until):
    """Other workers are idle: one of them may look at the run before its own has let it go."""
    database = modeler.context.database

    def wait_for_another(number):
        if number == 2:  # the run was taken, and has ended
            with suppress(AssertionError):
                until(lambda: database.writes > 2, within=0.5)

    database.after_write = wait_for_another
    run = start_run(modeler)
    until(lambda: work.begun == 1)
    modeler.replace_token(request_of(modeler), run, wire.TokenReplacement(token="another"))
    until(lambda: work.begun >= 2)
    work.done.set()
    assert until(lambda: modeler.run(run).ended_at and modeler.run(run)).state == "completed"


def test_a_run_that_is_resumed_at_the_moment_it_is_paused_goes_on(modeler, work, until):
    def resume(number):
        if number == 2:
            assert modeler.run(run).state == "paused"
            modeler.resume(request_of(modeler), run)
            until(lambda: modeler.scheduler.is_queue_empty)

    modeler.context.database.after_write = resume
    run = start_run(modeler)
    until(lambda: work.begun == 1)
    modeler.pause(request_of(modeler), run)
    until(lambda: work.begun >= 2)
    work.done.set()
    assert until(lambda: modeler.run(run).ended_at and modeler.run(run)).state == "completed"


@pytest.mark.parametrize(("command", "state"), [("pause", "paused"), ("stop", "stopped")])
def test_a_run_that_is_paused_or_stopped_at_the_moment_it_is_taken_halts(modeler, work, until, command, state):
    def halt(number):
        if number == 1:
            with modeler.context.database.read() as db:
                identity = store.run_page(db, position=None, newest=False, limit=1)[0].id
            getattr(modeler, command)(request_of(modeler), identity)

    modeler.context.database.after_write = halt
    run = start_run(modeler)
    until(lambda: modeler.run(run).state == state)
    until(lambda: work.at_once == 0)


def test_a_run_that_is_in_the_queue_twice_is_worked_on_once(modeler, work, until):
    run = start_run(modeler)
    until(lambda: work.begun == 1)
    for _ in range(20):
        modeler.scheduler.submit(run)
    until(lambda: modeler.scheduler.is_queue_empty)
    assert (work.begun, work.at_once) == (1, 1)
    modeler.pause(request_of(modeler), run)
    until(lambda: modeler.run(run).state == "paused")
    for _ in range(20):
        modeler.scheduler.submit(run)
    until(lambda: modeler.scheduler.is_queue_empty)
    assert (work.begun, modeler.run(run).state) == (1, "paused")


def test_a_run_whose_end_could_not_be_stored_is_taken_up_when_it_can(tmp_path, work, until):
    """A full disk must not leave a run that says it is running and has no worker."""
    failed = []

    def fill(number):
        if number in (2, 4):  # each follows a write that takes the run
            failed.append(number)
            raise AuditUnavailable("the disk is full")

    with modeler_at_work(tmp_path, worker=work.of, concurrent_runs=1, wait_seconds_first=0.2) as modeler:
        modeler.context.database.before_write = fill
        work.done.set()
        run = start_run(modeler)
        assert until(lambda: modeler.run(run).ended_at and modeler.run(run)).state == "completed"
    assert failed == [2, 4]
