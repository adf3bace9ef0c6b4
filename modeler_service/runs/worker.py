"""One run: fetch the candidates, choose rows, query, store the answers, until the run ends."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.audit.merkle_log import sha256
from blindopt.client import StudyClient
from blindopt.client.study_client import check_same_study
from blindopt.errors import OutOfMemory, ProtocolViolated, Remote, Unreachable
from blindopt.optimizer.chooser import Proposal, RowChooser, memory_needed, memory_problem, recommendation_of
from blindopt.optimizer.defaults import plan_of_run
from blindopt.wire.run import NEWEST
from modeler_service import store
from modeler_service.engines import RunEngine, engine_of, is_remote
from modeler_service.runs.addresses import Reached
from modeler_service.runs.candidates import fetch_candidates, path_of
from modeler_service.runs.curator_queries import REFUSALS, CuratorQueries
from modeler_service.runs.curator_session import connect
from modeler_service.runs.lease import Interrupt, RunLease, can_retry
from modeler_service.runs.notices import notify_warned
from modeler_service.runs.query_keys import is_run_query
from modeler_service.runs.witness import Witness
from modeler_service.settings import Settings
from modeler_service.store import TrialRow
from service_kit.context.context import ServiceContext
from service_kit.store import audit_log
from service_kit.store.base import stamp
from service_kit.store.database import Connection

Ending = dict[str, Any]


class RunWorker:
    """Works on one run in its own thread, with one connection to its curator, while it has the run's lease.

    ``crowded`` returns whether other runs wait for a worker.
    """

    def __init__(
        self,
        context: ServiceContext,
        settings: Settings,
        folder: Path,
        run_id: str,
        lease_number: int,
        interrupt: Interrupt,
        crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings, self._folder, self._run_id, self._interrupt = settings, folder, run_id, interrupt
        self._lease = lease = RunLease(context, settings, run_id, lease_number, interrupt)
        run = lease.read(lambda db: store.find_run(db, run_id))
        last_fit = lease.read(lambda db: store.last_fit(db, run_id))
        self._observations = lease.read(lambda db: store.observations_of(db, run_id))
        self._stored_fit = _values(last_fit) if last_fit else None
        self._stored_warnings = json.loads(run.warnings) if run.warnings else None
        self._spec, self._begun, self._plan = run.settings, run.study_view, run.stored_plan
        self._token = context.seal.open(run.sealed_token).decode()
        self._witness = Witness(context, self._spec.study_id, run_id, is_run_query, lease.count)
        self._queries = CuratorQueries(lease, self._witness, crowded)
        self._chooser: RowChooser | None = None
        self._engine: RunEngine | None = None
        self._stored_engine = run.engine

    def work(self) -> Ending:
        """Work on the run; return how it ended. Raises Interrupted, Pending, and errors that may pass later."""
        try:
            return self._work()
        except ProtocolViolated as error:
            self._witness.dispute(str(error))
            raise
        finally:
            if self._engine is not None:
                self._engine.executor.drop()

    def _work(self) -> Ending:
        interrupt = self._interrupt
        interrupt.check()
        reached = Reached(self._settings, self._spec.curator_url)
        more: dict[str, Any] = {"cancelled": interrupt.is_set, "progress": interrupt.progress, "reached": reached}
        with connect(self._settings, self._spec, self._token, self._witness, **more) as curator:
            self._queries.look(curator)
            study = self._study(curator, reached)
            plan = self._begin(study)
            self._queries.takes_time = study.measurement_source != "column"
            self._queries.has_common_cap = (study.budget.queries, study.budget.epsilon_total) != (None, None)
            candidates = self._candidates(curator, study, plan)
            try:
                return self._loop(curator, study, plan, candidates)
            except Remote as error:
                if can_retry(error):
                    raise
                self._queries.reload()
                if self._chooser is not None and self._queries.settled > self._chooser.seen:
                    self._chooser = self._build_chooser(study, plan, candidates)  # some of those chosen together
                self._conclude(curator, study)  # refused: the exchanges until then are settled all the same
                if error.remote_code not in REFUSALS:
                    raise
                problem = json.dumps({"code": error.remote_code, "detail": str(error)})
                return self._ending("refused", problem)

    def _study(self, curator: StudyClient, reached: Reached) -> wire.StudyView:
        if self._begun is not None:
            return self._lease.retry(lambda: curator.study(self._trust))
        with reached.plain_failures():  # a vendor has named it, and may be exploring
            return self._lease.retry(lambda: curator.study(self._trust))

    def _trust(self, study: wire.StudyView, note: str | None) -> None:
        """Raise ProtocolViolated if the study, or the key of its log, is not the one that the run began with."""
        if self._begun is not None:
            check_same_study(self._begun, study)
        self._witness.trust(study, self._spec.log_key, note)

    def _begin(self, study: wire.StudyView) -> wire.Plan:
        """Store the study, and at the first contact the plan: later versions of the defaults do not change the run."""
        values, details = {"study": study.model_dump_json()}, {"run_id": self._run_id}
        if (plan := self._plan) is None:
            engine = NEWEST if self._begun is None else 1  # one that began before there were plans goes on as it did
            plan = self._plan = plan_of_run(self._spec, study, self._observations, engine=engine)
            values["plan"] = plan.model_dump_json()
            details["plan_sha256"] = sha256(values["plan"].encode())  # a replay starts from this plan

        def work(db: Connection) -> None:
            store.change_run(db, self._run_id, **values)
            if "plan" in values:
                audit_log.append(db, "run.planned", actor=self._run_id, now=self._lease.now, details=details)

        self._lease.write(work)
        return plan

    def _candidates(self, curator: StudyClient, study: wire.StudyView, plan: wire.Plan) -> Matrix:
        most_memory = self._settings.run_memory_max_bytes
        iterations = self._spec.iterations_after(plan.initial_rows)
        problem = memory_problem(plan, iterations, study, len(self._observations), most_memory)
        if problem and not is_remote(self._settings, plan):
            raise OutOfMemory(problem)
        memory = memory_needed(plan, iterations, study, len(self._observations))
        path = path_of(self._folder, study.release_sha256).absolute()
        self._engine = engine_of(self._settings, plan, study, path, memory, self._tick)
        if (view := self._engine.view.model_dump_json()) != self._stored_engine:
            self._lease.write(lambda db: store.change_run(db, self._run_id, engine=view))
        most = self._settings.candidates_max_bytes
        # The file is reread once for a run, and not each time that a run looks for the answers of people.
        reread = self._begun is None
        return fetch_candidates(curator, study, self._folder, most, self._lease.retry, reread=reread)

    def _loop(self, curator: StudyClient, study: wire.StudyView, plan: wire.Plan, candidates: Matrix) -> Ending:
        try:
            because = self._query_until_end(curator, study, plan, candidates)
        finally:
            self._queries.store()
        self._conclude(curator, study)
        return self._ending(because)

    def _query_until_end(
        self, curator: StudyClient, study: wire.StudyView, plan: wire.Plan, candidates: Matrix
    ) -> str | None:
        """Choose, query and observe until the run ends; return why it did.

        An answer is stored with the next choice, which is queried after that. A kill before it loses the reply alone:
        the same query gets it again.
        """
        queries, chooser = self._queries, None
        while True:
            first = (queries.settled if chooser is None else chooser.seen) + 1
            rows = queries.chosen(first)
            if queries.takes_time and not rows and queries.revise(curator):
                chooser = None
            if chooser is None:
                chooser = self._chooser = self._build_chooser(study, plan, candidates)
            proposals = [] if rows else chooser.next()
            self._warn(chooser)
            if not rows and not proposals:
                return chooser.ended_because
            self._interrupt.check()
            rows = rows or self._store_choice(first, proposals, chooser.fitted)
            self._lease.check_verified()
            answers = queries.ask(curator, first, rows)
            last, every = first + len(rows) - 1, self._settings.countersign_every
            if last // every > (first - 1) // every:
                queries.store()
                with suppress(Remote, Unreachable):  # the next countersignature covers it
                    self._witness.settle(curator, study.grant_id)
            for row, answer in zip(rows, answers, strict=True):
                self._tick()
                chooser.show(row, answer)
            self._interrupt.progress()

    def _ending(self, because: str | None, problem: str | None = None) -> Ending:
        recommendation = self._chooser and recommendation_of(self._chooser, "asked")
        return {
            "state": "completed",
            "ended_because": because,
            "problem": problem,
            "recommendation": recommendation and recommendation.model_dump_json(),
        }

    def _build_chooser(self, study: wire.StudyView, plan: wire.Plan, candidates: Matrix) -> RowChooser:
        """Build a chooser and show it all answers so far, as they are after the last correction."""
        executor = None if self._engine is None else self._engine.executor
        past = self._observations
        chooser = RowChooser(self._spec, study, candidates, past, plan=plan, tick=self._tick, executor=executor)
        for trial in self._queries.trials[: self._queries.settled]:
            self._tick()
            chooser.show(trial.row, trial.answer)
        return chooser

    def _tick(self) -> None:
        """Report progress within a long computation. Raises Interrupted if the worker is to halt."""
        self._interrupt.check()
        self._interrupt.progress()
        self._queries.store_overdue()

    def _conclude(self, curator: StudyClient, study: wire.StudyView) -> None:
        """Settle for the last time, with retries: no later countersignature covers this one."""
        try:
            self._lease.retry(lambda: self._witness.settle(curator, study.grant_id))
        except Remote as error:
            if can_retry(error):
                raise

    # --- choices ----------------------------------------------------------------------------

    def _store_choice(self, first: int, proposals: list[Proposal], fitted: wire.Fitted | None) -> list[int]:
        """Store the chosen rows before they are queried, with the answer before them; return them."""
        now, new_fit = stamp(self._lease.now), self._new_fit(fitted)
        trials = [
            TrialRow(self._run_id, number, first, chosen_at=now, **asdict(proposal))
            for number, proposal in enumerate(proposals, start=first)
        ]
        trials[0] = replace(trials[0], fitted=new_fit)

        def work(db: Connection) -> None:
            for trial in trials:
                store.add_trial(db, trial)

        self._queries.store(work)
        self._queries.trials[first - 1 :] = trials
        return [trial.row for trial in trials]

    def _warn(self, chooser: RowChooser) -> None:
        """Store the warnings that follow from the answers so far, and send a notice of each when it first appears."""
        if (warnings := chooser.warnings) == self._stored_warnings:
            return
        codes = [warning.code for warning in chooser.run_warnings]

        def work(db: Connection) -> None:
            store.change_run(db, self._run_id, warnings=json.dumps(warnings))
            for code in codes:
                notify_warned(db, self._lease.context.outbox, self._run_id, self._spec.study_id, code)

        self._queries.store(work)
        self._stored_warnings = warnings

    def _new_fit(self, fitted: wire.Fitted | None) -> str | None:
        """Return a fit as it is stored, or None if it was stored before. A correction may change a fit."""
        if fitted is None or _values(fitted) == self._stored_fit:
            return None
        self._stored_fit = _values(fitted)
        return fitted.model_dump_json()


def _values(fitted: wire.Fitted) -> dict[str, Any]:
    """The values that distinguish fits: they are rounded, and so the same each time that the fit is made."""
    return fitted.model_dump(exclude={"log_likelihood", "check"})


MakeWorker = Callable[..., RunWorker]
