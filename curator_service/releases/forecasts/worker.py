"""A forecast in a process of its own, so that requests go on beside it.

A forecast on uniform rows is sent no row: its process draws them, and can tell nothing that is private.
"""

import numpy as np

from blindopt.arrays import Matrix
from blindopt.wire import ForecastCreate, ForecastPoint, StudyCreate
from curator_service.datasets.scaling import ScaledRows
from service_kit import runner


class Job(runner.Message):
    """A forecast to simulate on the raw rows (n, d) that are sent with it, or else on ``n`` uniform ones."""

    study: StudyCreate
    forecast: ForecastCreate
    seed: int
    n: int | None = None
    records: int | None = None
    """How many records the rows stand for, where groups have more."""
    total: str | None = None
    """Epsilon of a record in total, at which groups stand beside a search over records, if they do."""


class Reply(runner.Reply):
    """Progress, or the points of the forecast."""

    points: list[ForecastPoint] | None = None


def _work(job: Job, values: Matrix | None, sender: runner.Sender[Reply]) -> Reply:
    # The curator imports this module but never simulates.
    from curator_service.releases.forecasts.cells import uniform_rows
    from curator_service.releases.forecasts.simulation import simulate

    if values is None:
        assert job.n is not None
        values = uniform_rows(job.study.features, job.n, job.seed)
    n, d = values.shape
    rows = ScaledRows(values, list(range(d)), job.study.features, np.arange(n))
    points = simulate(
        job.study,
        job.forecast,
        rows,
        seed=job.seed,
        on_progress=sender.progress,
        records=job.records,
        total=job.total,
    )
    return Reply(points=points)


PROGRAM = runner.Program(
    __name__,
    Job,
    Reply,
    _work,
    core=1,
    niceness=10,
    out_of_memory="the simulation ran out of memory: ask for fewer rows",
    advice="; asking for fewer rows may help",
)
