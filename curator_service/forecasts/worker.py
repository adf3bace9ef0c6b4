"""A forecast in a process of its own, so that the exchange goes on beside it.

The job is a line of JSON, then the numbers of the rows.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from pydantic import BaseModel, ConfigDict

from blindopt.arrays import Matrix
from blindopt.errors import BlindoptError
from blindopt.wire import ForecastCreate, ForecastPoint, StudyCreate
from curator_service.child import Child, end_with
from curator_service.scaling import ScaledRows

NICENESS = 10
_STEP = 0.002  # smaller progress is not told


class Job(BaseModel):
    """What to simulate, without the rows: ``n`` of them follow, raw, a column for each feature."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    study: StudyCreate
    asked: ForecastCreate
    n: int
    seed: int
    withdrawn: list[str] = []


class News(BaseModel):
    """Progress, or an end: points, or what is wrong."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    progress: float | None = None
    points: list[ForecastPoint] | None = None
    problem: str | None = None


class Worker(Child):
    """The process, seen from the curator."""

    def __init__(self) -> None:
        super().__init__(Path(__file__).with_name("__main__.py"))

    def work(self, job: Job, values: Matrix) -> Iterator[News]:
        """Send the job with its raw rows (n, d) and yield what is told, until the process has ended."""
        for line in self.lines(
            job.model_dump_json().encode() + b"\n", np.ascontiguousarray(values, dtype=np.float64).data
        ):
            yield News.model_validate_json(line)


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """The other side: one job, then nothing."""
    from curator_service.forecasts.simulation import simulate  # the curator, who shares this file, does without

    job = Job.model_validate_json(source.readline())
    d = len(job.study.features)
    values = np.frombuffer(source.read(8 * job.n * d)).reshape(job.n, d)
    end_with(source)
    last = 0.0

    def tell(news: News) -> None:
        sink.write(news.model_dump_json().encode() + b"\n")
        sink.flush()

    def told(share: float) -> None:
        nonlocal last
        if share - last >= _STEP:
            last = share
            tell(News(progress=share))

    rows = ScaledRows(values=values, places=list(range(d)), features=job.study.features, order=np.arange(job.n))
    try:
        tell(News(points=simulate(job.study, job.asked, rows, seed=job.seed, told=told, withdrawn=job.withdrawn)))
    except BlindoptError as error:
        tell(News(problem=str(error)))
    except MemoryError:
        tell(News(problem="the simulation ran out of memory: ask for fewer rows"))
    except Exception as error:
        tell(News(problem=f"a fault on our side ({type(error).__name__}); asking for fewer rows may help"))
