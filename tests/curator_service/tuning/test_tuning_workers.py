"""The process of a tuning: what it tells of another one, or of a record that was withheld meanwhile, is not taken."""

import json
import threading
from contextlib import closing, contextmanager

import pytest

from blindopt import wire
from curator_service.tuning.scoring.worker import Ended, Reply
from curator_service.tuning.tunings import Tunings
from tests import beside
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.curator_service.tuning_case import Case, csv_of, rows_of

ENDED = Ended(result=wire.TuningResult(index=0, hyperparameters=None, value=None), clipped=0, evaluations=5)


@pytest.fixture
def in_process(tmp_path):
    made = InProcessCurator(tmp_path)
    yield made
    made.close()


class FakeWorker:
    """In place of a process: reports progress, then a result."""

    killed = has_ended = False

    def work(self, job, array=None):
        yield Reply(progress=0.5)
        yield Reply(ended=ENDED, tuning_id=job.tuning_id, is_last=True)

    @contextmanager
    def deadline(self, seconds):
        yield threading.Event()

    def end(self):
        return 0

    def kill(self):
        self.killed = True


def _use(in_process, kind):
    """Run tunings in a fake process of this kind."""
    in_process.curator.runner.kinds["tuning"].make_worker = lambda *_: kind()


def _case(in_process):
    """A public training dataset and a private validation dataset."""
    datasets = []
    for number, public in enumerate((True, False)):
        files = {"file": ("a.csv", csv_of(rows_of(40, number)))}
        data = {"name": "n", "public": "true" if public else "false"}
        view = in_process.call("owner", "POST", "/v1/datasets", files=files, data=data)
        datasets.append(wire.DatasetView.model_validate_json(json.dumps(view)))
    return Case(*datasets)


def _started(in_process, case):
    """The path of a tuning that was started."""
    body = case.spec().model_dump(mode="json")
    return f"/v1/tunings/{in_process.call('owner', 'POST', '/v1/tunings', json=body)['id']}"


def _edit(in_process, before, after):
    """Change the epsilon in the report of a tuning, as another program would."""
    change = f"""UPDATE tunings SET report = replace(report, '"epsilon":"{before}"', '"epsilon":"{after}"')"""
    with closing(beside.connect(in_process.context.database.path)) as db:
        beside.drop_triggers(db)
        assert db.execute(change).rowcount == 1
        db.commit()
    in_process.context.database.look()


@pytest.mark.parametrize("role", ["training", "validation"])
def test_a_tuning_that_runs_while_a_record_is_withheld_shows_no_result(role, in_process, until):
    reads, goes_on = threading.Event(), threading.Event()

    class Paused(FakeWorker):
        def work(self, job, array=None):
            reads.set()
            goes_on.wait()
            yield from super().work(job)

    _use(in_process, Paused)
    case = _case(in_process)
    path = _started(in_process, case)
    reads.wait()
    withheld = f"/v1/datasets/{getattr(case, role).id}:withhold"
    in_process.call("owner", "POST", withheld, json={"record": 1})
    goes_on.set()
    until(lambda: in_process.call("owner", "GET", path)["state"] != "running")
    view = in_process.call("owner", "GET", path)
    assert (view["state"], view["result"], "withheld" in view["problem"]) == ("failed", None, True)
    path = _started(in_process, case)  # another one, which leaves the record out
    until(lambda: in_process.call("owner", "GET", path)["state"] == "completed")


@pytest.mark.parametrize("tuning_id", ["tun_2", None])
def test_the_outcome_of_another_tuning_is_not_taken(tuning_id, in_process, until):
    class Other(FakeWorker):
        def work(self, job, array=None):
            yield Reply(ended=ENDED, tuning_id=tuning_id, is_last=True)

    _use(in_process, Other)
    path = _started(in_process, _case(in_process))
    until(lambda: in_process.call("owner", "GET", path)["state"] != "running")
    view = in_process.call("owner", "GET", path)
    assert (view["state"], view["result"]) == ("failed", None)
    assert "the outcome of another tuning" in view["problem"]


@pytest.mark.parametrize("edits", [True, False])
def test_a_tuning_is_drawn_from_no_state_that_a_verification_found_changed(edits, in_process, monkeypatch, until):
    """Its epsilon is changed before the tuning reads it, and taken back after; without edits it is drawn."""
    jobs, work, writes = [], Tunings._work, in_process.context.database.foreign_writes

    class Noting(FakeWorker):
        def work(self, job, array=None):
            jobs.append(job)
            yield from super().work(job)

    def edit(before, after):
        _edit(in_process, before, after)
        until(lambda: writes.are_verified)

    def edited(tunings, task, row):
        if not edits:
            return work(tunings, task, row)
        edit(1, 3)
        assert in_process.context.audit_trail.findings
        try:
            return work(tunings, task, row)
        finally:
            edit(3, 1)

    _use(in_process, Noting)
    case = _case(in_process)
    monkeypatch.setattr(Tunings, "_work", edited)
    verification = in_process.app.state.log_verification
    verification.start()
    try:
        path = _started(in_process, case)
        until(lambda: in_process.call("owner", "GET", path)["state"] != "running")
    finally:
        verification.close()
    view = in_process.call("owner", "GET", path)
    assert (view["state"], len(jobs)) == (("failed", 0) if edits else ("completed", 1))
    assert ("differs from the audit log" in (view["problem"] or "")) == edits


def test_a_tuning_that_a_shutdown_interrupted_is_ended_once_an_edit_of_it_is_taken_back(
    in_process, monkeypatch, tmp_path, until
):
    monkeypatch.setattr(Tunings, "_run", lambda tunings, task: None)
    path = _started(in_process, _case(in_process))
    _edit(in_process, 1, 3)
    in_process.curator.close()
    again = InProcessCurator(tmp_path, recovers=False)
    verification = again.app.state.log_verification
    verification.start()
    try:
        assert again.curator.recover() is not None
        assert again.call("owner", "GET", path)["state"] == "running"
        _edit(again, 3, 1)
        until(lambda: again.curator.recover() is None)
        view = again.call("owner", "GET", path)
        assert (view["state"], view["problem"]) == ("failed", Tunings.stopped)
        again.check()
    finally:
        verification.close()
        again.curator.close()
        again.close()
