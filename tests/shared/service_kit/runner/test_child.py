"""Child processes: how jobs and replies travel, what is said of an error, when they end, and their cores."""

import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from curator_service.releases.attacks.worker import PROGRAM as ATTACKS
from curator_service.releases.forecasts.worker import PROGRAM as FORECASTS
from curator_service.tuning.scoring.worker import PROGRAM as TUNINGS
from service_kit import runner
from service_kit.runner.program import nth_core
from tests import processes
from tests.shared.service_kit.runner.echo_program import PROGRAM, SECRET, Job, Reply

START = runner.worker.start


@pytest.fixture(scope="module", autouse=True)
def new_interpreters(forked_workers):
    """Here each process is started as outside of tests."""
    with processes.workers_started_by(START):
        yield


PROGRAMS = [ATTACKS, FORECASTS, TUNINGS]


@pytest.fixture
def worker():
    echo = runner.Worker(PROGRAM)
    yield echo
    echo.end()


# --- jobs and replies ----------------------------------------------------------------------------------


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(
    "array",
    [
        np.array([[0.1, np.nextafter(0.1, 1), -0.0], [np.nan, np.inf, 5e-324]]),
        np.arange(12.0).reshape(3, 4).T,
        np.arange(24.0).reshape(6, 4)[::2, 1:],
        np.empty((0, 3)),
        np.arange(6).reshape(2, 3),
    ],
    ids=["odd doubles", "by columns", "a part", "empty", "integers"],
)
def test_an_array_arrives_bit_for_bit_whatever_its_layout(worker, array):
    (reply,) = worker.work(Job(action="echo"), array)
    assert reply.shape == list(array.shape)
    assert reply.numbers == b"".join(np.float64(number).tobytes() for row in array for number in row).hex()


def test_a_process_does_one_job_after_the_other(worker):
    first, second, third = (list(worker.work(Job(action="echo"), array)) for array in (None, np.ones((1, 1)), None))
    assert {reply.pid for (reply,) in (first, second, third)} == {worker.pid}
    assert (first[0].shape, second[0].shape, third[0].shape) == (None, [1, 1], None)


def test_progress_is_sent_in_steps_and_the_last_reply_of_each_job_is_marked(worker):
    for _ in range(2):
        *progress, last = worker.work(Job(action="progress"))
        # Of 1,024 steps each third one is sent: the first that is 0.002 further than the one before.
        assert [reply.progress for reply in progress] == [step / 1_024 for step in range(3, 1_025, 3)]
        assert not any(reply.is_last for reply in progress)
        assert (last.is_last, last.progress) == (True, None)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(
    ("argument", "problem", "is_impossible", "field"),
    [
        ("release", "no such release", True, None),
        ("tuning", "no such tuning", True, "grid.0"),
        ("known", "the numbers are bad", False, None),
        ("memory", "too little", False, None),
        ("fault", "a fault on our side (ZeroDivisionError); rest", False, None),
    ],
)
def test_of_an_error_nothing_leaves_but_a_public_text_or_its_kind(worker, argument, problem, is_impossible, field):
    (reply,) = worker.work(Job(action="raise", argument=argument))
    assert (reply.problem, reply.is_impossible, reply.field) == (problem, is_impossible, field)
    assert reply.is_last
    assert [reply.problem for reply in worker.work(Job(action="echo"))] == [None]  # and the next job is done


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.module)
def test_of_a_fault_in_any_kind_of_work_its_kind_alone_leaves(program):
    def fails(*_):
        raise ZeroDivisionError(SECRET)

    sink = io.BytesIO()
    replace(program, job=Job, work=fails).do(Job(action="echo").model_dump_json().encode(), None, sink)
    reply = program.reply.model_validate_json(sink.getvalue())
    assert "ZeroDivisionError" in reply.problem
    assert SECRET not in sink.getvalue().decode()


def test_a_message_that_is_wrong_is_not_quoted():
    with pytest.raises(ValidationError) as wrong:
        Reply.model_validate_json(f'{{"progress": "{SECRET}?"}}')
    assert SECRET not in str(wrong.value)


# --- the end of a process ---------------------------------------------------------------------------------


def test_a_process_that_dies_sends_no_last_reply_and_leaves_its_status(worker, capfd):
    assert list(worker.work(Job(action="die"))) == []
    assert worker.end() == 3
    assert SECRET not in "".join(capfd.readouterr())


def test_a_line_without_its_end_is_no_reply(worker):
    (reply,) = worker.work(Job(action="half"))
    assert not reply.is_last


def test_a_process_that_has_ended_takes_a_job_without_an_error(worker):
    os.kill(worker.pid, signal.SIGKILL)
    assert list(worker.work(Job(action="echo"), np.zeros((50_000, 4)))) == []


def test_a_deadline_kills_a_process_that_looks_at_nothing(worker):
    replies = worker.work(Job(action="hang"))
    next(replies)
    os.kill(worker.pid, signal.SIGSTOP)  # as deaf as one step inside the linear algebra
    with worker.deadline(0.2) as late:
        assert list(replies) == []
    assert late.is_set()
    assert worker.killed
    assert worker.end() == -signal.SIGKILL


def test_a_deadline_that_is_kept_kills_nothing(worker):
    with worker.deadline(0.1) as late:
        pass
    time.sleep(0.3)
    assert not late.is_set()
    assert [reply.is_last for reply in worker.work(Job(action="echo"))] == [True]


def test_a_process_ends_with_the_one_that_started_it(tmp_path, until):
    """A curator that is killed leaves no work behind, not even in the middle of a job."""
    script = tmp_path / "parent.py"
    script.write_text(
        f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[4])!r})
from service_kit import runner as child
from tests.shared.service_kit.runner.echo_program import PROGRAM, Job
for reply in child.Worker(PROGRAM).work(Job(action="hang")):
    print(reply.pid, flush=True)
"""
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        status = Path("/proc") / parent.stdout.readline().strip() / "stat"
        assert status.exists()
        parent.kill()
    until(lambda: not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z", within=60)


# --- cores ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("allowed", "taken"), [({0, 1, 5}, [5, 1, 0]), ({2, 3}, [3, 2, 3]), ({7}, [7, 7, 7])])
def test_cores_are_counted_from_the_last_allowed_one_round_and_round(allowed, taken):
    assert [nth_core(number, allowed) for number in range(3)] == taken


def test_kinds_of_work_share_no_core_while_there_is_another(until):
    workers = [runner.Worker(program) for program in PROGRAMS]
    try:
        until(lambda: all(len(os.sched_getaffinity(worker.pid)) == 1 for worker in workers), within=60)
        taken = {core for worker in workers for core in os.sched_getaffinity(worker.pid)}
        niceness = [os.getpriority(os.PRIO_PROCESS, worker.pid) for worker in workers]
    finally:
        for worker in workers:
            worker.end()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert len(taken) == min(len(os.sched_getaffinity(0)), 3)
    assert niceness == [own, min(own + 10, 19), min(own + 10, 19)]


def test_a_child_that_cannot_read_its_job_ends_though_more_jobs_may_come():
    """Its input stays open: the curator would wait for its deadline."""
    program = Path(runner.__file__).with_name("__main__.py")
    module = "curator_service.releases.forecasts.worker"
    command = [sys.executable, "-P", str(program), module, *runner.worker.folders_of(module)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.stdin.write(b"{}\nnull\n")
        process.stdin.flush()
        assert process.wait(timeout=240) == 1
