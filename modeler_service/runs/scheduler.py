"""The scheduling of runs: queue, workers, leases, waits, ends."""

import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import (
    AuditUnavailable,
    BlindoptError,
    EngineUnavailable,
    LogBroken,
    LogQuotaReached,
    OutOfMemory,
    RecordChanged,
    Remote,
    StorageUnavailable,
)
from modeler_service import store
from modeler_service.runs import notices
from modeler_service.runs.answer_listener import AnswerListener
from modeler_service.runs.curator_queries import REFUSALS
from modeler_service.runs.lease import Interrupt, Interrupted, Pending, can_retry
from modeler_service.runs.worker import Ending, MakeWorker, RunWorker
from modeler_service.settings import Settings
from modeler_service.store import RunRow
from service_kit.context.audit_trail import AuditTrail
from service_kit.context.context import ServiceContext
from service_kit.context.outbox import Outbox
from service_kit.store import audit_log
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection

log = logging.getLogger("blindopt.runs")
CLOSE_SECONDS = 1.0
WATCH_SECONDS = 0.2
_HOW_TO_GO_ON = (
    "so for PEOPLE_DAYS the curator could not say whether the query was answered, and the run has ended: start another "
    "with its answers as observations"
)
WAITS_MIN = 3  # waits before a run fails that waited too long, so that a clock that jumps ahead fails none
_UNSIGNED = (
    "the reply is not what this version",
    "the reply is encoded",
    "the reply is larger",
    "the curator's answer came without a receipt",
    "the candidates come without a digest",
    "the candidates do not match",
)
"""How the problems of runs begin that versions before 0.3.0 failed for a reply that no curator had signed."""
STUCK = "the curator keeps a request open without answering it"


@dataclass(slots=True)
class _ActiveRun:
    """A run in the hands of a worker."""

    interrupt: Interrupt
    thread: threading.Thread
    lease: int | None = None
    resubmitted: bool = False
    """Whether the run was submitted again while the worker had it."""


