"""One runner of long work: for each kind a queue, a number at once, a deadline, progress, cancelling and the end."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic

from blindopt.arrays import Matrix
from blindopt.errors import BlindoptError
from service_kit.runner.program import Message, Program, ReplyT
from service_kit.runner.worker import Worker

CLOSE_SECONDS = 10.0
"""How long the end of a service waits for the work that it interrupts."""
KEEP_SECONDS = 10.0
"""How long a process that is kept waits for its next job."""
_INTERRUPTED = "it was interrupted"


@dataclass(eq=False)
class Task(Generic[ReplyT]):
    """Work that waits for its turn, or runs."""

    kind: "Kind[ReplyT]"
    id: str
    study_id: str | None = None
    name: str = ""
    turns: int = 1
    """How many it counts for among those that run at once."""
    progress: float = field(default=0.0, init=False)
    is_running: bool = field(default=False, init=False)
    is_late: bool = field(default=False, init=False)
    is_cancelled: bool = field(default=False, init=False)
    status: int | None = field(default=None, init=False)
    """The exit status of its process, unless that is kept."""
    turn: "Future[None]" = field(default_factory=Future, init=False)
    _worker: Worker[ReplyT] | None = field(default=None, init=False)

    def do(
        self,
        job: Message,
        array: Matrix | None = None,
        *,
        files: Sequence[int] = (),
        on_reply: Callable[[ReplyT], None] = lambda reply: None,
    ) -> ReplyT:
        """The last reply of a process to a job. If the process ended before, its ``problem`` says why.

        The process is killed at the deadline of its kind, if the work is cancelled, and when the service ends.
        """
        assert self.kind.program is not None
        last, late, is_read = self.kind.program.reply(problem=_INTERRUPTED), threading.Event(), False
        if self.is_cancelled:
            return last
        worker = self.kind.take(self.kind.program, files)
        try:
            with worker.deadline(self.kind.seconds) as late:
                self._runs_in(worker)
                for last in worker.work(job, array):
                    self.progress = last.progress or self.progress
                    on_reply(last)
            is_read = last.is_last and not worker.killed
        finally:
            self._runs_in(None)
            self.is_late = late.is_set()
            self.status = self.kind.give_back(worker, is_read=is_read)  # else its messages would be of the next job
        return last if last.is_last else last.model_copy(update={"problem": self._problem()})

    def _problem(self) -> str:
        if self.is_cancelled:
            return _INTERRUPTED
        if self.is_late:
            return f"it took longer than {self.kind.seconds:g} s{self.kind.advice_late}"
        return f"its process ended with status {self.status}; memory may be short{self.kind.advice_ended}"

    def _runs_in(self, worker: Worker[ReplyT] | None) -> None:
        with self.kind.changed:
            self._worker = worker
            if worker is not None and self.is_cancelled:
                worker.kill()

    def cancel(self) -> None:
        """End the work, or let it not begin."""
        with self.kind.changed:
            self.is_cancelled = True
            if self._worker is not None:
                self._worker.kill()


@dataclass(eq=False)
class Kind(Generic[ReplyT]):
    """Work of one kind: at most ``at_once`` run, in the order of the requests; safe for several threads.

    With ``waiting_max`` the newest is next, and of those that wait no more than so many are kept. A process is kept for
    ``keep_seconds`` for the next job. ``advice_late`` and ``advice_ended``: what the owner may do about such an end.
    """

    name: str
    program: Program[Any, ReplyT] | None = None
    """What its processes run; None: it has none."""
    make_worker: Callable[[Program[Any, ReplyT], Sequence[int]], Worker[ReplyT]] = Worker
    _: KW_ONLY
    at_once: float = 1
    seconds: float = threading.TIMEOUT_MAX
    waiting_max: int | None = None
    keep_seconds: float = 0.0
    is_listed: bool = True
    advice_late: str = ""
    advice_ended: str = ""
    closing: threading.Event = field(default_factory=threading.Event, init=False)
    changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    """Held to read or change tasks and the process that is kept."""
    _tasks: list[Task[ReplyT]] = field(default_factory=list, init=False)
    _idle: Worker[ReplyT] | None = field(default=None, init=False)

    # --- turns --------------------------------------------------------------------------------------

    def submit(self, task: Task[ReplyT], work: Callable[[Task[ReplyT]], None]) -> list[Task[ReplyT]]:
        """Queue a task, whose ``work`` is done in a thread of its own; the tasks that gave way to it."""
        self.in_thread(task, work)
        return self.enter(task)

    def in_thread(self, task: Task[ReplyT], work: Callable[[Task[ReplyT]], None]) -> None:
        """Do ``work``, which raises nothing, in a thread of its own when the task's turn comes."""

        def run() -> None:
            try:
                work(task)
            finally:
                self.leave(task)

        def start(turn: Future[None]) -> None:
            # A daemon: a process that is not closed in order must not wait for it.
            if not turn.cancelled():
                threading.Thread(target=run, daemon=True, name=f"{self.name} {task.id}").start()

        task.turn.add_done_callback(start)

    @contextmanager
    def held(self, task: Task[ReplyT], wait_s: float, refusal: BlindoptError) -> Iterator[Task[ReplyT]]:
        """The task, in its turn, which this thread waits for. Raises ``refusal`` if it does not come in time."""
        self.enter(task)
        try:
            try:
                task.turn.result(wait_s)
            except TimeoutError:
                raise refusal from None
            yield task
        finally:
            self.leave(task)

    def enter(self, task: Task[ReplyT]) -> list[Task[ReplyT]]:
        """Queue a task, whose ``turn`` is done when it may begin; the tasks that gave way to it."""
        with self.changed:
            task.is_cancelled = task.is_cancelled or self.closing.is_set()
            self._tasks.append(task)
        self._advance()
        with self.changed:
            waiting = [other for other in self._tasks if not other.is_running]
            dropped = [] if self.waiting_max is None else waiting[: -self.waiting_max or None]
        for other in dropped:
            other.turn.cancel()
            self.leave(other)
        return dropped

    def leave(self, task: Task[ReplyT]) -> None:
        with self.changed:
            if task in self._tasks:
                self._tasks.remove(task)
            task.is_running = False
            self.changed.notify_all()
        self._advance()

    def _advance(self) -> None:
        begins = []
        with self.changed:
            taken = sum(task.turns for task in self._tasks if task.is_running)
            for task in self._tasks if self.waiting_max is None else reversed(self._tasks):
                if task.is_running or task.turn.cancelled():
                    continue
                if taken + task.turns > self.at_once:  # others do not pass it
                    break
                if task.turn.set_running_or_notify_cancel():
                    taken, task.is_running = taken + task.turns, True
                    begins.append(task)
        for task in begins:
            task.turn.set_result(None)

    # --- what is known of a task ----------------------------------------------------------------------

    def find(self, task_id: str) -> Task[ReplyT] | None:
        with self.changed:
            return next((task for task in self._tasks if task.id == task_id), None)

    def progress(self, task_id: str, before: float = 0.0) -> float:
        """The share of a task that is done; ``before`` if it has ended."""
        task = self.find(task_id)
        return before if task is None else task.progress or before

    def cancel(self, task_id: str) -> None:
        """End a task if it has not ended; one that waits does not begin."""
        if (task := self.find(task_id)) is not None:
            task.cancel()

    def under_way(self) -> list[tuple[Task[ReplyT], int]]:
        """The tasks that have not ended, in their order, each with how many come before it: 0 once it runs."""
        with self.changed:
            tasks = [task for task in self._tasks if not task.is_cancelled]
            return [(task, 0 if task.is_running else position) for position, task in enumerate(tasks)]

    # --- processes and the end ------------------------------------------------------------------------

    def take(self, program: Program[Any, ReplyT], files: Sequence[int]) -> Worker[ReplyT]:
        """The process that was kept, if it lives, or a new one, which has these open files."""
        with self.changed:
            idle, self._idle = self._idle, None
        if idle is not None:
            if not idle.has_ended:
                return idle
            idle.end()  # somebody killed it, as a machine does that is short of memory
        return self.make_worker(program, files)

    def give_back(self, worker: Worker[ReplyT], *, is_read: bool) -> int | None:
        """Keep a process whose messages were all read, or end it: its exit status."""
        if not is_read or not self.keep_seconds or self.closing.is_set():
            return worker.end()
        with self.changed:
            self._idle = worker
        timer = threading.Timer(self.keep_seconds, self._rest, [worker])
        timer.daemon = True
        timer.start()
        return None

    def _rest(self, worker: Worker[ReplyT] | None) -> None:
        with self.changed:
            if self._idle is not worker:
                return
            self._idle = None
        if worker is not None:
            worker.end()

    def close(self) -> None:
        """Interrupt all work now; what is asked for later is interrupted at once."""
        with self.changed:
            self.closing.set()
            for task in self._tasks:
                task.cancel()
            self.changed.notify_all()
        self._rest(self._idle)

    def wait(self, until: float) -> None:
        """Wait for interrupted work that runs, until this time of the monotonic clock at most."""
        with self.changed:
            ended = lambda: not any(task.is_running for task in self._tasks)  # noqa: E731
            self.changed.wait_for(ended, max(0.0, until - time.monotonic()))


class Runner:
    """All kinds of long work of a service."""

    def __init__(self) -> None:
        self.kinds: dict[str, Kind[Any]] = {}

    def add(self, kind: Kind[ReplyT]) -> Kind[ReplyT]:
        self.kinds[kind.name] = kind
        return kind

    def under_way(self) -> list[tuple[Task[Any], int]]:
        """The tasks of each kind that have not ended, in their order, with how many of the kind come before each."""
        return [entry for kind in self.kinds.values() if kind.is_listed for entry in kind.under_way()]

    def close(self) -> None:
        """Interrupt all work, and wait a while for its end."""
        until = time.monotonic() + CLOSE_SECONDS
        for kind in self.kinds.values():
            kind.close()
        for kind in self.kinds.values():
            kind.wait(until)
