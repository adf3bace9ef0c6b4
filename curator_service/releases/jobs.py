"""Durable work of the runner: the state of each job is a row, so a crash or a shutdown leaves none running."""

import logging
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from blindopt import wire
from blindopt.errors import BlindoptError, NotFound, RecordChanged, StateConflict
from curator_service import store
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.runner.program import ReplyT
from service_kit.runner.runner import Kind, Task
from service_kit.store import audit_log
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection, StoreFault
from service_kit.store.stored_replies import StoredReply

log = logging.getLogger("blindopt.jobs")
AGAIN_SECONDS = 1.0
ViewT = TypeVar("ViewT", wire.ForecastView, wire.TuningView)


class Jobs(ABC, Generic[ReplyT, ViewT]):
    """Jobs of one kind, each with a row.

    A job that a crash or a shutdown interrupted is ``failed`` from the next start on (``recover``). Logs hold ids and
    states, never results.
    """

    noun: ClassVar[str]
    stopped: ClassVar[str]
    """The problem of a job that was interrupted, and what to do."""
    _table: ClassVar[store.Table]
    _ended: ClassVar[wire.NoticeEvent]

    def __init__(self, context: ServiceContext, kind: Kind[ReplyT], jobs_waiting_max: int) -> None:
        self._context, self._kind, self._jobs_waiting_max = context, kind, jobs_waiting_max
        with context.database.read() as db:
            self._interrupted = store.running_jobs(db, self._table)

    def recover(self) -> bool:
        """End the jobs that did not run any more when the service started; False while a finding names one of them.

        Raises Verifying.
        """
        if self._interrupted:
            self._interrupted = self._context.database.write(self._recover)
        return not self._interrupted

    def _recover(self, db: Connection) -> list[str]:
        refused = []
        for job_id in self._interrupted:
            try:
                self._context.audit_trail.check_unchanged(job_id)
                self._settle(db, job_id, state="failed", problem=self.stopped)
            except RecordChanged:  # somebody else may have made it one that runs
                refused.append(job_id)
        return refused

    # --- for subclasses -----------------------------------------------------------------------------

    def _check_room(self, db: Connection) -> None:
        """Raise StateConflict if as many jobs wait as may."""
        if store.count_running_jobs(db, self._table) > self._jobs_waiting_max:
            waiting = f"{self._jobs_waiting_max} {self.noun}s wait already"
            raise StateConflict(f"{waiting}: let one end, or cancel one, before you ask for more")

    def _submit(self, job_id: str, study_id: str | None = None, name: str = "") -> None:
        """Queue a stored job, which is listed under its study's name or its own."""
        self._kind.submit(Task(self._kind, job_id, study_id, name), self._run)

    @abstractmethod
    def _work(self, task: Task[ReplyT], row: Any) -> dict[str, Any]:
        """Do one job; the values of its end for the table. ``row``: of its table."""

    @abstractmethod
    def _log_details(self, row: Any) -> dict[str, Any]:
        """Details for the audit log of a job that has ended, besides its id and state; ``row``: of its table."""

    @abstractmethod
    def _subject(self, row: Any) -> wire.NoticeSubject:
        """What the notice of a job that has completed or failed is about; ``row``: of its table."""

    @abstractmethod
    def _view(self, db: Connection, row: Any) -> ViewT:
        """A job as its owner sees it; ``row``: of its table."""

    def _page(self, db: Connection, after: int, limit: int, **equal: Any) -> list[tuple[int, ViewT]]:
        rows = store.page(db, self._table, after=after, limit=limit, **equal)
        return [(row.seq, self._view(db, row)) for row in rows]

    def _find(self, db: Connection, job_id: str, **equal: str) -> Any:
        """The row of a job with these values. Raises NotFound."""
        row = store.find(db, self._table, job_id)
        if any(getattr(row, name) != value for name, value in equal.items()):
            raise NotFound(f"there is no such {self.noun}")
        return row

    def _fields(self, row: Any) -> dict[str, Any]:
        """What the views of all kinds say of a job; ``row``: of its table."""
        is_running = row.state == "running"
        return {
            "id": row.id,
            "state": row.state,
            "progress": self._kind.progress(row.id, row.progress) if is_running else float(row.progress),
            "created_at": moment(row.created_at),
            "ended_at": moment(row.ended_at) if row.ended_at else None,
            "problem": row.problem,
        }

    # --- the work ---------------------------------------------------------------------------------

    def _run(self, task: Task[ReplyT]) -> None:
        """Do one job, and store its end as soon as the database can be written; not if it was cancelled or stopped."""
        try:
            with self._context.database.read() as db:
                row = store.find(db, self._table, task.id)
            if task.is_cancelled or row.state != "running":
                return
            ending = self._work(task, row)
        except BlindoptError as error:
            ending = {"state": "failed", "problem": str(error)}
        except Exception as error:  # its text may quote a value
            fields = {f"{self.noun}_id": task.id, "kind": type(error).__name__}
            log.error("fault", extra={"fields": fields})
            ending = {"state": "failed", "problem": f"a fault on our side ({type(error).__name__}): ask again"}
        while not self._kind.closing.is_set():
            try:
                self._context.database.write(lambda db: self._settle(db, task.id, **ending))
                return
            except (BlindoptError, StoreFault):
                self._kind.closing.wait(AGAIN_SECONDS)

    def _cancel(self, request: RequestContext, job_id: str, **equal: str) -> StoredReply:
        """Cancel a job with these values in its row. Raises NotFound, and StateConflict if it has ended otherwise."""

        def effect(db: Connection) -> Effect:
            state = self._find(db, job_id, **equal).state
            if state not in ("running", "cancelled"):
                raise StateConflict(f"the {self.noun} has ended already")
            if state == "running":
                self._end(db, job_id, state="cancelled")
            view, details = self._view(db, self._find(db, job_id)), {**equal, f"{self.noun}_id": job_id}
            return Effect(view, f"{self.noun}.cancelled", details, 200)

        reply = self._context.idempotency.once(request, effect)
        self._kind.cancel(job_id)
        return reply

    def _settle(self, db: Connection, job_id: str, **ending: Any) -> None:
        if self._end(db, job_id, **ending):
            row = store.find(db, self._table, job_id)
            details = {**self._log_details(row), f"{self.noun}_id": job_id, "state": ending["state"]}
            audit_log.append(db, f"{self.noun}.ended", actor="curator", now=self._context.clock(), details=details)
            self._context.outbox.add(db, self._ended, self._subject(row))

    def _end(self, db: Connection, job_id: str, **ending: Any) -> bool:
        task = self._kind.find(job_id)
        progress = {} if task is None else {"progress": task.progress}
        return store.end_job(db, self._table, job_id, ended_at=stamp(self._context.clock()), **(progress | ending))
