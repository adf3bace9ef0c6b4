"""Private tuning of hyper-parameters: jobs for the owner, charged before anything is scored or drawn."""

import secrets
from decimal import Context, Decimal
from functools import partial
from typing import Any

import numpy as np

from blindopt import wire
from blindopt.arrays import Vector
from blindopt.errors import (
    BudgetExhausted,
    Busy,
    Fault,
    Invalid,
    NotFound,
    RecordChanged,
    StateConflict,
    TuningFailed,
    TuningImpossible,
)
from curator_service import store
from curator_service.budget.budgets import Budgets
from curator_service.budget.file_use import FileUse
from curator_service.budget.ledger import NO_CHARGES, Cost
from curator_service.datasets.records import withheld_records
from curator_service.privacy.prices import exact
from curator_service.releases.jobs import Jobs
from curator_service.salted_digests import salted_digest
from curator_service.settings import Settings
from curator_service.store import tunings
from curator_service.tuning.scoring import logistic, problems
from curator_service.tuning.scoring.worker import PROGRAM, Ended, Job, Reply, Scorer, Source, report_of
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.context.keys import webhook_key
from service_kit.context.request import Effect, RequestContext
from service_kit.identity.tokens import new_id
from service_kit.runner.runner import KEEP_SECONDS, Kind, Runner, Task
from service_kit.store.base import stamp
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply

_EXACT = Context(prec=100)
_PLAN_WAIT_SECONDS = 1.0
WITHHELD = "a record was withheld meanwhile, so the result was dropped; its charge stays: ask again"
NO_SCORER = "this curator has no scorer: set SCORER_URL and SCORER_SECRET_FILE where it runs"


