"""Forecasts of quality: jobs that an owner requests, each with a row, and those of drafts, which start by themselves.

The second are on public rows, once for each set of public inputs, and are kept in memory. No record is read, so nothing
is logged or charged, and a restart only computes them again. One runs at a time, for a bounded time, at a low priority.
"""

import json
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Any

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.audit.merkle_log import sha256
from blindopt.errors import Invalid, StateConflict
from curator_service import store
from curator_service.datasets.datasets import dataset_view
from curator_service.datasets.records import kept_records, public_sample
from curator_service.privacy import entropy
from curator_service.privacy.guarantees import CHOOSING
from curator_service.privacy.prices import Prices, is_groups
from curator_service.releases.forecasts.cells import GROUP_ROWS, ROWS_MIN, cells_of, kernels_of, total_of_groups
from curator_service.releases.forecasts.worker import PROGRAM, Job, Reply
from curator_service.releases.jobs import Jobs
from curator_service.settings import Settings
from curator_service.store import forecasts
from curator_service.studies.studies import fitted
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.identity.tokens import new_id
from service_kit.runner.runner import Kind, Runner, Task
from service_kit.store.base import stamp
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply

_POINTS = wire.validator_of(list[wire.ForecastPoint])


class Forecasts(Jobs[Reply, wire.ForecastView]):
    """At most one forecast runs, others wait in their order. Its results are for the owner alone."""

    noun = "forecast"
    stopped = "the curator was stopped before this forecast was done: ask for it again"
    _table, _ended = forecasts, "forecast_ended"

    def __init__(self, context: ServiceContext, vault: Vault, settings: Settings, runner: Runner) -> None:
        self._vault = vault
        kind = Kind(
            self.noun,
            PROGRAM,
            seconds=settings.forecast_seconds_max,
            advice_late=" (FORECAST_SECONDS_MAX): ask for fewer rows, functions, queries or levels",
            advice_ended=": ask for fewer rows",
        )
        super().__init__(context, runner.add(kind), settings.forecasts_waiting_max)

    # --- requests ---------------------------------------------------------------------------------

    def start(self, request: RequestContext, study_id: str, forecast: wire.ForecastCreate) -> StoredReply:
        """Queue a forecast. Raises Invalid if it cannot be made, StateConflict if too many wait."""
        self._context.idempotency.key_of(request)
        checked = self._check(study_id, forecast)
        started_id: str | None = None

        def effect(db: Connection) -> Effect:
            nonlocal started_id
            if _study(db, study_id)[0] != checked.study:
                raise StateConflict("the draft was changed meanwhile: look at it again, then start the forecast")
            self._check_room(db)
            forecast_id = new_id("fct")
            store.insert(
                db,
                forecasts,
                id=forecast_id,
                study_id=study_id,
                state="running",
                spec=forecast.model_dump_json(),
                progress=0.0,
                points="[]",
                created_at=stamp(self._context.clock()),
            )
            started_id = forecast_id
            details = {
                "study_id": study_id,
                "forecast_id": forecast_id,
                "levels": len(forecast.epsilons),
                "mechanisms": len(forecast.mechanisms),
                "functions": forecast.functions,
                "queries": forecast.queries,
                "rows": forecast.rows,
                "rows_max": forecast.rows_max,
            }
            if forecast.sample_dataset_id is not None:
                details["sample_dataset_id"] = forecast.sample_dataset_id
            return Effect(self._view(db, store.find(db, forecasts, forecast_id)), "forecast.started", details, 202)

        reply = self._context.idempotency.once(request, effect)
        if started_id is not None and not reply.replayed:
            self._submit(started_id, study_id)
        return reply

    def view(self, study_id: str, forecast_id: str) -> wire.ForecastView:
        """A forecast of a study. Raises NotFound."""
        with self._context.database.read() as db:
            return self._view(db, self._find(db, forecast_id, study_id=study_id))

    def page(self, study_id: str, after: int, limit: int) -> list[tuple[int, wire.ForecastView]]:
        with self._context.database.read() as db:
            store.find(db, store.studies, study_id)
            return self._page(db, after, limit, study_id=study_id)

    def cancel(self, request: RequestContext, study_id: str, forecast_id: str) -> StoredReply:
        """Cancel a forecast. Raises StateConflict if it has ended."""
        return self._cancel(request, forecast_id, study_id=study_id)

    def _check(self, study_id: str, forecast: wire.ForecastCreate) -> "_Inputs":
        """The study of a forecast, and its rows. Raises Invalid if the forecast cannot be made."""
        # Outside of any write transaction: calibrating many mechanisms takes long.
        with self._context.database.read() as db:
            inputs = _inputs(db, study_id, forecast)
        kernels_of(inputs.study, forecast)
        cells_of(inputs.study, forecast)
        if inputs.n < ROWS_MIN:
            raise Invalid(f"a forecast needs a dataset of {ROWS_MIN} rows or more")
        return inputs

    def _view(self, db: Connection, row: Any) -> wire.ForecastView:
        spec = forecast_request(row)
        is_public = spec.rows == "public" or store.dataset_of(db, row.study_id).public
        return wire.ForecastView(
            **self._fields(row),
            study_id=row.study_id,
            spec=spec,
            points=_POINTS.validate_json(row.points),
            choosing=None if is_public else CHOOSING,
        )

    # --- the work ---------------------------------------------------------------------------------

    def _work(self, task: Task[Reply], row: Any) -> dict[str, Any]:
        forecast = forecast_request(row)
        with self._context.database.read() as db:
            inputs = _inputs(db, row.study_id, forecast)
        # Without a dataset to read, nothing but public values is sent.
        values = None if inputs.dataset_id is None else self._sample(inputs, inputs.dataset_id)
        job = Job(
            study=inputs.study,
            forecast=forecast,
            seed=secrets.randbits(63),
            n=None if values is not None else inputs.n,
            records=inputs.records,
            total=total_of_groups(inputs.study),
        )
        reply = task.do(job, values)
        if reply.points is None:
            return {"state": "failed", "problem": reply.problem}
        return {"state": "completed", "points": _POINTS.dump_json(reply.points).decode(), "progress": 1.0}

    def _sample(self, inputs: "_Inputs", dataset_id: str) -> Matrix:
        """The raw feature columns of ``inputs.n`` rows of a dataset, chosen at random: (rows, features)."""
        with self._context.database.read() as db:
            names = store.column_names(store.find(db, store.datasets, dataset_id))
            records = kept_records(db, self._vault, dataset_id)
        values = self._vault.dataset(dataset_id)
        sample = records[entropy.sample(len(records), min(inputs.n, len(records)))]
        columns = [names.index(feature.column) for feature in inputs.study.features]
        sampled: Matrix = values[sample][:, columns]
        return sampled

    def _subject(self, row: Any) -> wire.NoticeSubject:
        return wire.NoticeSubject(study_id=row.study_id, forecast_id=row.id)

    def _log_details(self, row: Any) -> dict[str, Any]:
        return {"study_id": row.study_id}


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a forecast is made from: the study, the number of rows, and the dataset to read (None: uniform rows)."""

    study: wire.StudyCreate
    n: int
    dataset_id: str | None
    records: int
    """Records of the study's dataset."""


