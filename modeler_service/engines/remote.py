"""Parts of the candidates in other processes: what is sent to them, and what happens when one does not answer."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from blindopt.arrays import Matrix, Rows, Vector
from blindopt.errors import BlindoptError, EngineUnavailable, NumericalFailure
from blindopt.formats.release_files import Section
from blindopt.gp.engines import Divide, edges, split
from blindopt.gp.observations import Observations
from blindopt.gp.part import Answer, Law, Question
from blindopt.gp.progress import Tick
from modeler_service.engines.host import Message, News, PartSpec, news_of, unpacked
from service_kit.dask_cluster import differences, versions

TRIES = 5
"""Times that a part is built or questioned before the run waits for its engine."""
LOOK_SECONDS = 1.0
"""How often it is looked whether the worker of a question still lives."""
WORKER_BYTES = 256 << 20
"""Memory of a worker process before it holds a part."""
T = TypeVar("T")


class Pending(Protocol):
    """The result of what was begun, once it is there."""

    def result(self, timeout: float) -> Any:
        """The result. Raises TimeoutError while there is none, and any other error where there will be none."""
        ...


class Cluster(Protocol):
    """Worker processes that hold parts and call them."""

    def workers(self) -> dict[str, int]:
        """The living workers, with the bytes of memory that each may use (0: not limited)."""
        ...

    def build(self, worker: str, spec: PartSpec) -> Pending:
        """Begin to build a ``PartHost`` at a worker; the result is what its calls are made with."""
        ...

    def call(self, held: object, verb: str, *arguments: object) -> Pending:
        """Begin a call."""
        ...

    def close(self) -> None:
        """Leave the cluster, which frees what is held there."""
        ...


class _Lost(Exception):
    """A part gave no answer, or a wrong one."""


@dataclass(slots=True, eq=False)
class _Remote:
    """A part at a worker, and the serials of the observations that it had when it last answered."""

    rows: range
    worker: str = ""
    held: object = None
    norm: float = 0.0
    serials: Rows = field(default_factory=lambda: np.empty(0, dtype=np.intp))

    def news(self, observed: Observations) -> News:
        """The observations that the part lacks."""
        count = min(len(self.serials), observed.count)
        other = np.flatnonzero(self.serials[:count] != observed.serials[:count])
        return news_of(observed, int(other[0]) if len(other) else count)


class RemoteEngine:
    """An engine whose parts are at the workers of a cluster, one each.

    A part is a cache of its file and of the observations: one whose worker ended, or which answers nothing or
    something that is no answer, is built again at a living worker and gets all observations. After five times the
    engine is unavailable, and the run waits. No number that a worker computes enters a choice: answers say which rows
    to solve for, and are checked for types, order and range. Workers read candidates from their own file at ``path``.
    ``divide`` divides the rows among them.
    """

    def __init__(
        self,
        cluster: Cluster,
        path: str,
        sections: list[Section],
        step_seconds: float,
        tick: Tick,
        lease_seconds: float = 300.0,
        divide: Divide = edges,
    ) -> None:
        self._cluster, self._path, self._sections, self._divide = cluster, path, sections, divide
        self.step_seconds, self._lease_seconds, self._tick = step_seconds, lease_seconds, tick
        self._parts: list[_Remote] = []
        self._failures: dict[str, int] = {}
        """How often each worker failed."""
        self._reason = "its worker forgot what it was sent"

    def build(self, candidates: Matrix, law: Law, observations: Observations) -> float:
        """Build one part for each worker, in place of any others; return the largest squared norm.

        Raises MemoryError where the workers have too little memory for it.
        """
        self._law, self._observations, workers = law, observations, self.living()
        self._shape = candidates.shape
        n, width = len(candidates), np.dtype(law.dtype).itemsize * (law.capacity + law.lift.rank + 2) + 48
        self._parts = [_Remote(rows) for rows in self._divide(n, len(workers))]
        if limits := [limit for limit in workers.values() if limit]:
            free = min(limits) - WORKER_BYTES
            if width * len(self._parts[-1].rows) > free:
                needed = f"{-(-n * width // free):,} workers" if free > 0 else "workers with more memory"
                raise MemoryError(
                    f"{len(workers)} workers have too little memory for {n:,} candidates: {needed} would do"
                )
        self._each(self._parts, "about", lambda part: (), lambda part, reply: reply)
        self._largest = max(part.norm for part in self._parts)
        return self._largest

    def step(self, question: Question) -> list[Answer]:
        """Return the answers of all parts, in the order of their rows."""

        def message(part: _Remote) -> tuple[object, ...]:
            first, last = np.searchsorted(question.hidden, [part.rows.start, part.rows.stop])
            return (
                Message(
                    part.news(self._observations),
                    self._largest,
                    question.acquisition,
                    question.quantum,
                    question.centre,
                    question.hidden[first:last].copy(),
                ),
            )

        return self._each(self._parts, "answer", message, lambda part, reply: unpacked(reply, part.rows))

    def fetch(self, rows: Rows | None) -> tuple[Vector, Vector]:
        """Means and variances (m,) of candidates ``rows`` (rising), or of all."""
        wanted = np.arange(self._parts[-1].rows.stop) if rows is None else rows
        own = {self._parts[index]: part for index, part in split(wanted, [part.rows for part in self._parts])}

        def moments(part: _Remote, reply: Any) -> tuple[Vector, Vector]:
            mean, variance = reply
            return mean, variance

        moments_of = self._each(
            own, "moments", lambda part: (part.news(self._observations), self._largest, own[part]), moments
        )
        mean, variance = (np.concatenate(values) for values in zip(*moments_of, strict=True))
        return mean, variance

    def drop(self) -> None:
        """Leave the cluster."""
        self._parts.clear()
        self._cluster.close()

    # --- calls ------------------------------------------------------------------------------------

    def _each(
        self,
        parts: Iterable[_Remote],
        verb: str,
        arguments: Callable[[_Remote], tuple[object, ...]],
        check: Callable[[_Remote, Any], T],
    ) -> list[T]:
        """Call all ``parts`` side by side, and those that fail again; ``check`` raises ValueError for what is wrong."""
        results: dict[_Remote, T] = {}
        parts = list(parts)
        for _ in range(TRIES):
            missing = [part for part in parts if part not in results]
            if not missing:
                break
            self._hold([part for part in missing if part.held is None])
            serials = self._observations.serials[: self._observations.count].copy()
            begun = [
                (part, self._begin(self._cluster.call, part.held, verb, *arguments(part)))
                for part in missing
                if part.held is not None
            ]
            for part, call in begun:
                try:
                    reply = self._wait(part, call)
                    if reply is None and len(part.serials):  # it was built again behind our back, or lost something
                        part.serials = part.serials[:0]
                        continue
                    results[part] = _checked(check, part, reply)
                    if verb != "about":
                        part.serials = serials
                except _Lost as error:
                    self._lose(part, error)
        if len(results) < len(parts):
            raise EngineUnavailable(f"a part of the candidates is not answered for: {self._reason}")
        return [results[part] for part in parts]

    def _hold(self, parts: list[_Remote]) -> None:
        """Build parts at living workers, each where as few as possible are and failed."""
        begun = []
        for part in parts:
            workers = self.living()
            held = [other.worker for other in self._parts]
            part.worker = min(workers, key=lambda name: (self._failures.get(name, 0), held.count(name), name))
            first, last = part.rows.start, part.rows.stop
            sections = tuple(each for each in self._sections if each.rows.start < last and first < each.rows.stop)
            spec = PartSpec(self._path, self._shape, sections, first, last, self._law, self._lease_seconds)
            begun.append((part, self._begin(self._cluster.build, part.worker, spec)))
        for part, call in begun:
            try:
                held_part = self._wait(part, call)
                part.norm = _checked(_norm, part, self._wait(part, self._begin(self._cluster.call, held_part, "about")))
                part.held = held_part
            except _Lost as error:
                self._lose(part, error)

    def _begin(self, work: Callable[..., Pending], *arguments: object) -> Pending | None:
        """Begin a call, or to build a part; None where it cannot even begin."""
        try:
            return work(*arguments)
        except Exception:
            return None

    def _wait(self, part: _Remote, call: Pending | None) -> Any:
        """The result of a call. Raises _Lost without one: the worker ended, failed, or took too long."""
        if call is None:
            raise _Lost("its worker was lost")
        deadline = time.monotonic() + self.step_seconds
        while True:
            try:
                return call.result(LOOK_SECONDS)
            except TimeoutError:
                pass
            except NumericalFailure:
                raise
            except Exception as error:
                raise _Lost(str(error) if isinstance(error, BlindoptError) else type(error).__name__) from None
            self._tick()
            if time.monotonic() > deadline:
                raise _Lost("its worker did not answer within ENGINE_STEP_SECONDS")
            if part.worker not in self.living():
                raise _Lost("its worker was lost")

    def _lose(self, part: _Remote, error: _Lost) -> None:
        self._reason = str(error)
        self._failures[part.worker] = self._failures.get(part.worker, 0) + 1
        part.held, part.serials = None, part.serials[:0]
        part.worker = ""

    def living(self) -> dict[str, int]:
        """The living workers, with their memory. Raises EngineUnavailable without any."""
        try:
            workers = self._cluster.workers()
        except Exception as error:
            raise EngineUnavailable(f"the scheduler does not answer ({type(error).__name__})") from None
        if not workers:
            raise EngineUnavailable("the scheduler has no worker")
        return workers


def _checked(check: Callable[[_Remote, Any], T], part: _Remote, reply: Any) -> T:
    try:
        return check(part, reply)
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise _Lost("it answered what no part answers") from error


def _norm(part: _Remote, reply: Any) -> float:
    """The largest squared norm of a part. Raises EngineUnavailable for a worker of other versions."""
    norm, others = reply
    if wrong := differences(versions(), others):
        raise EngineUnavailable(f"a worker has {', '.join(wrong)}")
    return float(norm)