class Tunings(Jobs[Reply, wire.TuningView]):
    """At most one tuning runs, others wait in their order. Only what its method releases leaves its process.

    A tuning draws at most once: one that was interrupted is ``failed`` from the next start on, and its charge stays
    spent. Its result is stored before it is shown. One that ends after a record was withheld, which it may have read,
    is ``failed`` too: nobody sees its result.
    """

    noun = "tuning"
    stopped = "the curator was stopped before this tuning was done: ask for it again; its charge stays"
    _table, _ended = tunings, "tuning_ended"

    def __init__(
        self, context: ServiceContext, vault: Vault, settings: Settings, budgets: Budgets, runner: Runner
    ) -> None:
        self._vault = vault
        self._budgets = budgets
        self._scorer = scorer_of(settings)
        self._withheld = 0
        """How many records were withheld when the tuning that runs read them."""
        self._plans = runner.add(
            Kind(
                "plan",
                PROGRAM,
                seconds=settings.tuning_plan_seconds_max,
                keep_seconds=KEEP_SECONDS,
                is_listed=False,
                advice_late=" (TUNING_PLAN_SECONDS_MAX): ask for a smaller grid, or fewer evaluations or pairs",
            )
        )
        kind = Kind(
            self.noun,
            PROGRAM,
            seconds=settings.tuning_seconds_max,
            keep_seconds=KEEP_SECONDS,
            advice_late=" (TUNING_SECONDS_MAX)",
            advice_ended=": use fewer records",
        )
        super().__init__(context, runner.add(kind), settings.tunings_waiting_max)

    # --- requests ---------------------------------------------------------------------------------

    def preview(self, tuning: wire.TuningCreate) -> wire.TuningReport:
        """Cost, guarantee and expected quality of a tuning; charges nothing and reads nothing private.

        Raises Invalid and TuningImpossible if it cannot be run.
        """
        report = self._plan(self._job("tun_", tuning))
        with self._context.database.read() as db:
            dataset = store.find(db, store.datasets, tuning.validation_dataset_id)
            report = _of_persons(report, dataset.rows_per_person or 1)
            use = self._budgets.uses.read(db, dataset)
            use.account.check_open()
            if use.account.before(tuning.caps, report.guarantee_kind).is_capped:
                use.check_bounded()
            return _with_account(report, use, tuning.caps)

    def start(self, request: RequestContext, tuning: wire.TuningCreate) -> StoredReply:
        """Charge a tuning and queue it. Raises as ``preview`` does, BudgetExhausted, and StateConflict."""
        if (stored := self._context.idempotency.earlier(request)) is not None:
            return stored
        tuning_id = new_id("tun")
        check = partial(self._context.audit_trail.check_unchanged, *_datasets_of(tuning))
        report = self._plan(self._context.database.verified(lambda: self._job(tuning_id, tuning), check))
        with self._context.database.read() as db:
            dataset = store.find(db, store.datasets, tuning.validation_dataset_id)
        report = _of_persons(report, dataset.rows_per_person or 1)
        refusals: list[BudgetExhausted] = []

        def work(db: Connection) -> StoredReply | None:
            self._context.authentication.check_live(db, request.principal)
            if (stored := self._context.idempotency.stored(db, request)) is not None:
                return stored
            self._check_room(db)
            dataset = store.find(db, store.datasets, tuning.validation_dataset_id)
            actor, kind, cost = request.principal.actor, report.guarantee_kind, Cost.of(report.epsilon, report.delta)
            charged = self._budgets.charge_file(db, actor, dataset.id, "tuning", tuning_id, cost, kind, tuning.caps)
            if isinstance(charged, BudgetExhausted):
                refusals.append(charged)
                return None
            whole = _with_account(report, charged, tuning.caps)
            return self._context.idempotency.settle(db, request, self._add(db, tuning_id, tuning, whole, dataset))

        reply = self._context.database.write(work)
        if reply is None:
            raise refusals[0]
        if not reply.replayed:
            self._submit(tuning_id, name=tuning.name)
        return reply

    def _add(
        self, db: Connection, tuning_id: str, tuning: wire.TuningCreate, report: wire.TuningReport, dataset: Any
    ) -> Effect:
        spec, salt = tuning.model_dump_json(), secrets.token_hex(16)
        store.insert(
            db,
            tunings,
            id=tuning_id,
            dataset_id=dataset.id,
            state="running",
            spec=spec,
            report=report.model_dump_json(),
            progress=0.0,
            salt=salt,
            created_at=stamp(self._context.clock()),
        )
        details = {
            "tuning_id": tuning_id,
            "dataset_id": dataset.id,
            "account": self._budgets.account(db, dataset.id)[1],
            "method": report.method,
            "epsilon": report.epsilon,
            "delta": report.delta,
            "guarantee_kind": report.guarantee_kind,
            "cap_epsilon": tuning.caps.epsilon,
            "cap_delta": None if tuning.caps.delta is None else repr(tuning.caps.delta),
            "spec_sha256": salted_digest(spec, salt),
        }
        return Effect(self._view(db, self._find(db, tuning_id)), "tuning.started", details, 202)

    def view(self, tuning_id: str) -> wire.TuningView:
        """A tuning. Raises NotFound."""
        with self._context.database.read() as db:
            return self._view(db, self._find(db, tuning_id))

    def page(self, after: int, limit: int) -> list[tuple[int, wire.TuningView]]:
        with self._context.database.read() as db:
            return self._page(db, after, limit)

    def cancel(self, request: RequestContext, tuning_id: str) -> StoredReply:
        """Cancel a tuning; its charge stays spent. Raises StateConflict if it has ended."""
        return self._cancel(request, tuning_id)

    def _view(self, db: Connection, row: Any) -> wire.TuningView:
        ended = None if row.outcome is None else Ended.model_validate_json(row.outcome)
        return wire.TuningView(
            **self._fields(row),
            name=(spec := wire.TuningCreate.model_validate_json(row.spec)).name,
            validation_dataset_id=row.dataset_id,
            spec=spec,
            report=wire.TuningReport.model_validate_json(row.report),
            result=None if ended is None else ended.result,
            clipped=None if ended is None else ended.clipped,
            evaluations=None if ended is None else ended.evaluations,
        )

    # --- plans, from what is public -----------------------------------------------------------------

    def _plan(self, job: Job) -> wire.TuningReport:
        """The report of a plan, of a process if it takes long. Raises TuningImpossible, and Busy during another one."""
        if problems.is_light(job.tuning):
            return report_of(job.tuning, problems.problem_of(job.tuning, job.m))
        busy = Busy("another tuning is being planned, and one is planned at a time: try again", seconds=5)
        with self._plans.held(Task(self._plans, job.tuning_id), _PLAN_WAIT_SECONDS, busy) as task:
            reply = task.do(job)
        if reply.report is None:
            raise TuningImpossible(reply.problem or "", reply.field)
        return reply.report

    def _job(self, tuning_id: str, tuning: wire.TuningCreate, charged: tuple[str, str] | None = None) -> Job:
        """A tuning as a job for its process; reads nothing private. Raises Invalid if its datasets do not fit."""
        problems.check(tuning)
        score = tuning.score
        with self._context.database.read() as db:
            validation = _dataset(db, "validation_dataset_id", tuning.validation_dataset_id)
            withheld = withheld_records(db, self._vault, validation.id)
            job = Job(tuning_id=tuning_id, tuning=tuning, m=validation.rows - len(withheld), charged=charged)
            if isinstance(score, wire.HttpScore):
                if self._scorer is None:
                    raise Invalid.at("score.kind", NO_SCORER)
                return job.model_copy(update={"scorer": self._scorer})
            training = _dataset(db, "score.training_dataset_id", score.training_dataset_id)
            withheld_of_training = withheld_records(db, self._vault, training.id)
        if not training.public:
            message = "must be a dataset that was declared public: trained weights are protected by nothing"
            raise Invalid.at("score.training_dataset_id", message)
        if training.sha256 == validation.sha256:  # then trained weights are not public, and change with a record
            message = "is the validation dataset, or the same file: train on other, public records"
            raise Invalid.at("score.training_dataset_id", message)
        logistic.check_trainer()
        sources = [
            self._source(training, score, "training", withheld_of_training),
            self._source(validation, score, "validation", withheld),
        ]
        self._check_classes(sources[0], score)
        return job.model_copy(update={"training": sources[0], "validation": sources[1]})

    def _source(self, dataset: Any, score: wire.LogisticScore, role: str, withheld: list[int]) -> Source:
        columns = store.column_names(dataset)
        requested_columns = [(f"score.features.{j}.column", f.column) for j, f in enumerate(score.features)]
        requested_columns.append(("score.label", score.label))
        message = f"the {role} dataset has no such column: name columns that both datasets have"
        faults: list[Fault] = [
            {"field": field, "message": message} for field, name in requested_columns if name not in columns
        ]
        if faults:
            raise Invalid.of(faults)
        used = [columns.index(name) for _, name in requested_columns]
        return Source(file=self._vault.records(dataset.id), columns=used, withheld=withheld)

    def _check_classes(self, training: Source, score: wire.LogisticScore) -> None:
        labels: Vector = self._vault.dataset(score.training_dataset_id)[:, training.columns[-1]]
        labels = np.delete(labels, training.withheld)
        above = int((labels > score.threshold).sum())
        if not 0 < above < len(labels):
            message = "all training records are of one class by this threshold: nothing can be trained"
            raise Invalid.at("score.threshold", message)

    # --- the work ---------------------------------------------------------------------------------

    def _work(self, task: Task[Reply], row: Any) -> dict[str, Any]:
        def read() -> Job:
            with self._context.database.read() as db:
                stored = store.find(db, tunings, task.id)
                rows_per_person = store.find(db, store.datasets, stored.dataset_id).rows_per_person or 1
                tuning = wire.TuningCreate.model_validate_json(stored.spec)
                self._withheld = self._count_withheld(db, tuning)
            report = wire.TuningReport.model_validate_json(stored.report)
            of_record = exact(_EXACT.divide(Decimal(report.epsilon), rows_per_person))
            return self._job(task.id, tuning, (of_record, report.delta))

        def check_unchanged() -> None:
            with self._context.database.read() as db:
                tuning = wire.TuningCreate.model_validate_json(store.find(db, tunings, task.id).spec)
            self._context.audit_trail.check_unchanged(task.id, *_datasets_of(tuning))

        database = self._context.database
        try:
            job = database.foreign_writes.retry(
                lambda: database.verified(read, check_unchanged), lambda: task.is_cancelled
            )
        except Invalid as error:  # settings or the machine have changed since it was charged
            raise TuningFailed(str(error)) from None

        def check(reply: Reply) -> None:
            if reply.ended is not None and reply.tuning_id != task.id:
                raise TuningFailed("its process reported the outcome of another tuning: nothing was released")

        return self._ending(task.do(job, on_reply=check))

    def _ending(self, reply: Reply) -> dict[str, Any]:
        if reply.ended is None:
            return {"state": "failed", "problem": f"{reply.problem}; its charge stays"}
        return {"state": "completed", "outcome": reply.ended.model_dump_json(), "progress": 1.0}

    def _count_withheld(self, db: Connection, tuning: wire.TuningCreate) -> int:
        return sum(len(withheld_records(db, self._vault, dataset_id)) for dataset_id in _datasets_of(tuning))

    def _settle(self, db: Connection, job_id: str, **ending: Any) -> None:
        if ending["state"] == "completed":
            tuning = wire.TuningCreate.model_validate_json(store.find(db, tunings, job_id).spec)
            try:
                self._context.audit_trail.check_unchanged(job_id, *_datasets_of(tuning))
            except RecordChanged as error:
                ending = {"state": "failed", "problem": str(error)}
            if self._count_withheld(db, tuning) != self._withheld:
                ending = {"state": "failed", "problem": WITHHELD}
        super()._settle(db, job_id, **ending)

    def _subject(self, row: Any) -> wire.NoticeSubject:
        return wire.NoticeSubject(tuning_id=row.id)

    def _log_details(self, row: Any) -> dict[str, Any]:
        return {"outcome_sha256": salted_digest(row.outcome, row.salt)}


