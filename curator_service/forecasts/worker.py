"""A forecast in a process of its own, so that the exchange goes on beside it.

The job goes in on the standard input: a line of JSON, then the numbers of the rows. What it comes to goes out
on the standard output, a line of JSON each. Nothing is written to a file or to the command line. Where the
curator ends, its end of the pipe closes, and the worker ends with it.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from pydantic import BaseModel, ConfigDict

from curator_service.scaling import ScaledRows
from shared.errors import BlindoptError
from shared.matrix import Matrix
from shared.wire import ForecastCreate, ForecastPoint, StudyCreate

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


class Worker:
    """The process, seen from the curator."""

    def __init__(self) -> None:
        # A session of its own: an interrupt from the keyboard is the curator's, who ends the worker.
        self._process = subprocess.Popen(  # noqa: S603  this interpreter, a file of ours
            [sys.executable, "-P", str(Path(__file__).with_name("__main__.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a traceback may quote a value
            start_new_session=True,
        )

    def work(self, job: Job, values: Matrix) -> Iterator[News]:
        """Send the job with its raw rows (n, d) and yield what is told, until the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it ended early: there is no news
            self._process.stdin.write(job.model_dump_json().encode() + b"\n")
            self._process.stdin.write(np.ascontiguousarray(values, dtype=np.float64).data)
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.endswith(b"\n"):  # else it was killed in the middle of it
                yield News.model_validate_json(line)

    def end(self) -> int:
        """Kill it if it still runs; its exit status."""
        self._process.kill()
        status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        return status

    def kill(self) -> None:
        """Kill it; whoever reads its news sees the end of them."""
        self._process.kill()


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """The other side: one job, then nothing."""
    from curator_service.forecasts.simulation import simulate  # the curator, who shares this file, does without

    job = Job.model_validate_json(source.readline())
    d = len(job.study.features)
    values = np.frombuffer(source.read(8 * job.n * d)).reshape(job.n, d)
    threading.Thread(target=_end_with, args=(source,), daemon=True).start()
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


def _end_with(source: BinaryIO) -> None:
    os.read(source.fileno(), 1)  # nothing more is ever sent: it returns where the other end closes
    os._exit(1)
