"""The lives of runs: queue, workers, leases, waiting, ends."""

import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from blindopt.errors import AuditUnavailable, BlindoptError, Remote, StorageUnavailable
from modeler_service import store
from modeler_service.runs import notices
from modeler_service.runs.interrupts import Interrupted, Pending, Signal
from modeler_service.runs.lease import can_retry
from modeler_service.runs.worker import Ending, Run
from modeler_service.settings import Settings
from service_kit.context.context import ServiceContext
from service_kit.context.outbox import Outbox
from service_kit.store import audit_log
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection

log = logging.getLogger("blindopt.runs")
CLOSE_SECONDS = 5.0
WATCH_SECONDS = 0.2
_REFUSALS = ("study_not_open", "privacy_budget_exhausted")
_HOW_TO_GO_ON = (
    "so for PEOPLE_DAYS nobody could be asked whether the query was answered, and the run has ended: start another "
    "with its answers as observations"
)
WAITS_MIN = 3  # before a run fails that waited too long: a clock that jumps ahead fails none
STUCK = "the curator keeps a request open without answering it"


@dataclass(slots=True)
class _Held:
    signal: Signal
    thread: threading.Thread
    lease: int | None = None
    again: bool = False
    """Whether it was submitted meanwhile."""


class Runs:
    """Works on runs in threads, several at once.

    What is under way at a shutdown or a crash goes on at the next start from the stored trials, and asks
    again under the same idempotency keys. A run waits without a worker for people who measure, and for a
    curator that does not answer, and goes on by itself; one whose worker makes no step is taken from it
    (its lease ends: it writes no more).
    """

    def __init__(self, context: ServiceContext, settings: Settings) -> None:
        self._context = context
        self._settings = settings
        self._told_after = timedelta(minutes=settings.notify_wait_minutes)
        self._folder = settings.data_dir / "candidates"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for leftover in self._folder.glob("*.part"):  # a kill in the middle of a transfer
            leftover.unlink()
        self._closing = threading.Event()
        self._holding = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._waiting: dict[str, datetime] = {}
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Take up what is unfinished, and work from now on."""
        with self._context.database.read() as db:
            unfinished = store.unfinished(db)
        for row in unfinished:
            if row.state == "waiting" and row.stop_asked_at is None and row.pause_asked_at is None:
                self._waiting[row.id] = moment(row.waits_until)
            else:
                self.submit(row.id)
        for _ in range(self._settings.concurrent_runs):
            self._add_worker()
        threading.Thread(target=self._watch, daemon=True, name="watch").start()

    def _add_worker(self) -> None:
        # Daemons: a curator that does not answer must not keep this process from ending.
        thread = threading.Thread(target=self._serve, daemon=True, name="run")
        self._threads.append(thread)
        thread.start()

    def submit(self, identity: str) -> None:
        """Queue a stored run."""
        self._waiting.pop(identity, None)
        self._queue.put(identity)

    def wake(self, identity: str) -> None:
        """Let a run that waits look now, and one that is looking look again."""
        if identity in self._waiting or identity in self._held:
            self.submit(identity)

    def halt(self, identity: str) -> None:
        """Tell a run's worker that what is stored of the run has changed: it leaves after the query under way."""
        if (held := self._held.get(identity)) is not None:
            held.signal.halt()

    def close(self) -> None:
        """Leave runs where they are; the next start takes them up. Waits a little for queries under way."""
        self._closing.set()
        for held in list(self._held.values()):
            held.signal.halt()
        for _ in self._threads:
            self._queue.put("")
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # --- workers ----------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (identity := self._queue.get()) and not self._closing.is_set():
            try:
                self._work(identity)
            except Exception as error:
                # A run whose end could not be stored stays as it is, and is taken up again.
                log.error("the end of a run could not be stored", extra={"fields": {"kind": type(error).__name__}})
            if threading.current_thread() not in self._threads:
                return  # another took this worker's place while it was stuck

    def _work(self, identity: str) -> None:
        self._context.audit_trail.check_sound()  # nothing is asked that the log could not tell
        # Held before what is stored is read: what it is told from now on reaches its signal.
        held = _Held(Signal(), threading.current_thread())
        with self._holding:
            if (holder := self._held.setdefault(identity, held)) is not held:
                holder.again = True  # it looks at what is stored when it lets go
                return
        stored = False
        try:
            held.lease = self._context.database.write(lambda db: self._take(db, identity))
            if held.lease is not None:
                self._end(identity, held.lease, self._outcome(identity, held.lease, held.signal))
            stored = True
        finally:
            self._let_go(identity, held, stored=stored)

    def _take(self, db: Connection, identity: str) -> int | None:
        """Begin to work on a run, or do what it was told meanwhile."""
        row, now = store.run(db, identity), stamp(self._context.clock())
        if row.ended_at is not None or row.state == "paused":
            return None
        if (halted := halted_state(row)) is not None:
            end(db, self._context.outbox, identity, halted, self._context.clock())
            return None
        started = row.started_at or now
        store.change_run(db, identity, state="running", started_at=started, waits_until=None, problem=None)
        return store.take(db, identity, now)

    def _let_go(self, identity: str, held: _Held, *, stored: bool, then: Callable[[], None] = lambda: None) -> None:
        """Hold a run no more, unless another does by now; what is stored of it says whether it is taken up again.

        Not at once where something could not be ``stored``: the disk is full, most likely. ``then`` is done
        first, if it was held.
        """
        with self._holding:
            if self._held.get(identity) is not held:
                return
            del self._held[identity]
        then()
        if self._closing.is_set():
            return
        soon = self._context.clock() + timedelta(seconds=self._settings.wait_seconds_first)
        try:
            with self._context.database.read() as db:
                row = store.run(db, identity)
        except Exception:
            self._waiting[identity] = soon  # whatever is stored of it, it is looked at again
            raise
        if row.state == "waiting" and not held.again:
            self._waiting[identity] = moment(row.waits_until)
        elif row.state in ("queued", "running") and not stored:
            self._waiting[identity] = soon
        elif row.state in ("queued", "waiting"):
            self.submit(identity)

    def _outcome(self, identity: str, lease: int, signal: Signal) -> Ending | None:
        """Work on a run; how it ended, or None if it only halted."""
        try:
            crowded = lambda: not self._queue.empty()  # noqa: E731
            return Run(self._context, self._settings, self._folder, identity, lease, signal, crowded).work()
        except Interrupted:
            return None
        except Pending:
            return self._waits_for_people(identity)
        except Remote as error:
            problem = _problem(error.remote_code, str(error))
            if error.remote_code in _REFUSALS:
                return {"state": "completed", "ended_because": "refused", "problem": problem}
            return self._waits(identity, problem) if can_retry(error) else _failed(problem)
        except BlindoptError as error:
            problem = _problem(error.code, str(error))
            ours = isinstance(error, StorageUnavailable | AuditUnavailable)
            return self._waits(identity, problem, ours=ours) if can_retry(error) else _failed(problem)
        except OSError as error:
            if (told := StorageUnavailable.of(error)) is None:
                return self._fault(identity, error)
            return self._waits(identity, _problem(told.code, str(told)), ours=True)
        except MemoryError:
            detail = "rows times queries need more memory than there is: ask for fewer iterations"
            return _failed(_problem("out_of_memory", detail))
        except Exception as error:
            return self._fault(identity, error)

    @staticmethod
    def _fault(identity: str, error: Exception) -> Ending:
        log.exception("a run failed", extra={"fields": {"run": identity}})
        return _failed(_problem("internal", f"a fault on our side ({type(error).__name__})"))

    def _waits(self, identity: str, problem: str, *, ours: bool = False) -> Ending:
        """Wait for a curator that does not answer; fail at the first contact, and in the end.

        What is ``ours``, a full disk say, passes at the first contact as later.

        The place of a run whose query people have is held for days, from the last time that its curator told so.
        """
        with self._context.database.read() as db:
            row = store.run(db, identity)
        now, settings = self._context.clock(), self._settings
        waiting = self._waiting_state(row, "curator", settings.wait_seconds_first, settings.wait_seconds_max)
        since, longest = moment(waiting["waiting_since"]), timedelta(hours=settings.wait_hours)
        if row.looked_at is not None:
            since, longest = moment(row.looked_at), timedelta(days=settings.people_days)
        too_long = now - since > longest and waiting["waits"] > WAITS_MIN
        if too_long and row.looked_at is not None:
            problem = _with_words(problem, _HOW_TO_GO_ON)
        if too_long or (row.study is None and not ours):
            return _failed(problem)
        return waiting | {"problem": problem}

    def _waits_for_people(self, identity: str) -> Ending:
        """Wait for those who measure; each look at the curator lets it hold its place from anew."""
        with self._context.database.read() as db:
            row = store.run(db, identity)
        waiting = self._waiting_state(row, "people", self._settings.people_seconds, self._settings.people_seconds_max)
        return waiting | {"problem": None, "looked_at": stamp(self._context.clock())}

    def _waiting_state(self, row: Any, what: str, first: float, longest: float) -> Ending:
        """Without a worker, twice as long each time. Another wait begins anew."""
        now, goes_on = self._context.clock(), row.waiting_for == what
        waits = row.waits if goes_on else 0
        since = row.waiting_since if goes_on and row.waiting_since else stamp(now)
        seconds = min(first * 2 ** min(waits, 30), longest)
        return {
            "state": "waiting",
            "waiting_for": what,
            "waiting_since": since,
            "waits_until": stamp(now + timedelta(seconds=seconds)),
            "waits": waits + 1,
        }

    def _end(self, identity: str, lease: int, ending: Ending | None) -> None:
        """Store how a worker left a run. One that was told to halt while it ended by itself has ended."""
        if ending is None and self._closing.is_set():
            return
        now = self._context.clock()

        def work(db: Connection) -> None:
            row = store.run(db, identity)
            if row.lease != lease or row.ended_at is not None:
                return
            waits = ending is not None and ending["state"] == "waiting"
            told = halted_state(row) if ending is None or waits else None
            if told is not None:
                end(db, self._context.outbox, identity, told, now)
            elif ending is None:  # its token was replaced, or a pause was taken back
                store.change_run(db, identity, state="queued")
            elif waits:
                store.change_run(db, identity, **ending)
                notices.waits(db, self._context.outbox, row, ending, now, self._told_after)
            else:
                end(db, self._context.outbox, identity, ending, now)

        self._context.database.write(work)

    # --- watching ---------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closing.wait(WATCH_SECONDS):
            try:
                self._wake()
                self._free()
            except Exception as error:  # the database cannot be written for now: look again
                log.error("runs could not be watched", extra={"fields": {"kind": type(error).__name__}})

    def _wake(self) -> None:
        """Queue waiting runs whose time has come."""
        now = self._context.clock()
        for identity, until in list(self._waiting.items()):
            if until <= now:
                self.submit(identity)

    def _free(self) -> None:
        """Take runs from workers that make no step, and put other workers in their place."""
        for identity, held in list(self._held.items()):
            late = time.monotonic() - held.signal.last_step > self._settings.lease_seconds
            if late and held.lease is not None:
                held.signal.halt()
                ending = self._waits(identity, _problem("unreachable", STUCK))
                self._end(identity, held.lease, ending)
                self._context.database.write(lambda db, i=identity: store.take(db, i, stamp(self._context.clock())))  # type: ignore[misc]
                self._let_go(identity, held, stored=True, then=lambda h=held: self._replace(h.thread))  # type: ignore[misc]

    def _replace(self, stuck: threading.Thread) -> None:
        self._threads.remove(stuck)  # should it ever come back, it ends
        self._add_worker()


