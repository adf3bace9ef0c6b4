"""Parts of the candidates at the workers of a Dask cluster: what is sent to them, and what happens without a reply."""

import io
import logging
import pickle  # noqa: TID251  it makes them alone, for a process of our own
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any
from weakref import finalize

import numpy as np

from blindopt import bodies
from blindopt.arrays import Matrix, Rows
from blindopt.errors import BlindoptError, EngineUnavailable, ExtraMissing, NumericalFailure, OutOfMemory
from blindopt.formats.release_files import Section
from blindopt.gp.observations import Observations
from blindopt.gp.parts import Model, edges
from blindopt.gp.progress import Tick
from modeler_service.engines.cluster import LINE_BYTES, Certificates, Opening, Reply
from modeler_service.engines.host import News, PartSpec, differences, news_of, result_of, unpacked, versions
from service_kit import landlock
from service_kit.runner.worker import start

TRIES = 5
"""Times that a part is built or called before the run waits for its engine."""
LOOK_SECONDS = 1.0
"""How often it is looked whether the worker of a call still lives."""
WORKER_BYTES = 256 << 20
"""Memory of a worker process before it holds a part."""
START_SECONDS = 60.0
"""How long the process of a cluster may take to start and connect, or to answer from what the scheduler tells."""
ENVELOPE_BYTES = 4 << 10
"""Bytes of a reply beside its numbers of candidates."""
PROGRAM = "modeler_service.engines.cluster"
PACKAGES = ("blindopt", "service_kit", "modeler_service", "distributed")
_log = logging.getLogger("blindopt.engine")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Handle:
    """A part that a worker holds until this object is forgotten."""

    number: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Request:
    future: "Future[Any]"
    read: Callable[[Reply, list[Any]], Any]
    most_bytes: int


class PartsCluster:
    """A cluster, through the process that alone connects to it: what comes from there is bounded, and no program.

    Raises EngineUnavailable if nobody answers, and ExtraMissing if Dask is not installed.
    """

    def __init__(self, address: str, certificates: Certificates | None) -> None:
        if find_spec("distributed") is None:
            raise ExtraMissing("distributed", "dask", "blindopt-services")
        self._process = start(PROGRAM, environment={})
        self._numbers, self._waiting, self._lock, self._end = count(), dict[int, _Request](), Lock(), ""
        self._messages: SimpleQueue[bytes | None] = SimpleQueue()  # the garbage collector may add to it at any moment
        readable = [*landlock.code_paths(*PACKAGES), *map(Path, certificates or ())]
        self._messages.put(pickle.dumps(Opening(address, certificates, readable)))
        for work in (self._write, self._read):
            Thread(target=work, daemon=True, name="cluster").start()
        try:
            self._ask("connect").result(START_SECONDS)
        except BaseException as error:
            self.close()
            if isinstance(error, TimeoutError):
                raise EngineUnavailable("the scheduler does not answer (TimeoutError)") from None
            raise

    def workers(self) -> dict[str, int]:
        """The living workers, with the bytes of memory that each may use (0: not limited)."""
        workers: dict[str, int] = self._ask("workers", read=lambda reply, arrays: reply.numbers).result(START_SECONDS)
        return workers

    def check(self) -> None:
        """Warn of settings with which workers are slow, or end a run that fits, with the names of the keys.

        Raises EngineUnavailable, with a list, if workers have other versions than this process, or lack the packages.
        """
        if keys := self._ask("check", read=lambda reply, arrays: sorted(reply.words)).result(START_SECONDS):
            _log.warning("workers run without the tested settings", extra={"fields": {"keys": keys}})

    def build(self, worker: str, spec: PartSpec) -> "Future[Any]":
        """The future of a part at a worker."""
        handle = _Handle(next(self._numbers), len(spec.rows))
        finalize(handle, self._messages.put, pickle.dumps((None, "free", (handle.number,))))
        return self._ask("build", handle.number, worker, spec, read=lambda reply, arrays: handle)

    def call(self, part: _Handle, method: str, *arguments: object) -> "Future[Any]":
        most_bytes = 24 * part.rows + ENVELOPE_BYTES
        return self._ask("call", part.number, method, *arguments, most_bytes=most_bytes)

    def close(self) -> None:
        """End the process: the scheduler frees what it holds for a client that is gone."""
        self._process.kill()
        self._messages.put(None)

    def _ask(
        self,
        verb: str,
        *arguments: object,
        read: Callable[[Reply, list[Any]], Any] = lambda reply, arrays: result_of(reply.words, arrays),
        most_bytes: int = 0,
    ) -> "Future[Any]":
        number, request = next(self._numbers), _Request(Future(), read, most_bytes)
        with self._lock:
            if self._end:
                raise EngineUnavailable(self._end)
            self._waiting[number] = request
        self._messages.put(pickle.dumps((number, verb, arguments)))
        return request.future

    def _write(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError), self._process.stdin as sink:  # the process has ended
            while (message := self._messages.get()) is not None:
                sink.write(message)
                sink.flush()

    def _read(self) -> None:
        """Take replies until the process ends, or sends what it never sends: then nobody listens to it any more."""
        assert self._process.stdout is not None
        end = "the connection to the cluster has ended"
        try:
            with self._process.stdout as source:
                while line := source.readline(LINE_BYTES + 1):
                    reply = bodies.parse(line, Reply, LINE_BYTES)
                    request = self._waiting[reply.number]
                    if sum(reply.arrays) > request.most_bytes:
                        raise ValueError("more bytes than were asked for")
                    _settle(request, reply, [_array(source.read(size)) for size in reply.arrays])
                    with self._lock:
                        del self._waiting[reply.number]
        except Exception as error:
            end = f"the cluster sent what no cluster sends ({type(error).__name__})"
        self.close()
        self._process.wait()
        with self._lock:
            self._end, waiting = end, [*self._waiting.values()]
        for request in waiting:
            request.future.set_exception(EngineUnavailable(end))


def _settle(request: _Request, reply: Reply, arrays: list[Any]) -> None:
    if reply.error == NumericalFailure.__name__:
        request.future.set_exception(NumericalFailure(reply.detail))
    elif reply.error:
        request.future.set_exception(EngineUnavailable(reply.detail or reply.error))
    else:
        request.future.set_result(request.read(reply, arrays))


def _array(content: bytes) -> Any:
    """An array in the format npy, without unpickling and without room for more than was sent."""
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("another version of the format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file, max_header_size=256)
    return np.frombuffer(content, dtype, offset=file.tell()).reshape(shape).copy()  # never of objects


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
                pass
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
