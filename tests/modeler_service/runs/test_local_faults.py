"""Faults of the modeler's own machine that pass: a run waits for them and goes on."""

import secrets
import sqlite3
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.exc import OperationalError

from blindopt import wire
from modeler_service import store
from modeler_service.context import open_context
from modeler_service.runs import scheduler
from modeler_service.runs.interrupts import Signal
from modeler_service.settings import Settings
from modeler_service.use_cases.modeler import Modeler
from service_kit.context.request import RequestContext

SPEC = wire.RunCreate(
    curator_url="http://127.0.0.1:9",
    study_id="std_0123456789abcdef",
    token="blindopt_0123456789abcdef." + "A" * 43,
    algorithm=wire.RandomRows(name="random"),
    iterations=3,
)
QUICK = {"wait_seconds_first": 0.1, "wait_seconds_max": 0.1, "retry_attempts": 1}


@contextmanager
def at_work(folder, clock=lambda: datetime.now(UTC), *, work=True, **settings):
    """A modeler in this process, without its API; where told so, without its workers."""
    settings = Settings(data_dir=folder, **QUICK | settings)
    with open_context(settings, clock) as context:
        modeler = Modeler(context, settings)
        if work:
            modeler.work()
        try:
            yield modeler
        finally:
            modeler.close()


def start(modeler):
    vendor = modeler.context.authentication.issue("vendor", "v", days=1)[1]
    asked = RequestContext(vendor, secrets.token_hex(16), "POST", "/v1/runs", secrets.token_hex(8), "0" * 64)
    return wire.RunView.model_validate_json(modeler.start(asked, SPEC).body).id


def unreadable():
    """What the driver raises where no file can be opened."""
    return OperationalError("SELECT", {}, sqlite3.OperationalError("unable to open database file"))


def test_a_run_waits_where_its_modeler_s_database_cannot_be_read(tmp_path, monkeypatch, until):
    """It has not spoken to its curator yet: what passes here fails no run at its first contact either."""
    read, left = store.last_fit, [True]

    def not_yet(*args):
        if left:
            raise unreadable()
        return read(*args)

    monkeypatch.setattr(store, "last_fit", not_yet)
    with at_work(tmp_path) as modeler:
        run = start(modeler)
        waiting = until(lambda: (view := modeler.run(run)).state in ("waiting", "failed") and view)
        assert (waiting.state, waiting.problem.code) == ("waiting", "storage_unavailable")
        left.clear()
        ended = until(lambda: (view := modeler.run(run)).ended_at and view)
    assert ended.problem.code == "unreachable"  # nobody is there: it came as far as to ask


def test_a_run_is_taken_up_again_where_it_could_not_be_read_as_it_was_let_go(tmp_path, monkeypatch, until):
    read, left = store.run, []

    def not_yet(*args):
        if left:
            left.pop()
            raise unreadable()
        return read(*args)

    endings = [None, {"state": "completed", "ended_because": "budget", "problem": None}]

    def outcome(*_):
        left.append(not endings[0])
        ending = endings.pop(0)
        if ending is None:
            raise OSError("a fault that nothing translates")
        left.clear()
        return ending

    with at_work(tmp_path) as modeler:
        monkeypatch.setattr(store, "run", not_yet)
        monkeypatch.setattr(modeler._runs, "_outcome", outcome)
        run = start(modeler)
        until(lambda: not endings)
        until(lambda: modeler.run(run).state == "completed")


@pytest.mark.parametrize(("failing", "code"), [(2, "unreachable"), (10**6, "storage_unavailable")])
def test_a_clock_that_jumps_ahead_fails_no_run_at_its_next_look(failing, code, tmp_path, monkeypatch, until):
    """It may wait 72 hours; a jump of 100 looks the same. One that finds the fault again and again does fail."""
    read, looks, ahead = store.last_fit, [], [timedelta(0)]

    def not_yet(*args):
        looks.append(1)
        if len(looks) == 2:
            ahead[0] = timedelta(hours=100)
        if len(looks) <= failing:
            raise unreadable()
        return read(*args)

    monkeypatch.setattr(store, "last_fit", not_yet)
    with at_work(tmp_path, lambda: datetime.now(UTC) + ahead[0]) as modeler:
        run = start(modeler)
        ended = until(lambda: (view := modeler.run(run)).ended_at and view)
    assert (ended.state, ended.problem.code) == ("failed", code)
    assert len(looks) == (3 if code == "unreachable" else scheduler.WAITS_MIN + 1)


def test_a_worker_lets_go_of_no_run_that_another_holds(tmp_path):
    """Between its last look and its leaving, its run may have been taken from it and given to another."""
    with at_work(tmp_path) as modeler:
        work, told = modeler._runs, []
        mine, other = (scheduler._Held(Signal(), threading.current_thread()) for _ in range(2))
        work._held["run_1"] = other
        work._let_go("run_1", mine, stored=False, then=lambda: told.append("mine"))
        assert (work._held, work._waiting, told) == ({"run_1": other}, {}, [])
        work._held.clear()