class RunScheduler:
    """Works on runs in threads, several at once.

    A run that a shutdown or a crash interrupts goes on at the next start from the stored trials, and repeats its query
    under the same idempotency key. A run waits without a worker for people who measure, and for a curator that does not
    answer, and goes on by itself. A run whose worker makes no progress is taken from it: its lease ends, and it cannot
    write any more.
    """

    def __init__(
        self,
        context: ServiceContext,
        settings: Settings,
        on_leave: Callable[[str], None],
        worker: MakeWorker = RunWorker,
    ) -> None:
        self._context = context
        self._settings, self._make_worker = settings, worker
        self._on_leave = on_leave  # called with the id of a run that a worker has left
        self._notify_after = timedelta(minutes=settings.notify_wait_minutes)
        self._folder = settings.candidates_folder
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for leftover in self._folder.glob("*.npy.*.part"):  # of a transfer that a kill cut off, and that nobody resumes
            leftover.unlink()
        self._closing = threading.Event()
        self._active_lock = threading.Lock()
        self._active: dict[str, _ActiveRun] = {}
        self._waiting: dict[str, datetime] = {}
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._listener = AnswerListener(context, settings, self.wake)

    def start(self) -> None:
        """Take up unfinished runs, and work from now on."""
        with self._context.database.read() as db:  # a study is as large as its curator likes
            unfinished = [replace(row, study=None, plan=None) for row in store.unfinished_runs(db)]
        for row in unfinished:
            if row.state == "waiting" and row.stop_asked_at is None and row.pause_asked_at is None:
                self._wait(row)
            else:
                self.submit(row.id)
        for _ in range(self._settings.concurrent_runs):
            self._add_worker()
        threading.Thread(target=self._watch, daemon=True, name="watch").start()

    def _wait(self, row: RunRow) -> None:
        """Let a run wait without a worker: until its time, or for people until they have measured."""
        self._waiting[row.id] = moment(row.waits_until or row.created_at)
        if row.waiting_for == "people":
            self._listener.listen(row.id)

    def _add_worker(self) -> None:
        # Daemons: a curator that does not answer must not keep this process from ending.
        thread = threading.Thread(target=self._serve, daemon=True, name="run")
        self._threads.append(thread)
        thread.start()

    @property
    def is_queue_empty(self) -> bool:
        return self._queue.empty()

    def submit(self, run_id: str) -> None:
        self._waiting.pop(run_id, None)
        self._queue.put(run_id)

    def wake(self, run_id: str) -> None:
        """Let a waiting run go on now, and an active one once more when its worker leaves it."""
        if run_id in self._waiting or run_id in self._active:
            self.submit(run_id)

    def halt(self, run_id: str) -> None:
        """Ask the worker of a run to leave it after the query under way, since the stored run has changed."""
        if (active := self._active.get(run_id)) is not None:
            active.interrupt.halt()

    def close(self) -> None:
        """Leave the runs, which the next start takes up. Waits a few seconds for queries under way."""
        self._closing.set()
        self._listener.close()
        for active in list(self._active.values()):
            active.interrupt.halt()
        for _ in self._threads:
            self._queue.put("")
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # --- workers ----------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (run_id := self._queue.get()) and not self._closing.is_set():
            try:
                self._work(run_id)
            except Exception as error:
                # A run whose end could not be stored is taken up again.
                log.error("the end of a run could not be stored", extra={"fields": {"kind": type(error).__name__}})
            if threading.current_thread() not in self._threads:
                return  # it was replaced while it was stuck

    def _work(self, run_id: str) -> None:
        if not self._context.database.foreign_writes.are_verified:
            self._waiting[run_id] = self._context.clock() + timedelta(seconds=WATCH_SECONDS)
            return
        self._context.audit_trail.check_sound()  # no query is sent that could not be logged
        self._context.audit_trail.check_unchanged(run_id)
        with self._context.database.read() as db:
            check_settings(db, self._context.audit_trail, run_id)
        # It is active before the stored run is read, so that every later change of the run interrupts the worker.
        active = _ActiveRun(Interrupt(), threading.current_thread())
        with self._active_lock:
            if (other := self._active.setdefault(run_id, active)) is not active:
                other.resubmitted = True  # the other worker reads the stored run when it leaves it
                return
        stored = False
        try:
            active.lease = self._context.database.write(lambda db: self._take(db, run_id))
            if active.lease is not None:
                self._end(run_id, active.lease, self._outcome(run_id, active.lease, active.interrupt))
            stored = True
        finally:
            self._leave(run_id, active, stored=stored)

    def _take(self, db: Connection, run_id: str) -> int | None:
        """Take the lease of a run; None if it has ended, is paused, or must stop or pause now."""
        row, now = store.find_run(db, run_id), stamp(self._context.clock())
        if row.ended_at is not None or row.state == "paused":
            return None
        if (halted := halted_state(row)) is not None:
            end(db, self._context.outbox, run_id, halted, self._context.clock())
            return None
        started = row.started_at or now
        store.change_run(db, run_id, state="running", started_at=started, waits_until=None, problem=None)
        return store.take_lease(db, run_id, now)

    def _leave(self, run_id: str, active: _ActiveRun, *, stored: bool, then: Callable[[], None] = lambda: None) -> None:
        """Remove an active run, unless another worker has it by now, and queue it again if its stored state says so.

        A run whose state could not be ``stored`` waits first: most likely the disk is full. ``then`` is called after
        the removal.
        """
        with self._active_lock:
            if self._active.get(run_id) is not active:
                return
            del self._active[run_id]
        then()
        self._on_leave(run_id)
        if self._closing.is_set():
            return
        soon = self._context.clock() + timedelta(seconds=self._settings.wait_seconds_first)
        try:
            with self._context.database.read() as db:
                row = store.find_run(db, run_id)
        except Exception:
            self._waiting[run_id] = soon  # its stored state could not be read: try again
            raise
        if row.state == "waiting" and not active.resubmitted:
            self._wait(row)
        elif row.state in ("queued", "running") and not stored:
            self._waiting[run_id] = soon
        elif row.state in ("queued", "waiting"):
            self.submit(run_id)

    def _outcome(self, run_id: str, lease: int, interrupt: Interrupt) -> Ending | None:
        """Work on a run; return how it ended, or None if it only halted."""
        try:
            crowded = lambda: not self.is_queue_empty  # noqa: E731
            worker = self._make_worker(self._context, self._settings, self._folder, run_id, lease, interrupt, crowded)
            return worker.work()
        except Interrupted:
            return None
        except Pending:
            return self._waits_for_people(run_id)
        except Remote as error:
            problem = _problem(error.remote_code, str(error))
            if error.remote_code in REFUSALS:
                return {"state": "completed", "ended_because": "refused", "problem": problem}
            is_known = error.remote_code == LogQuotaReached.code  # to the curator: no address or token is mistyped
            return self._waits(run_id, problem, is_known=is_known) if can_retry(error) else _failed(problem)
        except BlindoptError as error:
            problem = _problem(error.code, str(error))
            is_local = isinstance(error, StorageUnavailable | AuditUnavailable | EngineUnavailable)
            waiting_for = "engine" if isinstance(error, EngineUnavailable) else "curator"
            return (
                self._waits(run_id, problem, waiting_for, is_known=is_local) if can_retry(error) else _failed(problem)
            )
        except OSError as error:
            if (unavailable := StorageUnavailable.of(error)) is None:
                return self._fault(run_id, error)
            return self._waits(run_id, _problem(unavailable.code, str(unavailable)), is_known=True)
        except MemoryError as error:
            detail = str(error) or "the run needs more memory than there is: ask for fewer queries"
            return _failed(_problem(OutOfMemory.code, detail))
        except Exception as error:
            return self._fault(run_id, error)

    @staticmethod
    def _fault(run_id: str, error: Exception) -> Ending:
        log.exception("a run failed", extra={"fields": {"run": run_id}})
        return _failed(_problem("internal", f"a fault on our side ({type(error).__name__})"))

    def _waits(self, run_id: str, problem: str, waiting_for: str = "curator", *, is_known: bool = False) -> Ending:
        """Wait for a curator (or an engine) that does not answer; fail at the first contact, and after too long a wait.

        A problem that ``is_known`` to pass, such as a full disk, fails no run at the first contact.

        A run whose query is pending waits for days, from the last time that its curator confirmed it.
        """
        with self._context.database.read() as db:
            row = store.find_run(db, run_id)
        now, settings = self._context.clock(), self._settings
        waiting = self._waiting_state(row, waiting_for, settings.wait_seconds_first, settings.wait_seconds_max)
        since, longest = moment(waiting["waiting_since"]), timedelta(hours=settings.wait_hours)
        if row.looked_at is not None:
            since, longest = moment(row.looked_at), timedelta(days=settings.people_days)
        too_long = now - since > longest and waiting["waits"] > WAITS_MIN
        if too_long and row.looked_at is not None:
            problem = _with_detail(problem, _HOW_TO_GO_ON)
        if too_long or (row.study is None and not is_known):
            return _failed(problem)
        return waiting | {"problem": problem}

    def _waits_for_people(self, run_id: str) -> Ending:
        """Wait for people to measure; each answer of the curator that the query is pending extends the wait."""
        with self._context.database.read() as db:
            row = store.find_run(db, run_id)
        waiting = self._waiting_state(row, "people", self._settings.people_seconds, self._settings.people_seconds_max)
        return waiting | {"problem": None, "looked_at": stamp(self._context.clock())}

    def _waiting_state(self, row: RunRow, waiting_for: str, first: float, longest: float) -> Ending:
        """Return the columns of a wait, twice as long each time; a wait for something else begins anew."""
        now, goes_on = self._context.clock(), row.waiting_for == waiting_for
        waits = row.waits if goes_on else 0
        since = row.waiting_since if goes_on and row.waiting_since else stamp(now)
        seconds = min(first * 2 ** min(waits, 30), longest)
        return {
            "state": "waiting",
            "waiting_for": waiting_for,
            "waiting_since": since,
            "waits_until": stamp(now + timedelta(seconds=seconds)),
            "waits": waits + 1,
        }

    def _end(self, run_id: str, lease: int, ending: Ending | None) -> None:
        """Store how a worker left a run. A run that ended by itself stays ended if it was to halt meanwhile."""
        if ending is None and self._closing.is_set():
            return
        now = self._context.clock()

        def work(db: Connection) -> None:
            row = store.find_run(db, run_id)
            if row.lease != lease or row.ended_at is not None:
                return
            waits = ending is not None and ending["state"] == "waiting"
            halted = halted_state(row) if ending is None or waits else None
            if halted is not None:
                end(db, self._context.outbox, run_id, halted, now)
            elif ending is None:  # its token was replaced, or it was resumed
                store.change_run(db, run_id, state="queued")
            elif waits:
                store.change_run(db, run_id, **ending)
                notices.notify_waiting(db, self._context.outbox, row, ending, now, self._notify_after)
            else:
                end(db, self._context.outbox, run_id, ending, now)

        self._context.database.write(work)

    # --- watching ---------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closing.wait(WATCH_SECONDS):
            try:
                self._wake()
                self._free()
            except Exception as error:  # the database cannot be written for now: try again
                log.error("runs could not be watched", extra={"fields": {"kind": type(error).__name__}})

    def _wake(self) -> None:
        """Queue the runs whose wait is over."""
        now = self._context.clock()
        for run_id, until in list(self._waiting.items()):
            if until <= now:
                self.submit(run_id)

    def _free(self) -> None:
        """Take runs from workers that make no progress, and replace these workers."""
        for run_id, active in list(self._active.items()):
            late = time.monotonic() - active.interrupt.last_step > self._settings.lease_seconds
            if late and active.lease is not None:
                active.interrupt.halt()
                ending = self._waits(run_id, _problem("unreachable", STUCK))
                self._end(run_id, active.lease, ending)
                self._context.database.write(partial(store.take_lease, run_id=run_id, at=stamp(self._context.clock())))
                self._leave(run_id, active, stored=True, then=partial(self._replace, active.thread))

    def _replace(self, stuck: threading.Thread) -> None:
        self._threads.remove(stuck)  # if it ever goes on, it ends
        self._add_worker()


