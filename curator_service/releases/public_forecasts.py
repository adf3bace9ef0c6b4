"""Forecasts on public rows that start by themselves, once for each set of public inputs, and are kept in memory.

No record is read, so nothing is logged or charged, and a restart only computes them again. One runs at a time, for a
bounded time, at a low priority; few wait, and few results are kept.
"""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import Invalid, StateConflict
from curator_service import store
from curator_service.datasets.datasets import dataset_view
from curator_service.privacy.prices import is_groups
from curator_service.releases.forecasts.cells import GROUP_ROWS, ROWS_MIN
from curator_service.releases.forecasts.worker import Job, Worker
from curator_service.studies.studies import fitted
from service_kit.context.context import ServiceContext

SECONDS = 120.0
ROWS, FUNCTIONS, QUERIES = 300, 12, 30
EPSILONS = ("0.5", "1", "2", "4", "8")
WAITING_MAX, KEPT_MAX = 2, 32
_TRIED = ("gaussian", "planar_laplace", "gaussian_projection")


@dataclass(slots=True)
class _Entry:
    job: Job
    view: wire.PublicForecast = field(default_factory=lambda: wire.PublicForecast(state="running"))


class PublicForecasts:
    """Starts, keeps and returns forecasts of drafts by the digest of their public inputs. Safe for several threads."""

    def __init__(self, context: ServiceContext, worker: Callable[[], Worker] = Worker) -> None:
        self._context = context
        self._make_worker = worker
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._waiting: list[str] = []
        self._running: Worker | None = None
        self._serving = self._closing = False

    def view(self, spec: wire.StudyCreate) -> wire.PublicForecast:
        """The forecast of a draft, which this starts unless it was started before.

        Raises Invalid for a draft that cannot be made, or whose release has no privacy level to forecast.
        """
        digest, job = self._inputs(spec)
        with self._lock:
            entry = self._entries.get(digest)
            if entry is None:
                entry = self._entries[digest] = _Entry(job)
                self._waiting.append(digest)
                for dropped in self._waiting[:-WAITING_MAX]:
                    self._entries.pop(dropped)
                del self._waiting[:-WAITING_MAX]
                self._begin()
            self._entries.move_to_end(digest)
            while len(self._entries) > KEPT_MAX and next(iter(self._entries.values())).view.state != "running":
                self._entries.popitem(last=False)
            return entry.view

    def points(self, spec: wire.StudyCreate) -> list[wire.ForecastPoint]:
        """The points of the forecast of a draft, if it has been made; starts nothing, also of an archived dataset."""
        try:
            digest, _ = self._inputs(spec)
        except (Invalid, StateConflict):
            return []
        with self._lock:
            return self._entries[digest].view.points if digest in self._entries else []

    def close(self) -> None:
        """End the one that runs; none starts any more."""
        with self._lock:
            self._closing = True
            if self._running is not None:
                self._running.kill()

    def _inputs(self, spec: wire.StudyCreate) -> tuple[str, Job]:
        if isinstance(spec.release, wire.IdentityRelease):
            raise Invalid("a release without noise has no privacy level to forecast")
        with self._context.database.read() as db:
            dataset = dataset_view(store.find(db, store.datasets, spec.dataset_id))
        n = min(dataset.rows, GROUP_ROWS if is_groups(spec) else ROWS)
        if n < ROWS_MIN:
            raise Invalid(f"a forecast needs a dataset of {ROWS_MIN} rows or more")
        study = _without_private(fitted(spec, dataset))
        mechanisms: list[wire.ForecastMechanism] = ["auto"]
        if not isinstance(spec.release, wire.GroupsRelease) and spec.release.mechanism in _TRIED:
            mechanisms = [spec.release.mechanism]
        forecast = wire.ForecastCreate(
            epsilons=list(EPSILONS),
            mechanisms=mechanisms,
            functions=FUNCTIONS,
            queries=QUERIES,
            rows_max=ROWS,
        )
        job = Job(study=study, forecast=forecast, seed=0, n=n)
        if is_groups(spec):
            job = job.model_copy(update={"records": dataset.rows})
        digest = sha256(job.model_dump_json().encode())
        return digest, job.model_copy(update={"seed": secrets.randbits(63)})

    def _begin(self) -> None:
        if not self._serving and not self._closing:
            self._serving = True
            threading.Thread(target=self._serve, daemon=True, name="public forecasts").start()

    def _serve(self) -> None:
        """Work until none waits; the newest is next, because somebody looks at it."""
        while True:
            with self._lock:
                if self._closing or not self._waiting:
                    self._serving = False
                    return
                entry = self._entries[self._waiting.pop()]
            try:
                self._work(entry)
            except Exception as error:  # its text may quote a value
                problem = f"a fault on our side ({type(error).__name__})"
                entry.view = wire.PublicForecast(state="failed", problem=problem)

    def _work(self, entry: _Entry) -> None:
        worker = self._make_worker()
        with self._lock:
            self._running = worker
            if self._closing:
                worker.kill()
        try:
            with worker.deadline(SECONDS) as late:
                for reply in worker.work(entry.job):
                    if reply.progress is not None:
                        entry.view = wire.PublicForecast(state="running", progress=reply.progress)
                    if reply.points is not None:
                        entry.view = wire.PublicForecast(state="completed", progress=1.0, points=reply.points)
                    if reply.problem is not None:
                        entry.view = wire.PublicForecast(state="failed", problem=reply.problem)
        finally:
            with self._lock:
                self._running = None
            worker.end()
        if entry.view.state == "running":
            why = f"it took longer than {SECONDS:g} s" if late.is_set() else "its process ended; memory may be short"
            entry.view = wire.PublicForecast(state="failed", problem=why)


def _without_private(spec: wire.StudyCreate) -> wire.StudyCreate:
    """The draft without what a forecast does not depend on: names, caps, timing, and the epsilon of its release."""
    alike = {"name": "-", "dataset_id": "-", "budget": wire.Budget(), "reply_after_ms": None}
    if is_groups(spec):  # how epsilon is divided follows from its parts, and from the cap that is their sum
        return spec.model_copy(update=alike | {"budget": wire.Budget(epsilon_per_row=spec.budget.epsilon_per_row)})
    release = spec.release.model_copy(update={"epsilon": "1"})
    return spec.model_copy(update=alike | {"release": release})
