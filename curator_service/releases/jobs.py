"""Long work for the owner: jobs, one at a time, each in a process of its own."""

import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from blindopt.errors import BlindoptError, StateConflict
from curator_service import store
from curator_service.store import jobs
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.runner import Worker
from service_kit.store import audit_log
from service_kit.store.base import stamp
from service_kit.store.database import Connection, StoreFault
from service_kit.store.stored_replies import StoredReply

log = logging.getLogger("blindopt.jobs")
CLOSE_SECONDS = 5.0
AGAIN_SECONDS = 1.0
REST_SECONDS = 10.0


class Jobs(ABC):
    """At most one job runs, others wait in their order.

    A job that a crash or a shutdown interrupted is ``failed`` from the next start on. Logs hold ids and states, never
    results.
    """

    noun = ""
    stopped = ""
    """The problem of a job that was interrupted, and what to do."""
    _table: jobs.Table

    def __init__(self, context: ServiceContext, seconds_max: int, waiting_max: int) -> None:
        self._context = context
        self._seconds_max = seconds_max
        self._waiting_max = waiting_max
        self._progress: dict[str, float] = {}
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._current: tuple[str, Worker[Any]] | None = None
        self._closing = threading.Event()
        # A daemon: a process that is not closed in order must not wait for a job.
        self._thread = threading.Thread(target=self._serve, daemon=True, name=f"{self.noun}s")
        self._begun = False
        context.database.write(self._recover)

    def _recover(self, db: Connection) -> None:
        for identity in jobs.running(db, self._table):
            self._settle(db, identity, state="failed", problem=self.stopped)

    def close(self) -> None:
        """Stop the work now. Jobs that have not ended are marked failed at the next start."""
        self._closing.set()
        with self._lock:
            if self._current is not None:
                self._current[1].kill()
        self._queue.put(None)
        with self._lock:
            begun = self._begun
        if begun:
            self._thread.join(CLOSE_SECONDS)

    def under_way(self, db: Connection) -> list[tuple[Any, float]]:
        """Rows of jobs that have not ended, in their order, each with the share that is done."""
        rows = [store.find(db, self._table, identity) for identity in jobs.running(db, self._table)]
        return [(row, self._progress.get(row.id, row.progress)) for row in rows]

    # --- for subclasses -----------------------------------------------------------------------------

    def _check_room(self, db: Connection) -> None:
        """Raise StateConflict if as many jobs wait as may."""
        if jobs.count_running(db, self._table) > self._waiting_max:
            waiting = f"{self._waiting_max} {self.noun}s wait already"
            raise StateConflict(f"{waiting}: let one end, or cancel one, before you ask for more")

    def _submit(self, identity: str) -> None:
        """Queue a stored job. The first one starts the thread: by then the database has its event loop."""
        self._queue.put(identity)
        with self._lock:
            if not self._begun and not self._closing.is_set():
                self._begun = True
                self._thread.start()

    @abstractmethod
    def _work(self, identity: str) -> dict[str, Any] | None:
        """Run one job; the values of its end for the table, or None if it had ended before."""

    @abstractmethod
    def _log_details(self, row: Any) -> dict[str, Any]:
        """Details for the audit log of a job that has ended, besides its id and state; ``row``: of its table."""

    @abstractmethod
    def _notify(self, db: Connection, row: Any) -> None:
        """Write a notice that a job has completed or failed; ``row``: of its table."""

    def _rest(self) -> None:
        """Release what is kept for the next job, since none has come for a while."""
        return

    # --- the work ---------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (identity := self._next()) is not None and not self._closing.is_set():
            try:
                ending = self._work(identity)
            except BlindoptError as error:
                ending = {"state": "failed", "problem": str(error)}
            except Exception as error:  # its text may quote a value
                fields = {f"{self.noun}_id": identity, "kind": type(error).__name__}
                log.error("fault", extra={"fields": fields})
                ending = {"state": "failed", "problem": f"a fault on our side ({type(error).__name__}): ask again"}
            if ending is not None and not self._closing.is_set():
                self._keep(identity, ending)
            self._progress.pop(identity, None)

    def _next(self) -> str | None:
        """Wait for the next job; None at a shutdown."""
        try:
            return self._queue.get(timeout=REST_SECONDS)
        except queue.Empty:
            self._rest()
            return self._queue.get()

    @contextmanager
    def _running(self, identity: str, worker: Worker[Any]) -> Iterator[threading.Event]:
        """Kill the worker of a job if the job takes too long or is cancelled, or at a shutdown.

        The event is set if it took too long. The caller ends the worker.
        """
        with worker.deadline(self._seconds_max) as late:
            try:
                with self._lock:
                    self._current = identity, worker
                if self._closing.is_set() or not self._is_running(identity):
                    worker.kill()  # it was cancelled, or the shutdown began, before the lock was held
                yield late
            finally:
                with self._lock:
                    self._current = None

    def _cancelled(self, db: Connection, identity: str) -> Any:
        """Cancel a job that has not ended; its row after it. Raises StateConflict if it has ended otherwise."""
        state = store.find(db, self._table, identity).state
        if state not in ("running", "cancelled"):
            raise StateConflict(f"the {self.noun} has ended already")
        if state == "running":
            self._end(db, identity, state="cancelled")
        return store.find(db, self._table, identity)

    def _cancel(self, request: RequestContext, identity: str, effect: Callable[[Connection], Effect]) -> StoredReply:
        reply = self._context.idempotency.once(request, effect)
        self._kill(identity)
        return reply

    def _kill(self, identity: str) -> None:
        """End the process of a job if it is the one that runs."""
        with self._lock:
            if self._current is not None and self._current[0] == identity:
                self._current[1].kill()

    def _is_running(self, identity: str) -> bool:
        with self._context.database.read() as db:
            return bool(store.find(db, self._table, identity).state == "running")

    def _keep(self, identity: str, ending: dict[str, Any]) -> None:
        """Store the end of a job, as soon as the database can be written."""
        while not self._closing.is_set():
            try:
                self._context.database.write(lambda db: self._settle(db, identity, **ending))
                return
            except (BlindoptError, StoreFault):
                self._closing.wait(AGAIN_SECONDS)

    def _settle(self, db: Connection, identity: str, **ending: Any) -> None:
        """End a job, unless it has ended, and log its end."""
        if self._end(db, identity, **ending):
            row = store.find(db, self._table, identity)
            details = {**self._log_details(row), f"{self.noun}_id": identity, "state": ending["state"]}
            audit_log.append(db, f"{self.noun}.ended", actor="curator", now=self._context.clock(), details=details)
            self._notify(db, row)

    def _end(self, db: Connection, identity: str, **ending: Any) -> bool:
        progress = {"progress": self._progress[identity]} if identity in self._progress else {}
        return jobs.end(db, self._table, identity, ended_at=stamp(self._context.clock()), **(progress | ending))