def _datasets_of(tuning: wire.TuningCreate) -> list[str]:
    datasets = [tuning.validation_dataset_id]
    if isinstance(tuning.score, wire.LogisticScore):
        datasets.append(tuning.score.training_dataset_id)
    return datasets


def scorer_of(settings: Settings) -> Scorer | None:
    """The scorer that the settings name, or None. Raises StateConflict for a key that is too short."""
    if settings.scorer_url is None or settings.scorer_secret_file is None:
        return None
    return Scorer(
        url=settings.scorer_url,
        key=webhook_key(settings.scorer_secret_file, "SCORER_SECRET_FILE").hex(),
        ca=None if settings.scorer_ca is None else str(settings.scorer_ca),
        timeout_s=settings.scorer_timeout_seconds,
        attempts=settings.scorer_attempts,
    )


def _dataset(db: Connection, field: str, dataset_id: str) -> Any:
    try:
        row = store.find(db, store.datasets, dataset_id)
    except NotFound:
        raise Invalid.at(field, "is no dataset of this curator") from None
    if row.archived_at is not None:
        raise StateConflict(f"{field}: the dataset is archived")
    return row


def _of_persons(report: wire.TuningReport, k: int) -> wire.TuningReport:
    """The report of a tuning whose dataset has up to ``k`` records of one person: epsilon counts k times.

    By group privacy, which holds for pure epsilon. Raises Invalid for a delta and k > 1: where it is a probability over
    the draw of functions, nothing is proved for several records.
    """
    if k == 1:
        return report
    if Decimal(report.delta) > 0:
        message = (
            f"{report.method} is proved for one record, and a person here has up to {k}: take a method without delta"
        )
        raise Invalid.at("method.name", message)
    epsilon = exact(_EXACT.multiply(Decimal(report.epsilon), k))
    words = f"A person with up to {k} records has {epsilon}-differential privacy: {k} times as much, which is charged."
    return report.model_copy(update={"epsilon": epsilon, "guarantee": f"{report.guarantee} {words}"})


def _with_account(report: wire.TuningReport, use: FileUse, caps: wire.TuningCaps) -> wire.TuningReport:
    """The report with the amounts that the validation file has spent, and its caps.

    What has no bound in the worst case is a sum of its own, under the caps of the tuning alone.
    """
    kind, account = report.guarantee_kind, use.account
    used, lowered = use.used.texts, account.lowered(caps).cap_texts
    if kind != "worst_case":
        used = (account.on_average if kind == "prior_average" else account.unproved).texts
        lowered = NO_CHARGES.lowered(caps).cap_texts
    amounts = {"spent_epsilon": used[0], "spent_delta": used[1], "cap_epsilon": lowered[0], "cap_delta": lowered[1]}
    return report.model_copy(update=amounts)
