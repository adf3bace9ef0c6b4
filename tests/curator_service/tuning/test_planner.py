"""The process that a plan leaves for the next one: one that lives, and whose messages were all read."""

import threading
from contextlib import contextmanager

import pytest

from blindopt import wire
from blindopt.errors import TuningImpossible
from curator_service.tuning.planner import Planner
from curator_service.tuning.scoring.worker import Job, Reply

PRIOR = wire.TuningPrior(lengthscale=1.0, one_minus_k1=1e-6, evaluations=10)
HEAVY = wire.TuningCreate.model_construct(method=wire.GpDesign(name="gp_design", prior=PRIOR))
REPORT = wire.TuningReport.model_construct(epsilon="1")


class FakeWorker:
    """In place of a process: replies with a report, or behaves as ``how`` says."""

    def __init__(self, how):
        self.how, self.plans, self.ends, self.killed, self.has_ended = how, 0, 0, False, False

    def work(self, job):
        self.plans += 1
        if self.how == "broken":
            raise ValueError("not JSON")
        if self.how == "late":
            self.killed = True
        elif self.how == "impossible":
            yield Reply(problem="no", is_impossible=True, is_last=True)
        elif self.how != "dies":
            yield Reply.model_construct(report=REPORT, is_last=True)

    @contextmanager
    def deadline(self, seconds):
        late = threading.Event()
        if self.how == "late":
            late.set()
        yield late

    def end(self):
        self.ends += 1
        return 0


class FakeWorkers:
    """Starts fake processes; ``hows``: how the next ones behave."""

    def __init__(self):
        self.started, self.hows = [], []

    def __call__(self):
        self.started.append(FakeWorker(self.hows.pop(0) if self.hows else ""))
        return self.started[-1]


@pytest.fixture
def workers():
    return FakeWorkers()


def plan(made):
    return made.report(Job.model_construct(tuning=HEAVY, m=10))


def test_a_process_serves_one_plan_after_the_other_and_ends_with_its_planner(workers):
    started = workers.started
    made = Planner(60, workers)
    assert [plan(made) for _ in range(3)] == [REPORT] * 3
    assert [(worker.plans, worker.ends) for worker in started] == [(3, 0)]
    made.close()
    assert [worker.ends for worker in started] == [1]


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("broken", ValueError, "not JSON"),
        ("late", TuningImpossible, "TUNING_PLAN_SECONDS_MAX"),
        ("dies", TuningImpossible, "memory may be short"),
    ],
)
def test_a_process_that_did_not_finish_a_plan_makes_no_other(how, error, text, workers):
    started, hows = workers.started, workers.hows
    hows.append(how)
    made = Planner(60, workers)
    with pytest.raises(error, match=text):
        plan(made)
    assert [(worker.plans, worker.ends) for worker in started] == [(1, 1)]
    assert plan(made) == REPORT
    assert [(worker.plans, worker.ends) for worker in started] == [(1, 1), (1, 0)]
    made.close()


def test_a_process_that_refused_a_plan_makes_the_next(workers):
    started, hows = workers.started, workers.hows
    hows.append("impossible")
    made = Planner(60, workers)
    for _ in range(2):
        with pytest.raises(TuningImpossible, match="no"):
            plan(made)
    assert [worker.plans for worker in started] == [2]
    made.close()


def test_a_process_that_was_killed_while_it_was_kept_is_replaced(workers):
    started = workers.started
    made = Planner(60, workers)
    plan(made)
    started[0].has_ended = True
    assert plan(made) == REPORT
    assert [(worker.plans, worker.ends) for worker in started] == [(1, 1), (1, 0)]
    made.close()


def test_a_process_that_no_plan_needs_for_a_while_ends(workers, until):
    started = workers.started
    made = Planner(60, workers, rest_seconds=0.01)
    plan(made)
    until(lambda: started[0].ends)
    assert plan(made) == REPORT
    assert len(started) == 2
    until(lambda: started[1].ends)
