"""The modeler's use cases, without HTTP."""

import json
import secrets
import time
from collections import Counter
from itertools import takewhile
from threading import Lock
from typing import Any

from starlette.concurrency import run_in_threadpool

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import Busy, Invalid, Remote, StateConflict
from blindopt.optimizer.chooser import Over
from blindopt.optimizer.defaults import plan_for
from modeler_service import store
from modeler_service.runs.addresses import check_curator
from modeler_service.runs.candidates import keep_candidates
from modeler_service.runs.curator_session import MAILBOXES, open_session
from modeler_service.runs.posterior_views import PosteriorViews
from modeler_service.runs.query_keys import is_run_query, unanswered
from modeler_service.runs.record import versions_of
from modeler_service.runs.scheduler import RunScheduler, end, halted_state, is_cut_off
from modeler_service.runs.worker import MakeWorker, RunWorker
from modeler_service.settings import Settings
from modeler_service.store import RunRow, TrialFilter
from modeler_service.use_cases import connections, imports
from modeler_service.use_cases.imports import Import, misfits, report
from modeler_service.use_cases.messages import RunMessages
from modeler_service.use_cases.run_events import TRIALS_MAX, RunUpdate
from service_kit.context.context import ServiceContext
from service_kit.context.exclusive import exclusive
from service_kit.context.housekeeping import Housekeeping
from service_kit.context.request import Effect, RequestContext
from service_kit.identity.tokens import Principal, new_id
from service_kit.store.base import moment, stamp, states
from service_kit.store.database import Connection
from service_kit.store.labels import EVERYTHING, ListFilter, tags_in_use, tags_of
from service_kit.store.stored_replies import StoredReply
from service_kit.web.server_sent_events import EventStreams
from service_kit.web.wakeups import Wakeups

_SETTINGS = wire.RunSpec.model_fields.keys() & wire.RunView.model_fields.keys()
"""Settings of a run that its view repeats."""


