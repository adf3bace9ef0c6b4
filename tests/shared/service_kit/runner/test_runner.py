"""The runner of long work: its queues, every end of a task, and the process that one task leaves for the next."""

import os
import signal
import threading
from contextlib import contextmanager

import pytest

from blindopt.errors import Busy
from service_kit.runner.runner import Kind, Runner, Task
from tests.shared.service_kit.runner.echo_program import PROGRAM, Job, Reply

BUSY = Busy("another one runs", seconds=1)


# --- turns --------------------------------------------------------------------------------------------------


class Held:
    """Work that goes on until it may end."""

    def __init__(self):
        self.begun, self.go = [], threading.Event()

    def __call__(self, task):
        self.begun.append(task.id)
        self.go.wait(60)


def ids(kind):
    return [(task.id, before) for task, before in kind.under_way()]


def test_so_many_run_at_once_and_others_wait_in_their_order(until):
    kind, work = Kind("kind", PROGRAM, at_once=2), Held()
    for number, turns in enumerate((1, 1, 2, 1)):
        assert kind.submit(Task(kind, str(number), turns=turns), work) == []
    until(lambda: len(work.begun) == 2)
    assert ids(kind) == [("0", 0), ("1", 0), ("2", 2), ("3", 3)]  # the large one is not passed
    kind.cancel("2")
    assert ids(kind) == [("0", 0), ("1", 0), ("3", 2)]
    work.go.set()
    until(lambda: not ids(kind))
    assert sorted(work.begun[:2]) == ["0", "1"]
    assert work.begun[2:] == ["2", "3"]


def test_the_newest_is_next_where_few_may_wait_and_older_ones_give_way(until):
    kind, work = Kind("kind", PROGRAM, waiting_max=2), Held()
    dropped = []
    for number in range(5):
        dropped += kind.submit(Task(kind, str(number)), work)
        until(lambda: work.begun)
    assert [task.id for task in dropped] == ["1", "2"]
    work.go.set()
    until(lambda: not ids(kind))
    assert work.begun == ["0", "4", "3"]


def test_one_that_waits_in_its_thread_is_refused_after_a_while_and_gives_its_place_back(until):
    kind, work = Kind("kind", PROGRAM), Held()
    kind.submit(Task(kind, "first"), work)
    with pytest.raises(Busy), kind.held(Task(kind, "second"), 0.01, BUSY):
        pytest.fail("its turn came")
    assert ids(kind) == [("first", 0)]
    work.go.set()
    with kind.held(Task(kind, "third"), 60, BUSY):
        assert ids(kind) == [("third", 0)]
    with pytest.raises(ZeroDivisionError), kind.held(Task(kind, "fourth"), 60, BUSY):
        raise ZeroDivisionError
    assert ids(kind) == []


# --- the ends of a task -------------------------------------------------------------------------------------

ENDS = {
    "done": (lambda kind, pid: None, None),
    "deadline": (lambda kind, pid: None, "it took longer than 0.5 s (LIMIT)"),
    "cancel": (lambda kind, pid: kind.cancel("task"), "it was interrupted"),
    "shutdown": (lambda kind, pid: kind.close(), "it was interrupted"),
    "kill -9": (
        lambda kind, pid: os.kill(pid, signal.SIGKILL),
        "its process ended with status -9; memory may be short: x",
    ),
}


@pytest.mark.parametrize(("act", "problem"), ENDS.values(), ids=ENDS)
def test_every_end_of_a_task_is_said_in_the_same_words(act, problem, request):
    end = request.node.callspec.id
    seconds = 0.5 if end == "deadline" else 60
    kind = Kind("kind", PROGRAM, seconds=seconds, advice_late=" (LIMIT)", advice_ended=": x")
    with kind.held(Task(kind, "task"), 0, BUSY) as task:
        job = Job(action="echo" if end == "done" else "hang")
        reply = task.do(job, on_reply=lambda reply: act(kind, reply.pid))
    assert (reply.problem, reply.is_last, task.is_late) == (problem, end == "done", end == "deadline")
    assert task.status == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(reply.pid, 0)


