"""The process that a tuning leaves for the next one: none whose news were not read to their end."""

import json
import threading
from contextlib import contextmanager

import pytest

from blindopt import wire
from blindopt.errors import TuningFailed
from curator_service import child
from curator_service.scoring.worker import Ended, Job, Reply, Worker
from curator_service.use_cases.jobs import tunings
from tests.curator_service.tuning_case import Case, csv_of, rows_of
from tests.curator_service.use_cases.inbox.in_process_curator import House

ENDED = Ended(result=wire.TuningResult(index=0, hyperparameters=None, value=None), clipped=0, evaluations=5)


@pytest.fixture
def house(tmp_path):
    made = House(tmp_path)
    yield made
    made.curator.tunings.close()
    made.close()


class FakeWorker:
    """In place of a process. The first one sends progress, then a line that is not JSON."""

    made: list["FakeWorker"]

    def __init__(self):
        self.jobs, self.ends, self.killed = [], 0, False
        self.made.append(self)

    def work(self, job):
        self.jobs.append(job.tuning_id)
        yield Reply(progress=0.5)
        if len(self.made) == 1:
            raise ValueError("not JSON")
        yield Reply(ended=ENDED, tuning_id=job.tuning_id, is_last=True)

    @contextmanager
    def deadline(self, seconds):
        yield threading.Event()

    def end(self):
        self.ends += 1
        return 0

    def kill(self):
        self.killed = True


def test_a_process_whose_news_could_not_be_read_does_not_serve_the_next_tuning(house, monkeypatch, until):
    """What it still told would be taken for the outcome of the next one: of other records, at another charge."""
    monkeypatch.setattr(FakeWorker, "made", [], raising=False)
    monkeypatch.setattr(tunings, "Worker", FakeWorker)
    found = []
    for number, public in enumerate((True, False)):
        files = {"file": ("a.csv", csv_of(rows_of(40, number)))}
        data = {"name": "n", "public": "true" if public else "false"}
        view = house.done("owner", "POST", "/v1/datasets", files=files, data=data)
        found.append(wire.DatasetView.model_validate_json(json.dumps(view)))
    states = []
    for _ in range(3):
        body = Case(*found).asked().model_dump(mode="json")
        path = f"/v1/tunings/{house.done('owner', 'POST', '/v1/tunings', json=body)['id']}"
        until(lambda path=path: house.done("owner", "GET", path)["state"] != "running")
        states.append(house.done("owner", "GET", path)["state"])
    assert states == ["failed", "completed", "completed"]
    assert [(len(worker.jobs), worker.ends) for worker in FakeWorker.made] == [(1, 1), (2, 0)]


def test_the_outcome_of_another_tuning_is_not_taken(monkeypatch):
    worker = Worker()
    try:
        for tuning_id, taken in (("tun_1", True), ("tun_2", False), (None, False)):
            replies = [Reply(ended=ENDED, tuning_id=tuning_id, is_last=True)]
            monkeypatch.setattr(child.Worker, "work", lambda worker, *job, replies=replies: iter(replies))
            job = Job.model_construct(tuning_id="tun_1")
            if taken:
                assert [reply.ended for reply in worker.work(job)] == [ENDED]
            else:
                with pytest.raises(TuningFailed, match="another tuning"):
                    list(worker.work(job))
    finally:
        worker.end()
