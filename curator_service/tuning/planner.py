"""Plans of tunings, made from public values alone: one at a time, in a process of their own if they take long."""

import threading
from collections.abc import Callable

from blindopt import wire
from blindopt.errors import Busy, TuningImpossible
from curator_service.releases.jobs import REST_SECONDS
from curator_service.tuning.scoring import problems
from curator_service.tuning.scoring.worker import Job, Reply, Worker, plan_light
from service_kit.context.exclusive import exclusive

_WAIT_SECONDS = 1.0


class Planner:
    """Makes plans. Its process is kept for ``rest_seconds``: a preview and the tuning that follows it are two plans."""

    def __init__(
        self, seconds_max: int, worker: Callable[[], Worker] = Worker, rest_seconds: float = REST_SECONDS
    ) -> None:
        self._make_worker, self._rest_seconds = worker, rest_seconds
        self._seconds_max = seconds_max
        self._lock = threading.Lock()
        self._kept: Worker | None = None

    def report(self, job: Job) -> wire.TuningReport:
        """The report of a plan. Raises TuningImpossible, and Busy while another one is made."""
        if problems.is_light(job.tuning):
            return plan_light(job.tuning, job.m)
        busy = Busy("another tuning is being planned, and one is planned at a time: try again", seconds=5)
        with exclusive(self._lock, _WAIT_SECONDS, busy):
            worker, last = self._worker(), Reply()
            try:
                with worker.deadline(self._seconds_max) as late:
                    for reply in worker.work(job):
                        last = reply
                if last.is_last and not worker.killed:
                    self._keep(worker)
            finally:
                if self._kept is None:
                    worker.end()
        if last.report is not None:
            return last.report
        if late.is_set():
            raise TuningImpossible(
                f"its plan took longer than {self._seconds_max} s (TUNING_PLAN_SECONDS_MAX): ask for a smaller "
                "grid, or fewer evaluations or simulated pairs"
            )
        raise TuningImpossible(last.problem or "its plan could not be made: memory may be short", last.field)

    def close(self) -> None:
        """End the process that is kept, unless a plan is being made: then it ends with this process."""
        if self._lock.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._lock.release()

    def _worker(self) -> Worker:
        """The process that was kept, or a new one."""
        kept, self._kept = self._kept, None
        if kept is not None:
            if not kept.has_ended:
                return kept
            kept.end()  # somebody killed it, as a machine does that is short of memory
        return self._make_worker()

    def _keep(self, worker: Worker) -> None:
        def end() -> None:
            with self._lock:
                if self._kept is worker:
                    self._end()

        self._kept = worker
        timer = threading.Timer(self._rest_seconds, end)
        timer.daemon = True
        timer.start()

    def _end(self) -> None:
        if self._kept is not None:
            self._kept.end()
            self._kept = None
