"""Forecasts on public rows that start by themselves, once for each set of public inputs, and are kept in memory.

No record is read, so nothing is logged or charged, and a restart only computes them again. One runs at a time, for a
bounded time, at a low priority; few wait, and few results are kept.
"""

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import Invalid, StateConflict
from curator_service import store
from curator_service.datasets.datasets import dataset_view
from curator_service.privacy.prices import Prices, is_groups
from curator_service.releases.forecasts.cells import GROUP_ROWS, ROWS_MIN, total_of_groups
from curator_service.releases.forecasts.worker import PROGRAM, Job, Reply
from curator_service.studies.studies import fitted
from service_kit.context.context import ServiceContext
from service_kit.runner.runner import Kind, Runner, Task

SECONDS = 120.0
ROWS, FUNCTIONS, QUERIES, QUERIES_MAX = 300, 12, 30, 100
ANSWERS = ("1", "4")
"""Values of epsilon of an answer that are tried beside the draft's own."""
EPSILONS = ("0.5", "1", "2", "4", "8")
WAITING_MAX, KEPT_MAX = 2, 32
_TRIED = ("gaussian", "planar_laplace", "gaussian_projection")


@dataclass(slots=True)
class _Entry:
    job: Job
    task: Task[Reply]
    reply: Reply | None = None

    @property
    def view(self) -> wire.PublicForecast:
        if self.reply is None:
            return wire.PublicForecast(state="running", progress=self.task.progress)
        if self.reply.points is None:
            return wire.PublicForecast(state="failed", problem=self.reply.problem)
        return wire.PublicForecast(state="completed", progress=1.0, points=self.reply.points)


class PublicForecasts:
    """Starts, keeps and returns forecasts of drafts by the digest of their public inputs. Safe for several threads."""

    def __init__(self, context: ServiceContext, runner: Runner) -> None:
        self._context = context
        kind = Kind("public forecast", PROGRAM, seconds=SECONDS, waiting_max=WAITING_MAX, is_listed=False)
        self._kind = runner.add(kind)
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def view(self, spec: wire.StudyCreate, *, of_answers: bool = False) -> wire.PublicForecast:
        """The forecast of a draft, which this starts unless it was started before.

        ``of_answers``: at levels of its answers, with its own release; else at levels of its release. A level of its
        own is forecast alone, so that the usual ones need not be made again. Raises Invalid for a draft that cannot be
        made, or whose release has no privacy level to forecast.
        """
        digest, job = self._inputs(spec, of_answers=of_answers)
        with self._lock:
            usual = self._entry(digest, job)
            if (forecast := usual.view).state != "completed" or (own := _of_own(spec, usual.job)) is None:
                return forecast
            view = self._entry(*own).view
        return forecast.model_copy(update={"points": _joined(forecast, view)}) if view.state != "running" else view

    def _entry(self, digest: str, job: Job) -> _Entry:
        """The forecast with these inputs, started unless it was before. The caller holds the lock."""
        entry = self._entries.get(digest)
        if entry is None:
            entry = self._entries[digest] = _Entry(job, Task(self._kind, digest))
            for dropped in self._kind.submit(entry.task, partial(self._work, entry)):
                self._entries.pop(dropped.id)
        self._entries.move_to_end(digest)
        while len(self._entries) > KEPT_MAX and next(iter(self._entries.values())).reply is not None:
            self._entries.popitem(last=False)
        return entry

    def points(self, spec: wire.StudyCreate) -> list[wire.ForecastPoint]:
        """The points of the forecasts of a draft that have been made; starts nothing, also of an archived dataset.

        Those of its answers come first.
        """
        points: list[wire.ForecastPoint] = []
        for of_answers in (True, False):
            try:
                digest, _ = self._inputs(spec, of_answers=of_answers)
            except (Invalid, StateConflict):
                continue
            with self._lock:
                if (entry := self._entries.get(digest)) is not None:
                    own = self._entries.get((_of_own(spec, entry.job) or ("",))[0])
                    points += entry.view.points if own is None else _joined(entry.view, own.view)
        return points

    def _inputs(self, spec: wire.StudyCreate, *, of_answers: bool) -> tuple[str, Job]:
        of_answers = of_answers and not is_groups(spec)
        if isinstance(spec.release, wire.IdentityRelease) and not of_answers:
            raise Invalid("a release without noise has no privacy level to forecast")
        with self._context.database.read() as db:
            dataset = dataset_view(store.find(db, store.datasets, spec.dataset_id))
        n = min(dataset.rows, GROUP_ROWS if is_groups(spec) else ROWS)
        if n < ROWS_MIN:
            raise Invalid(f"a forecast needs a dataset of {ROWS_MIN} rows or more")
        study = _without_private(fitted(spec, dataset), of_answers=of_answers)
        allowed = Prices.of(spec).within(spec.budget)[0]
        queries = QUERIES if allowed is None else max(2, min(allowed, QUERIES_MAX))
        levels = None
        if of_answers:
            own = [] if isinstance(spec.answers, wire.NoAnswerNoise) else [spec.answers.epsilon, *ANSWERS]
            levels = [*{wire.amount(epsilon): epsilon for epsilon in reversed(own)}.values()]
        mechanisms: list[wire.ForecastMechanism] = ["auto"]
        if not isinstance(spec.release, wire.GroupsRelease) and spec.release.mechanism in _TRIED:
            mechanisms = [spec.release.mechanism]
        forecast = wire.ForecastCreate(
            epsilons=list(EPSILONS),
            mechanisms=mechanisms,
            functions=FUNCTIONS,
            queries=queries,
            rows_max=ROWS,
            answers=levels,
        )
        job = Job(study=study, forecast=forecast, seed=0, n=n)
        total = total_of_groups(spec) if of_answers else None
        if is_groups(spec) or total is not None:
            job = job.model_copy(update={"records": dataset.rows, "total": total})
        digest = sha256(job.model_dump_json().encode())
        return digest, job.model_copy(update={"seed": secrets.randbits(63)})

    def _work(self, entry: _Entry, task: Task[Reply]) -> None:
        try:
            entry.reply = task.do(entry.job)
        except Exception as error:  # its text may quote a value
            entry.reply = Reply(problem=f"a fault on our side ({type(error).__name__})")