def halted_state(row: RunRow) -> Ending | None:
    """Return the state of a run that is to stop or to pause; None for any other."""
    if row.stop_asked_at is not None:
        return {"state": "stopped", "ended_because": "stopped"}
    return {"state": "paused"} if row.pause_asked_at is not None else None


def is_cut_off(row: RunRow) -> bool:
    """Whether a run failed because its curator could not be reached, so that it can be resumed."""
    if row.state != "failed" or row.problem is None or row.archived_at is not None:
        return False
    problem = wire.RunProblem.model_validate_json(row.problem)
    return problem.code in ("unreachable", "engine_unavailable") or (
        problem.code == "protocol_violated" and problem.detail.startswith(_UNSIGNED)
    )


def end(db: Connection, outbox: Outbox, run_id: str, ending: Ending, now: datetime) -> None:
    """Store a state that needs no worker, with its record in the log and its notice."""
    none = dict.fromkeys(("waits_until", "waiting_since", "waiting_for", "problem"))
    values: dict[str, Any] = {**none, "waits": 0, **ending}
    if ending["state"] != "paused":
        values["ended_at"] = stamp(now)
        notices.notify_ended(db, outbox, store.find_run(db, run_id), ending)
    store.change_run(db, run_id, **values)
    kind = "run.paused" if ending["state"] == "paused" else "run.ended"
    details = {"run_id": run_id, "state": ending["state"], "because": ending.get("ended_because")}
    audit_log.append(db, kind, actor="modeler", now=now, details=details)


def _problem(code: str, detail: str) -> str:
    return json.dumps({"code": code, "detail": detail})


def _with_detail(problem: str, detail: str) -> str:
    values = json.loads(problem)
    return _problem(values["code"], f"{values['detail']}; {detail}")


def _failed(problem: str) -> Ending:
    return {"state": "failed", "ended_because": "failed", "problem": problem}


def check_settings(db: Connection, audit_trail: AuditTrail, run_id: str) -> None:
    """Raise RecordChanged if the settings or the plan of a run are not those that the log records."""
    run = store.find_run(db, run_id)
    logged: dict[str, str] = {}
    for record in audit_log.of_kind(db, "run.created", "run.planned", about=run_id):
        logged |= record["details"]
    for name, document in (("spec_sha256", run.spec), ("plan_sha256", run.plan)):
        if name in logged and (document is None or sha256(document.encode()) != logged[name]):
            audit_trail.report(
                LogBroken(f"the settings of {run_id} were changed: its seed may be another", about=run_id)
            )
            raise RecordChanged("the stored settings of this run differ from the audit log: it does not go on")
