"""Parts of the candidates at the workers of a Dask cluster: what is sent to them, and what happens without a reply."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import numpy as np

from blindopt.arrays import Matrix, Rows
from blindopt.errors import BlindoptError, EngineUnavailable, NumericalFailure, OutOfMemory
from blindopt.formats.release_files import Section
from blindopt.gp.observations import Observations
from blindopt.gp.parts import Model, edges
from blindopt.gp.progress import Tick
from modeler_service.engines.host import News, PartHost, PartSpec, news_of, unpacked
from service_kit.dask_cluster import DaskCluster, differences, versions

TRIES = 5
"""Times that a part is built or called before the run waits for its engine."""
LOOK_SECONDS = 1.0
"""How often it is looked whether the worker of a call still lives."""
WORKER_BYTES = 256 << 20
"""Memory of a worker process before it holds a part."""


class PartsCluster(DaskCluster):
    """A connection to workers that hold parts of the candidates as actors."""

    def build(self, worker: str, spec: PartSpec) -> Any:
        """The future of a part at a worker, which works on it with as many threads as it has."""
        where: Mapping[str, Any] = {"workers": [worker], "allow_other_workers": False, "retries": 0}
        spec = replace(spec, threads=int(self.present()[worker]["nthreads"]))
        return self.client.submit(PartHost, spec, actor=True, pure=False, key=f"part-{uuid4().hex}", **where)

    def call(self, actor: Any, method: str, *arguments: object) -> Any:
        """The future of a call of a part that was built."""
        with self.client.as_current():  # an actor takes the client that it is first called with
            return getattr(actor, method)(*arguments)


class _Lost(Exception):
    """A part gave no reply, or a wrong one."""


@dataclass(slots=True, eq=False)
class _Remote:
    """A part at a worker, and the serials of the observations that it had when it last replied."""

    rows: range
    worker: str = ""
    future: Any = None
    """What the cluster holds the part for."""
    actor: Any = None
    norm: float = 0.0
    serials: Rows = field(default_factory=lambda: np.empty(0, dtype=np.intp))


class Workers:
    """Parts at the workers of a cluster, one each.

    A part is a cache of its file and of the observations: one whose worker ended, or which replies nothing or
    something that no part replies, is built again at a living worker and gets all observations. After five times the
    engine is unavailable, and the run waits. No number that a worker computes enters a choice: leaders say which rows
    to solve for, and are checked for types, order and range. Workers read candidates from their own file at ``path``.
    """

    def __init__(
        self, cluster: PartsCluster, path: str, sections: list[Section], step_seconds: float, tick: Tick
    ) -> None:
        self._cluster, self._path, self._sections = cluster, path, sections
        self.step_seconds, self._tick = step_seconds, tick
        self._parts: list[_Remote] = []
        self._failures: dict[str, int] = {}
        """How often each worker failed."""
        self._reason = "its worker forgot what it was sent"

    def build(self, candidates: Matrix, model: Model, observations: Observations) -> tuple[list[range], float]:
        """Build one part for each worker. Raises OutOfMemory where the workers have too little memory for it."""
        self._model, self._observations, workers = model, observations, self.living()
        self._shape = candidates.shape
        n, width = len(candidates), np.dtype(model.dtype).itemsize * (model.capacity + model.scaling.rank + 2) + 48
        self._parts = [_Remote(rows) for rows in edges(range(n), len(workers))]
        if limits := [limit for limit in workers.values() if limit]:
            free = min(limits) - WORKER_BYTES
            if width * len(self._parts[-1].rows) > free:
                needed = f"{-(-n * width // free):,} workers" if free > 0 else "workers with more memory"
                raise OutOfMemory(
                    f"{len(workers)} workers have too little memory for {n:,} candidates: {needed} would do"
                )
        self._hold()
        self._largest = max(remote.norm for remote in self._parts)
        return [remote.rows for remote in self._parts], self._largest

    def each(self, method: str, arguments: Mapping[int, Any]) -> list[Any]:
        """Call parts side by side, and those that fail again, each with the observations that it lacks."""
        results: dict[int, Any] = {}
        for _ in range(TRIES):
            self._hold()
            serials = self._observations.serials[: self._observations.count].copy()
            missing = [(number, self._parts[number]) for number in arguments if number not in results]
            calls = [
                self._begin(self._cluster.call, remote.actor, method, *self._news(remote), arguments[number])
                for number, remote in missing
            ]
            for (number, remote), call in zip(missing, calls, strict=True):
                try:
                    reply = self._wait(remote, call)
                    if reply is None and len(remote.serials):  # it was built again behind our back, or lost something
                        remote.serials = remote.serials[:0]
                        continue
                    results[number] = _checked(CHECKS[method], remote, reply)
                    remote.serials = serials
                except _Lost as error:
                    self._lose(remote, error)
            if len(results) == len(arguments):
                return [results[number] for number in arguments]
        raise self._unavailable()

    def drop(self) -> None:
        self._parts.clear()
        self._cluster.close()

    def living(self) -> dict[str, int]:
        """The living workers, with their memory. Raises EngineUnavailable without any."""
        try:
            workers = self._cluster.workers()
        except Exception as error:
            raise EngineUnavailable(f"the scheduler does not answer ({type(error).__name__})") from None
        if not workers:
            raise EngineUnavailable("the scheduler has no worker")
        return workers

    def _news(self, remote: _Remote) -> tuple[News, float]:
        return news_of(self._observations, self._observations.common(remote.serials)), self._largest

    def _hold(self) -> None:
        """Build the parts that no worker holds at living workers, each where as few as possible are and failed."""
        for _ in range(TRIES):
            if not (lost := [remote for remote in self._parts if remote.actor is None]):
                return
            for remote in lost:
                workers, held = self.living(), [other.worker for other in self._parts]
                remote.worker = min(workers, key=lambda name: (self._failures.get(name, 0), held.count(name), name))
                rows = remote.rows
                sections = tuple(s for s in self._sections if s.rows.start < rows.stop and rows.start < s.rows.stop)
                spec = PartSpec(self._path, self._shape, sections, rows, self._model)
                remote.future = self._begin(self._cluster.build, remote.worker, spec)
            for remote in lost:
                try:
                    actor = self._wait(remote, remote.future)
                    reply = self._wait(remote, self._begin(self._cluster.call, actor, "about"))
                    remote.norm, remote.actor = _checked(_norm, remote, reply), actor
                except _Lost as error:
                    self._lose(remote, error)
        raise self._unavailable()

    def _begin(self, work: Callable[..., Any], *arguments: object) -> Any:
        """The future of a call, or of a part; None where it cannot even begin."""
        try:
            return work(*arguments)
        except Exception:
            return None

    def _wait(self, remote: _Remote, future: Any) -> Any:
        """The result of a call. Raises _Lost without one: the worker ended, failed, or took too long."""
        if future is None:
            raise _Lost("its worker was lost")
        deadline = time.monotonic() + self.step_seconds
        while True:
            try:
                return future.result(LOOK_SECONDS)
            except TimeoutError:
                if future.done():  # it is the worker that timed out
                    raise _Lost("TimeoutError") from None
            except NumericalFailure:
                raise
            except Exception as error:
                raise _Lost(str(error) if isinstance(error, BlindoptError) else type(error).__name__) from None
            self._tick()
            if time.monotonic() > deadline:
                raise _Lost("its worker did not answer within ENGINE_STEP_SECONDS")
            if remote.worker not in self.living():
                raise _Lost("its worker was lost")

    def _lose(self, remote: _Remote, error: _Lost) -> None:
        self._reason = str(error)
        self._failures[remote.worker] = self._failures.get(remote.worker, 0) + 1
        remote.worker, remote.future, remote.actor, remote.serials = "", None, None, remote.serials[:0]

    def _unavailable(self) -> EngineUnavailable:
        return EngineUnavailable(f"a part of the candidates is not answered for: {self._reason}")


def _checked(check: Callable[[Any, range], Any], remote: _Remote, reply: Any) -> Any:
    try:
        return check(reply, remote.rows)
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise _Lost("it answered what no part answers") from error


def _norm(reply: Any, rows: range) -> float:
    """The largest squared norm of a part. Raises EngineUnavailable for a worker of other versions."""
    norm, others = reply
    if wrong := differences(versions(), others):
        raise EngineUnavailable(f"a worker has {', '.join(wrong)}")
    return float(norm)


def _moments(reply: Any, rows: range) -> Any:
    mean, variance = reply
    return mean, variance


CHECKS: Mapping[str, Callable[[Any, range], Any]] = {"leaders": unpacked, "moments": _moments}
"""What makes a result of the reply to a method. Raises ValueError, TypeError or the like for what no part replies."""