def _of_own(spec: wire.StudyCreate, job: Job) -> tuple[str, Job] | None:
    """Digest and inputs of a forecast at a draft's own level, with the functions of ``job``; None if ``job`` has it."""
    own = spec.budget.epsilon_per_row if is_groups(spec) else getattr(spec.release, "epsilon", None)
    tried = job.forecast.epsilons if job.forecast.answers is None else [own]
    if own is None or wire.amount(own) in map(wire.amount, filter(None, tried)):
        return None
    made = job.model_copy(update={"forecast": job.forecast.model_copy(update={"epsilons": [own]})})
    return sha256(made.model_dump_json().encode()), made


def _joined(usual: wire.PublicForecast, own: wire.PublicForecast) -> list[wire.ForecastPoint]:
    """The points of both, each baseline once, in the order of their levels."""
    return sorted(
        [*usual.points, *(point for point in own.points if point.epsilon)],
        key=lambda point: wire.amount(point.epsilon or "0"),
    )


def _without_private(spec: wire.StudyCreate, *, of_answers: bool) -> wire.StudyCreate:
    """The draft without what a forecast does not depend on: names, timing, and the epsilon of its release, or answers.

    The number of queries that its caps allow is an input of its own.
    """
    alike = {"name": "-", "dataset_id": "-", "budget": wire.Budget(), "reply_after_ms": None}
    alike["processing"] = wire.Processing()
    if is_groups(spec):  # how epsilon is divided follows from its parts, and from the cap that is their sum
        return spec.model_copy(update=alike | {"budget": wire.Budget(epsilon_per_row=spec.budget.epsilon_per_row)})
    if not of_answers:
        alike["release"] = spec.release.model_copy(update={"epsilon": "1"})
    return spec.model_copy(update=alike)