def halted_state(row: Any) -> Ending | None:
    """What a run that was told to stop or to pause becomes."""
    if row.stop_asked_at is not None:
        return {"state": "stopped", "ended_because": "stopped"}
    return {"state": "paused"} if row.pause_asked_at is not None else None


def end(db: Connection, outbox: Outbox, identity: str, ending: Ending, now: datetime) -> None:
    """Store a state that no worker is needed for, and tell the log and who waits for the end."""
    none = dict.fromkeys(("waits_until", "waiting_since", "waiting_for", "problem"))
    values: dict[str, Any] = {**none, "waits": 0, **ending}
    if ending["state"] != "paused":
        values["ended_at"] = stamp(now)
        notices.ended(db, outbox, store.run(db, identity), ending)
    store.change_run(db, identity, **values)
    kind = "run.paused" if ending["state"] == "paused" else "run.ended"
    details = {"run_id": identity, "state": ending["state"], "because": ending.get("ended_because")}
    audit_log.append(db, kind, actor="modeler", now=now, details=details)


def _problem(code: str, detail: str) -> str:
    return json.dumps({"code": code, "detail": detail})


def _with_words(problem: str, words: str) -> str:
    told = json.loads(problem)
    return _problem(told["code"], f"{told['detail']}; {words}")


def _failed(problem: str) -> Ending:
    return {"state": "failed", "ended_because": "failed", "problem": problem}
