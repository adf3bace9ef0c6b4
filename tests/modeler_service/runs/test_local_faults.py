"""Faults of the modeler's own machine that pass: a run waits for them and goes on."""

import sqlite3
import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.exc import OperationalError

from modeler_service import store
from modeler_service.runs import scheduler
from modeler_service.runs.lease import Interrupt
from tests.interventions import act_before
from tests.modeler_service.in_process_modeler import modeler_at_work, start


def unreadable():
    """The error of the driver when it cannot open a file."""
    return OperationalError("SELECT", {}, sqlite3.OperationalError("unable to open database file"))


def test_a_run_waits_where_its_modeler_s_database_cannot_be_read(tmp_path, monkeypatch, until):
    """It has not spoken to its curator yet: what passes here fails no run at its first contact either."""
    faults = [True]

    def not_yet(*_):
        if faults:
            raise unreadable()

    act_before(monkeypatch, store, "last_fit", not_yet)
    with modeler_at_work(tmp_path) as modeler:
        run = start(modeler)
        waiting = until(lambda: (view := modeler.run(run)).state in ("waiting", "failed") and view)
        assert (waiting.state, waiting.problem.code) == ("waiting", "storage_unavailable")
        faults.clear()
        ended = until(lambda: (view := modeler.run(run)).ended_at and view)
    assert ended.problem.code == "unreachable"  # no curator is there: the run came as far as its first request


def test_a_run_is_taken_up_again_where_it_could_not_be_read_as_its_worker_left_it(tmp_path, monkeypatch, until):
    faults = []

    def not_yet(*_):
        if faults:
            faults.pop()
            raise unreadable()

    endings = [None, {"state": "completed", "ended_because": "budget", "problem": None}]

    class Worker:
        def __init__(self, *_):
            pass

        def work(self):
            faults.append(not endings[0])
            ending = endings.pop(0)
            if ending is None:
                raise OSError("a fault that nothing translates")
            faults.clear()
            return ending

    with modeler_at_work(tmp_path, worker=Worker) as modeler:
        act_before(monkeypatch, store, "find_run", not_yet)
        run = start(modeler)
        until(lambda: not endings)
        until(lambda: modeler.run(run).state == "completed")


@pytest.mark.parametrize(("failing", "code"), [(2, "unreachable"), (10**6, "storage_unavailable")])
def test_a_clock_that_jumps_ahead_fails_no_run_at_its_next_look(failing, code, tmp_path, monkeypatch, until):
    """It may wait 72 hours; a jump of 100 looks the same. One that finds the fault again and again does fail."""
    looks, ahead = [], [timedelta(0)]

    def not_yet(*_):
        looks.append(1)
        if len(looks) == 2:
            ahead[0] = timedelta(hours=100)
        if len(looks) <= failing:
            raise unreadable()

    act_before(monkeypatch, store, "last_fit", not_yet)
    with modeler_at_work(tmp_path, lambda: datetime.now(UTC) + ahead[0]) as modeler:
        run = start(modeler)
        ended = until(lambda: (view := modeler.run(run)).ended_at and view)
    assert (ended.state, ended.problem.code) == ("failed", code)
    assert len(looks) == (3 if code == "unreachable" else scheduler.WAITS_MIN + 1)


def test_a_worker_leaves_no_run_that_another_worker_has(tmp_path):
    """Between its last look and its leaving, its run may have been taken from it and given to another."""
    with modeler_at_work(tmp_path) as modeler:
        runs, calls = modeler.scheduler, []
        mine, other = (scheduler._ActiveRun(Interrupt(), threading.current_thread()) for _ in range(2))
        active = runs._active
        active["run_1"] = other
        runs._leave("run_1", mine, stored=False, then=lambda: calls.append("mine"))
        assert (active, runs._waiting, calls) == ({"run_1": other}, {}, [])
        active.clear()
