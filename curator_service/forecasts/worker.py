"""A forecast in a process of its own, so that requests go on beside it. The rows are sent with the job."""

import numpy as np

from blindopt.arrays import Matrix
from blindopt.wire import ForecastCreate, ForecastPoint, StudyCreate
from curator_service import child
from curator_service.scaling import ScaledRows


class Job(child.Message):
    """A forecast to simulate on the raw rows (n, d) that are sent with it."""

    study: StudyCreate
    forecast: ForecastCreate
    seed: int
    withdrawn: list[str] = []


class Reply(child.Reply):
    """Progress, or the points of the forecast."""

    points: list[ForecastPoint] | None = None


class Worker(child.Worker[Reply]):
    """A process for one forecast."""

    def __init__(self) -> None:
        super().__init__(PROGRAM)


def _work(job: Job, values: Matrix | None, sender: child.Sender[Reply]) -> Reply:
    from curator_service.forecasts.simulation import simulate  # the curator imports this module but never simulates

    assert values is not None
    n, d = values.shape
    rows = ScaledRows(values, list(range(d)), job.study.features, np.arange(n))
    points = simulate(
        job.study, job.forecast, rows, seed=job.seed, on_progress=sender.progress, withdrawn=job.withdrawn
    )
    return Reply(points=points)


PROGRAM = child.Program(
    __name__,
    Job,
    Reply,
    _work,
    core=1,
    niceness=10,
    out_of_memory="the simulation ran out of memory: ask for fewer rows",
    advice="; asking for fewer rows may help",
)
