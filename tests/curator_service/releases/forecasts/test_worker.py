"""The process of a forecast: what it sends, from which rows."""

import pytest

from blindopt import wire
from curator_service.releases.forecasts.worker import PROGRAM, Job
from service_kit.runner import Worker

RECORDS = {"rows": "records"}
SMALL = wire.ForecastCreate(epsilons=["1"], mechanisms=["gaussian"], functions=3, queries=4, **RECORDS, rows_max=40)


@pytest.fixture
def worker():
    forecasts = Worker(PROGRAM)
    yield forecasts
    forecasts.end()


@pytest.fixture
def job(study_of, rows_of):
    def make(forecast, n=40, **more):
        return Job(study=study_of(**more), forecast=forecast, seed=1), rows_of(n).values

    return make


def test_a_job_reports_its_progress_and_ends_with_its_points(worker, job):
    *progress, last = worker.work(*job(SMALL))
    shares = [reply.progress for reply in progress]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert [point.mechanism for point in last.points] == ["identity", "random_rows", "gaussian"]
    assert last.problem is None


def test_a_study_without_a_kernel_has_a_problem_and_no_points(worker, job):
    (reply,) = worker.work(*job(SMALL, kernel=None))
    assert "kernel" in reply.problem
    assert reply.points is None