class Modeler:
    """Runs and their trials. Safe to call from several threads. ``worker`` makes what works on one run."""

    def __init__(self, context: ServiceContext, settings: Settings, worker: MakeWorker = RunWorker) -> None:
        self.context = context
        self._settings = settings
        self.wakeups = Wakeups()
        self.scheduler = RunScheduler(context, settings, self.wakeups.notify, worker)
        self.housekeeping = Housekeeping(
            context, store.runs, "run", lambda db, _, run: store.find_run(db, run), self._view
        )
        self._folder = settings.candidates_folder
        self.posteriors = PosteriorViews(context.database, self._folder, settings.look_memory_max_bytes)
        self.streams = EventStreams()
        self.messages = RunMessages(context, settings, self.recommendation)
        self._connection_locks: dict[str, Lock] = {}
        self._drop_candidates()  # a crash may have come between a deletion and that of its file

    def jobs(self) -> dict[str, dict[str, int]]:
        with self.context.database.read() as db:
            return {"run": states(db, store.runs)}

    def leave(self) -> None:
        """End the streams, and the requests that wait for a run."""
        self.wakeups.close()
        MAILBOXES.leave()

    def close(self) -> None:
        """Leave the runs, which the next start takes up."""
        self.leave()
        self.scheduler.close()

    def start(self, request: RequestContext, spec: wire.RunCreate) -> StoredReply:
        """Store a run and queue it. Its token is sealed and never shown again."""
        check_curator(self._settings, spec.curator_url, "curator_url")
        if spec.seed is None:
            spec = spec.model_copy(update={"seed": secrets.randbelow(2**32)})
        with self.context.database.read() as db:
            observations = imports.with_earlier(db, spec)
        past = Import(list(enumerate(observations, start=1)), [])
        _check_fits(misfits(past, spec, 2**53))  # the number of rows is known only when the run begins
        run_id = new_id("run")
        settings = spec.model_dump_json(exclude={"token", "observations", "hold"})

        def effect(db: Connection) -> Effect:
            store.add_run(
                db,
                run_id,
                state="paused" if spec.hold else "queued",
                spec=settings,
                sealed_token=self.context.seal.close(spec.token.encode()),
                created_at=stamp(self.context.clock()),
                pause_asked_at=stamp(self.context.clock()) if spec.hold else None,
            )
            store.add_observations(db, run_id, observations)
            details: dict[str, object] = {
                "run_id": run_id,
                "study_id": spec.study_id,
                "algorithm": spec.algorithm.name,
                "spec_sha256": sha256(settings.encode()),  # a replay starts from these settings
            }
            if spec.continue_from is not None:
                details |= {"continues": spec.continue_from, "observations": len(observations)}
            return Effect(self._view(db, run_id), "run.created", details)

        reply = self.context.idempotency.once(request, effect)
        if not reply.replayed and not spec.hold:
            self.scheduler.submit(run_id)
        return reply

    def check_import(self, request: RequestContext, run_id: str, past: Import) -> wire.ImportReport:
        """Return the report of an import, and store nothing. Requests the study from the curator."""
        self.context.idempotency.key_of(request)  # a dry run is refused whenever the import would be
        spec, before, n = self._importing(run_id)
        faults = misfits(past, spec, n)
        if before + len(past.observations) > wire.OBSERVATIONS_MAX:
            line = past.observations[wire.OBSERVATIONS_MAX - before][0]
            faults.append(wire.ImportFault(line=line, field="line", message=_too_many(before)))
        return report(past, faults, before=before, dry_run=True)

    def observe(self, request: RequestContext, run_id: str, past: Import) -> StoredReply:
        """Add past measurements to a run that was not started. Raises Invalid with the faults by line."""
        if (earlier := self.context.idempotency.earlier(request)) is not None:
            return earlier
        spec, _, n = self._importing(run_id)
        _check_fits(misfits(past, spec, n))

        def effect(db: Connection) -> Effect:
            _check_not_started(store.find_run(db, run_id))
            before = store.observation_count(db, run_id)
            if before + len(past.observations) > wire.OBSERVATIONS_MAX:
                raise Invalid(_too_many(before))
            store.add_observations(db, run_id, [observation for _, observation in past.observations])
            details = {"run_id": run_id, "observations": len(past.observations)}
            return Effect(report(past, [], before=before, dry_run=False), "run.observations_imported", details)

        return self.context.idempotency.once(request, effect)

    def _importing(self, run_id: str) -> tuple[wire.RunSpec, int, int]:
        """Return settings, number of past measurements and number of candidates of a run that was not started."""
        with self.context.database.read() as db:
            row, before = store.find_run(db, run_id), store.observation_count(db, run_id)
        _check_not_started(row)
        spec, token = row.settings, self.context.seal.open(row.sealed_token).decode()
        try:
            with open_session(self.context, self._settings, spec, token, run_id, is_run_query) as (_, study):
                return spec, before, study.n
        except Remote as error:
            raise StateConflict(f"the curator did not describe the study: {error}") from None

    def update(self, run_id: str, after: int, mark: tuple[Any, ...] | None) -> RunUpdate:
        """Return answered trials after trial ``after``, and the run if its state is not that of ``mark``."""
        with self.context.database.read() as db:
            now = store.run_progress(db, run_id)
            rows = store.trial_page(db, run_id, position=after, limit=TRIALS_MAX) if now[-1] > after else []
            # In order: of candidates that were chosen together, a later one may be answered before an earlier one.
            trials = [trial.view for trial in takewhile(lambda trial: trial.answered_at is not None, rows)]
            # A client that connects again may have missed corrections: it gets all of them.
            sent, last = mark[-2] if mark is not None else 0, now[-2]
            corrected = store.corrected_trials(db, run_id, since=sent, until=after) if last > sent else []
            run = self._view(db, run_id) if now != mark else None
            return RunUpdate(trials, run, now, [trial.view for trial in corrected])

    def try_connection(self, access: wire.StudyAccess, principal: Principal) -> wire.ConnectionReport:
        """Test whether a run could be started on a study; nothing but log records is stored.

        One test at a time for each principal, since a curator may block a thread until the timeout. Raises Busy.
        """
        lock = self._connection_locks.setdefault(principal.id, Lock())
        refusal = Busy("another connection of yours is being tried: wait for what comes of it", seconds=5)
        with exclusive(lock, 0, refusal):
            return connections.try_connection(self.context, self._settings, access, principal.actor)

    def stop(self, request: RequestContext, run_id: str) -> StoredReply:
        """End a run after the query under way, or at once. Durable. Raises StateConflict if it has ended by itself."""
        return self._halt(request, run_id, "stop", ended=("stopped",))

    def pause(self, request: RequestContext, run_id: str) -> StoredReply:
        """Pause a run after the query under way, or at once if there is none. Durable.

        Raises StateConflict if the run has ended.
        """
        return self._halt(request, run_id, "pause", ended=())

    def _halt(self, request: RequestContext, run_id: str, command: str, *, ended: tuple[str, ...]) -> StoredReply:
        def effect(db: Connection) -> Effect:
            row, now = store.find_run(db, run_id), self.context.clock()
            if row.ended_at is not None and row.state not in ended:
                raise StateConflict("the run has ended already")
            if row.ended_at is None:
                store.change_run(db, run_id, **{f"{command}_asked_at": stamp(now)})
                halted = halted_state(store.find_run(db, run_id))
                if row.state != "running" and halted is not None and row.state != halted["state"]:
                    end(db, self.context.outbox, run_id, halted, now)
            return Effect(self._view(db, run_id), f"run.{command}_asked", {"run_id": run_id}, 200)

        reply = self.context.idempotency.once(request, effect)
        self.scheduler.halt(run_id)
        self.wakeups.notify(run_id)
        return reply

    def resume(self, request: RequestContext, run_id: str) -> StoredReply:
        """Resume a paused run, end the wait of a waiting one, or take up one that could not reach its curator.

        Raises StateConflict if the run has ended otherwise.
        """

        def effect(db: Connection) -> Effect:
            row = store.find_run(db, run_id)
            if (row.ended_at is not None and not is_cut_off(row)) or row.stop_asked_at is not None:
                raise StateConflict("the run has ended, or is to end: it cannot be resumed")
            state = row.state if row.state == "running" else "queued"
            looked_at = row.looked_at and stamp(self.context.clock())  # the pause does not count as a wait
            values = {"pause_asked_at": None, "waits_until": None, "looked_at": looked_at}
            values |= dict.fromkeys(("ended_at", "ended_because", "problem") if row.ended_at else ())
            store.change_run(db, run_id, state=state, **values)
            return Effect(self._view(db, run_id), "run.resumed", {"run_id": run_id}, 200)

        reply = self.context.idempotency.once(request, effect)
        if not reply.replayed:
            self.scheduler.submit(run_id)
        return reply

    def replace_token(self, request: RequestContext, run_id: str, replacement: wire.TokenReplacement) -> StoredReply:
        """Store another token of the grant for a run. Raises StateConflict if it has ended and cannot be resumed."""

        def effect(db: Connection) -> Effect:
            row = store.find_run(db, run_id)
            if row.ended_at is not None and not is_cut_off(row):
                raise StateConflict("the run has ended: start another")
            store.change_run(db, run_id, sealed_token=self.context.seal.close(replacement.token.encode()))
            return Effect(self._view(db, run_id), "run.token_replaced", {"run_id": run_id}, 200)

        reply = self.context.idempotency.once(request, effect)
        self.scheduler.halt(run_id)  # its worker takes it up again, with the new token
        self.scheduler.wake(run_id)
        return reply

    def delete(self, request: RequestContext, run_id: str) -> StoredReply:
        """Delete an ended run with its answers and messages; the logs stay. Raises StateConflict.

        The candidates of its release are deleted too, unless another run has them.
        """

        def remove(db: Connection, row: RunRow) -> dict[str, object]:
            check_ended(db, row)
            details: dict[str, object] = {"unanswered": unanswered(db, run_id)}
            store.delete_run(db, run_id)
            return details

        reply = self.housekeeping.delete(request, run_id, remove)
        self._drop_candidates()
        return reply

    def _drop_candidates(self) -> None:
        with self.context.database.read() as db:
            keep_candidates(self._folder, store.release_digests(db))

    def tags(self) -> list[str]:
        with self.context.database.read() as db:
            return tags_in_use(db, store.runs)

    def run(self, run_id: str) -> wire.RunView:
        with self.context.database.read() as db:
            return self._view(db, run_id)

    async def halted(self, run_id: str, wait_s: float) -> wire.RunView:
        """Return a run as soon as it has ended or is paused, or after ``wait_s``; no thread waits."""
        deadline = time.monotonic() + wait_s
        with self.wakeups.listening(run_id) as event:
            while True:
                event.clear()
                view = await run_in_threadpool(self.run, run_id)
                is_halted = view.ended_at is not None or view.state == "paused"
                if is_halted or not await self.wakeups.wait(event, deadline - time.monotonic()):
                    return view

    def runs(
        self, after: int | None, limit: int, *, newest: bool = False, list_filter: ListFilter = EVERYTHING
    ) -> list[tuple[int, wire.RunView]]:
        """Return runs with their sequence numbers: those after ``after``, or before it with the ``newest`` first."""
        with self.context.database.read() as db:
            page = store.run_page(db, position=after, newest=newest, limit=limit, list_filter=list_filter)
            return [(row.seq, self._view_of(db, row)) for row in page]

    def counts(self) -> wire.RunCounts:
        counts: Counter[str] = Counter()
        with self.context.database.read() as db:
            for state, waits, count in store.run_states(db):
                counts[f"waiting_for_{waits or 'curator'}" if state == "waiting" else state] += count
        return wire.RunCounts(**counts)

    def trials(
        self, run_id: str, after: int | None, limit: int, *, newest: bool, trial_filter: TrialFilter
    ) -> list[wire.TrialView]:
        """Return trials of a run: those after number ``after`` in order, or before it with the ``newest`` first."""
        with self.context.database.read() as db:
            store.find_run(db, run_id)
            page = store.trial_page(db, run_id, trial_filter, position=after, newest=newest, limit=limit)
            return [trial.view for trial in page]

    def sorted_trials(
        self, run_id: str, trial_filter: TrialFilter, *, sort: str, largest: bool, offset: int, limit: int
    ) -> wire.TrialPage:
        with self.context.database.read() as db:
            store.find_run(db, run_id)
            order: dict[str, Any] = {"sort": sort, "largest": largest, "offset": offset, "limit": limit}
            total, rows = store.sorted_trials(db, run_id, trial_filter, **order)
        return wire.TrialPage(trials=[trial.view for trial in rows], total=total)

    def curve(self, run_id: str, points: int, first: int, last: int | None) -> wire.RunCurve:
        with self.context.database.read() as db:
            study = store.find_run(db, run_id).study_view
            largest = study is None or study.direction == "maximize"
            count, curve = store.curve(db, run_id, points, largest=largest, first=first, last=last)
        if study is not None and not isinstance(study.answers, wire.NoAnswerNoise):
            curve = [point.model_copy(update={"best": None}) for point in curve]
        return wire.RunCurve(trials=count, points=curve)

    def recommendation(self, run_id: str, over: Over) -> wire.Recommendation:
        """Return the recommended row: as stored at the run's end, or computed now."""
        with self.context.database.read() as db:
            stored = store.find_run(db, run_id).recommendation
        if stored is not None and over == "asked":
            return wire.Recommendation.model_validate_json(stored)
        return self.posteriors.recommendation(run_id, over)

    def export(self, run_id: str) -> wire.RunExport:
        """Return all that is needed to repeat a run, but for the release."""
        with self.context.database.read() as db:
            trials = [trial.view for trial in store.trial_page(db, run_id)]
            run, past = self._view(db, run_id), store.observations_of(db, run_id)
            versions = [view for version in versions_of(db, run_id) for view in version.view]
            return wire.RunExport(run=run, trials=trials, observations=past, versions=versions)

    def _view(self, db: Connection, run_id: str) -> wire.RunView:
        return self._view_of(db, store.find_run(db, run_id))

    def _view_of(self, db: Connection, row: RunRow) -> wire.RunView:
        counted = store.run_counts(db, row.id)
        spec, study, plan = row.settings, row.study_view, row.stored_plan
        fitted = store.last_fit(db, row.id) if spec.fit else None
        warnings = json.loads(row.warnings) if row.warnings else []
        waits_for = row.waiting_for if row.state == "waiting" else None
        since = counted.pending_since if waits_for == "people" else row.waiting_since if waits_for else None
        is_exact = study is not None and isinstance(study.answers, wire.NoAnswerNoise)  # else the best is the luckiest
        best = store.best_trial(db, row.id, largest=study.direction == "maximize") if study and is_exact else None
        return wire.RunView(
            id=row.id,
            state=row.state,
            study=study,
            plan=plan or (plan_for(spec, study, engine=1) if study else None),
            waiting_for=waits_for,
            waiting_since=moment(since) if since else None,
            open_measurements=counted.pending,
            trials=counted.answered,
            declined=counted.declined,
            engine=wire.RunEngine.model_validate_json(row.engine) if row.engine else None,
            best=wire.Best(trial=best.number, row=best.row, y=best.y) if best and best.y is not None else None,
            created_at=moment(row.created_at),
            started_at=moment(row.started_at) if row.started_at else None,
            heartbeat_at=moment(row.heartbeat_at) if row.heartbeat_at else None,
            waits_until=moment(row.waits_until) if row.waits_until else None,
            ended_at=moment(row.ended_at) if row.ended_at else None,
            ended_because=row.ended_because,
            can_resume=row.state in ("paused", "waiting") or is_cut_off(row),
            archived_at=moment(row.archived_at) if row.archived_at else None,
            note=row.note,
            tags=tags_of(row),
            problem=wire.RunProblem(**json.loads(row.problem)) if row.problem else None,
            warnings=[*warnings, fitted.problem] if fitted and fitted.problem else warnings,
            fitted=fitted,
            observations=counted.observations,
            recommendation=_without_list(row.recommendation),
            **{name: getattr(spec, name) for name in _SETTINGS},
        )


def check_ended(db: Connection, row: RunRow) -> None:
    if row.ended_at is None:
        raise StateConflict("the run has not ended: stop it first")


def _without_list(stored: str | None) -> wire.Recommendation | None:
    """A stored recommendation, without the list of good candidates: a page of runs has many."""
    if stored is None:
        return None
    recommendation = wire.Recommendation.model_validate_json(stored)
    good = recommendation.good and recommendation.good.model_copy(update={"candidates": []})
    return recommendation.model_copy(update={"good": good})


def _check_not_started(row: RunRow) -> None:
    if row.started_at is not None or row.ended_at is not None:
        raise StateConflict("the run has started: past measurements come before the first choice (create it with hold)")
    if row.pause_asked_at is None:
        raise StateConflict("the run may start at any moment: create it with hold, import, then resume it")


def _too_many(count: int) -> str:
    return f"a run begins with {wire.OBSERVATIONS_MAX} past measurements at most: it has {count}"


def _check_fits(faults: list[wire.ImportFault]) -> None:
    if faults:
        raise Invalid.of([{"field": f"{fault.line}.{fault.field}", "message": fault.message} for fault in faults])
