"""The process of a forecast: what it tells, and that it ends when it should."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from blindopt import wire
from curator_service.forecasts import simulation
from curator_service.forecasts import worker as workers
from curator_service.forecasts.worker import Job, Worker

SMALL = wire.ForecastCreate(epsilons=["1"], mechanisms=["gaussian"], functions=3, queries=4, rows=40)
LONG = wire.ForecastCreate(epsilons=["1"], mechanisms=["gaussian"], functions=200, queries=500, rows=400)


@pytest.fixture
def worker():
    made = Worker()
    yield made
    made.end()


@pytest.fixture
def job(study_of, rows_of):
    def make(asked, n=40, **more):
        return Job(study=study_of(**more), asked=asked, n=n, seed=1), rows_of(n).values

    return make


def test_a_job_is_told_by_its_progress_and_ends_with_its_points(worker, job):
    *progress, last = worker.work(*job(SMALL))
    shares = [news.progress for news in progress]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert [point.mechanism for point in last.points] == ["identity", "random_rows", "gaussian"]
    assert last.problem is None


def test_what_is_wrong_is_told(worker, job):
    (news,) = worker.work(*job(SMALL, kernel=None))
    assert "kernel" in news.problem
    assert news.points is None


def test_a_fault_is_told_by_its_kind_alone(study_of, rows_of, monkeypatch):
    def fails(*_, **__):
        raise ZeroDivisionError("77123456789.25")

    monkeypatch.setattr(simulation, "simulate", fails)
    job = Job(study=study_of(), asked=SMALL, n=40, seed=1)
    told = _served(job, rows_of(40).values)
    assert "ZeroDivisionError" in told
    assert "77123456789" not in told


def _served(job, values):
    """What ``serve`` writes, in this process, from real pipes."""
    inward, outward = os.pipe(), os.pipe()
    # The writing end stays open: where it closed, ``serve`` would end the process, which is this one.
    with open(inward[1], "wb", closefd=False) as to:
        to.write(job.model_dump_json().encode() + b"\n" + values.tobytes())
    with open(inward[0], "rb", closefd=False) as source, os.fdopen(outward[1], "wb") as sink:
        workers.serve(source, sink)
    with os.fdopen(outward[0], "rb") as told:
        return told.read().decode()


def test_one_that_is_killed_tells_nothing_more(worker, job):
    news = worker.work(*job(LONG, 400))
    assert next(news).progress is not None
    worker.kill()
    assert all(late.points is None for late in news)
    assert worker.end() == -signal.SIGKILL


def test_it_ends_with_the_process_that_began_it(tmp_path):
    """A curator that is killed leaves no simulation behind."""
    script = tmp_path / "parent.py"
    script.write_text(
        f"""
import sys
sys.path.insert(0, {str(Path(workers.__file__).parents[2])!r})
import numpy as np
from curator_service.forecasts.worker import Job, Worker
from blindopt import wire
features = [wire.Feature(column=c, lower=0.0, upper=1.0, scale=0.05) for c in "ab"]
study = wire.StudyCreate(
    name="s", dataset_id="d", features=features, measurement=wire.ColumnMeasurement(column="y", direction="maximize"),
    release=wire.GaussianRelease(mechanism="gaussian", epsilon="3", delta=1e-5),
    kernel=wire.Kernel(lengthscale=3.0, signal_variance=1.0, noise_variance=0.01),
)
asked = wire.ForecastCreate.model_validate_json({LONG.model_dump_json()!r})
worker = Worker()
for news in worker.work(Job(study=study, asked=asked, n=400, seed=1), np.random.default_rng(1).uniform(0, 1, (400, 2))):
    print(worker._process.pid, flush=True)
"""
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        status = Path("/proc") / parent.stdout.readline().strip() / "stat"
        assert status.exists()
        parent.kill()
    deadline = time.monotonic() + 20
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "the worker outlives its parent"
        time.sleep(0.02)


def test_rows_travel_exactly_whatever_their_layout(worker, job):
    """A column-major array would be scrambled if its memory were sent as it lies: half of its rows would be equal."""
    told, values = job(SMALL)
    assert not np.asfortranarray(values).flags.c_contiguous
    *_, last = worker.work(told, np.asfortranarray(values))
    *_, other = Worker().work(told, values)
    assert last.points[0] == other.points[0]