def test_one_that_was_cancelled_before_it_ran_starts_no_process():
    def fails(program, files):
        pytest.fail("it started")

    kind = Kind("kind", PROGRAM, fails)
    task = Task(kind, "task")
    task.cancel()
    assert task.do(Job(action="echo")).problem == "it was interrupted"
    kind.close()
    assert _does(kind) == "it was interrupted"


def test_the_end_of_a_service_interrupts_all_kinds_and_waits_for_them(until):
    kinds = Runner()
    ends = []
    for name in ("one", "other"):
        kind = kinds.add(Kind(name, PROGRAM, is_listed=name == "one"))
        kind.submit(Task(kind, name), lambda task: ends.append(task.do(Job(action="hang")).problem))
    assert [task.id for task, _ in kinds.under_way()] == ["one"]
    kinds.close()
    assert ends == ["it was interrupted"] * 2


# --- the process that is kept ---------------------------------------------------------------------------------


class FakeWorker:
    """In place of a process: replies once, or behaves as ``how`` says."""

    def __init__(self, how):
        self.how, self.jobs, self.ends, self.killed, self.has_ended = how, 0, 0, False, False

    def work(self, job, array=None):
        self.jobs += 1
        if self.how == "broken":
            raise ValueError("not JSON")
        if self.how == "late":
            self.killed = True
        elif self.how == "impossible":
            yield Reply(problem="no", is_impossible=True, is_last=True)
        elif self.how != "dies":
            yield Reply(is_last=True)

    @contextmanager
    def deadline(self, seconds):
        late = threading.Event()
        if self.how == "late":
            late.set()
        yield late

    def kill(self):
        self.killed = True

    def end(self):
        self.ends += 1
        return 0


class FakeWorkers:
    """Starts fake processes; ``hows``: how the next ones behave."""

    def __init__(self):
        self.started, self.hows = [], []

    def __call__(self, program, files):
        self.started.append(FakeWorker(self.hows.pop(0) if self.hows else ""))
        return self.started[-1]

    def counts(self):
        return [(worker.jobs, worker.ends) for worker in self.started]


@pytest.fixture
def workers():
    return FakeWorkers()


def _does(kind):
    with kind.held(Task(kind, "task"), 0, BUSY) as task:
        return task.do(Job(action="echo")).problem


def test_a_process_serves_one_job_after_the_other_and_ends_with_its_kind(workers):
    kind = Kind("kind", PROGRAM, workers, keep_seconds=60)
    assert [_does(kind) for _ in range(3)] == [None] * 3
    assert workers.counts() == [(3, 0)]
    kind.close()
    assert workers.counts() == [(3, 1)]


@pytest.mark.parametrize("how", ["broken", "late", "dies"])
def test_a_process_that_did_not_finish_a_job_does_no_other(how, workers):
    workers.hows.append(how)
    kind = Kind("kind", PROGRAM, workers, keep_seconds=60)
    if how == "broken":
        with pytest.raises(ValueError, match="not JSON"):
            _does(kind)
    else:
        assert _does(kind)
    assert workers.counts() == [(1, 1)]
    assert _does(kind) is None
    assert workers.counts() == [(1, 1), (1, 0)]
    kind.close()


def test_a_process_that_refused_a_job_does_the_next(workers):
    workers.hows.append("impossible")
    kind = Kind("kind", PROGRAM, workers, keep_seconds=60)
    assert [_does(kind) for _ in range(2)] == ["no"] * 2
    assert workers.counts() == [(2, 0)]
    kind.close()


def test_a_process_that_was_killed_while_it_was_kept_is_replaced(workers):
    kind = Kind("kind", PROGRAM, workers, keep_seconds=60)
    _does(kind)
    workers.started[0].has_ended = True
    assert _does(kind) is None
    assert workers.counts() == [(1, 1), (1, 0)]
    kind.close()


def test_a_process_that_no_job_needs_for_a_while_ends(workers, until):
    kind = Kind("kind", PROGRAM, workers, keep_seconds=0.01)
    _does(kind)
    until(lambda: workers.started[0].ends)
    _does(kind)
    assert len(workers.started) == 2
    until(lambda: workers.started[1].ends)