def _inputs(db: Connection, study_id: str, forecast: wire.ForecastCreate) -> _Inputs:
    """The inputs of a forecast. Raises Invalid for a sample that is not public or lacks a feature."""
    study, records = _study(db, study_id)
    rows = records
    dataset_id = study.dataset_id if forecast.rows == "records" else forecast.sample_dataset_id
    if forecast.sample_dataset_id is not None:
        public_sample(db, forecast.sample_dataset_id, study.features, "sample_dataset_id")
        rows = int(store.find(db, store.datasets, forecast.sample_dataset_id).rows)
    most = GROUP_ROWS if is_groups(study) and dataset_id is None else forecast.rows_max
    return _Inputs(study, min(rows, most), dataset_id, records)


def forecast_request(row: Any) -> wire.ForecastCreate:
    """The request of a stored forecast. One of 0.2.0 has a number of ``rows``, and was on the records."""
    spec = json.loads(row.spec)
    if not isinstance(spec.get("rows"), str):
        spec |= {"rows": "records", "rows_max": spec.get("rows", 1_000)}
    return wire.ForecastCreate.model_validate_json(json.dumps(spec))


def _study(db: Connection, study_id: str) -> tuple[wire.StudyCreate, int]:
    study = store.spec_of(db, study_id)
    return study, int(store.find(db, store.datasets, study.dataset_id).rows)


# --- of drafts, in memory -------------------------------------------------------------------------------

SECONDS = 120.0
ROWS, FUNCTIONS, QUERIES, QUERIES_MAX = 300, 12, 30, 100
ANSWERS = ("1", "4")
"""Values of epsilon of an answer that are tried beside the draft's own."""
EPSILONS = ("0.5", "1", "2", "4", "8")
WAITING_MAX, KEPT_MAX = 2, 32


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
        if isinstance(spec.release, wire.GaussianRelease | wire.PlanarLaplaceRelease | wire.GaussianProjectionRelease):
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
