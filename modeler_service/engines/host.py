"""What a worker process holds of a run: one part of the candidates, from their file, and the observations so far."""

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from blindopt.arrays import Matrix, Rows, Vector
from blindopt.errors import EngineUnavailable, NumericalFailure
from blindopt.formats import npy_files
from blindopt.formats.release_files import Section
from blindopt.gp.acquisition import Acquisition
from blindopt.gp.engines import edges, split
from blindopt.gp.observations import Observations
from blindopt.gp.part import Answer, Law, Part, Question
from service_kit.dask_cluster import versions

PACKED_MIN = 1_000
"""Equal rows from which on an answer has one bit for each row of the part, in place of their numbers."""
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class PartSpec:
    """One part: rows ``first`` .. ``last - 1`` of the candidates (n, r) in a file, with its sections that hold them.

    It is worked on by ``threads`` threads, and freed after ``lease_seconds`` without a call.
    """

    path: str
    shape: tuple[int, ...]
    sections: tuple[Section, ...]
    first: int
    last: int
    law: Law
    lease_seconds: float
    threads: int = 1


@dataclass(frozen=True, slots=True)
class News:
    """Observations ``since`` .. t - 1, for who has the ones before: those up to the one with the serial ``base``.

    ``factor`` has their rows of L (t - since, t).
    """

    since: int
    base: int
    rows: Rows
    serials: Rows
    factor: Matrix
    weights: Vector


@dataclass(frozen=True, slots=True)
class Message:
    """A question to one part, with the observations that it lacks. It may come twice, or late."""

    news: News
    largest: float
    """Squared norm of the candidates of all parts."""
    acquisition: Acquisition
    quantum: float
    centre: float
    hidden: Rows


@dataclass(frozen=True, slots=True)
class Packed:
    """An answer in which ``count`` rows are equal, with ``top``: bits of the part, and all others one by one."""

    bits: np.ndarray[tuple[int], np.dtype[np.uint8]]
    top: float
    others: Answer


def news_of(observed: Observations, since: int) -> News:
    """The observations from number ``since`` on."""
    t = observed.count
    base = int(observed.serials[since - 1]) if since else -1
    new = slice(since, t)
    rows, serials, weights = observed.rows[new].copy(), observed.serials[new].copy(), observed.weights[new].copy()
    return News(since, base, rows, serials, observed.factor[new, :t].copy(), weights)


class PartHost:
    """One part, and a copy of the observations. Neither is kept anywhere: they are built again where they are needed.

    What is not called for the seconds of its lease is freed, and built again by the next call: a modeler that died
    leaves nothing. Raises EngineUnavailable, with the last component of the path, for a file that is missing or not the
    right one.
    """

    def __init__(self, spec: PartSpec) -> None:
        self._spec, self._lock = spec, threading.Lock()
        self._parts: list[Part] = []
        self._pool = ThreadPoolExecutor(spec.threads, thread_name_prefix="part") if spec.threads > 1 else None
        self.lease_ends = 0.0
        """When what is held may be freed, by ``time.monotonic``."""
        with self._used():
            pass

    @property
    def is_free(self) -> bool:
        """Whether nothing is held."""
        return not self._parts

    def about(self) -> tuple[float, dict[str, str]]:
        """The largest squared norm of the part, and the versions of this process."""
        with self._used():
            return max(part.largest for part in self._parts), versions()

    def answer(self, message: Message) -> Answer | Packed | None:
        """Answer a question, or None where observations before the news are not the ones here."""
        with self._used():
            if not self._take(message.news, message.largest):
                return None
            question = Question(message.acquisition, message.quantum, message.centre, message.hidden)
            answers = self._map(lambda part: part.answer(question), self._parts)
            answer = answers[0] if len(answers) == 1 else Answer(*map(np.concatenate, zip(*answers, strict=True)))
            return packed(answer, range(self._spec.first, self._spec.last))

    def moments(self, news: News, largest: float, rows: Rows) -> tuple[Vector, Vector] | None:
        """Means and variances of rows of the part, or None as ``answer``."""
        with self._used():
            if not self._take(news, largest):
                return None
            own = split(rows, [part.rows for part in self._parts])
            moments = self._map(lambda item: self._parts[item[0]].moments(item[1]), own)
            mean, variance = (np.concatenate(values) for values in zip(*moments, strict=True))
            return mean, variance

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Hold the part while it is used, and for the lease after that."""
        with self._lock:
            if not self._parts:
                self._build()
                self._look_after(self._spec.lease_seconds)
            try:
                yield
            finally:
                self.lease_ends = time.monotonic() + self._spec.lease_seconds

    def _build(self) -> None:
        spec = self._spec
        self._key = _key(spec.path)
        for section in spec.sections:
            if not _is_in(section, spec.path, self._key):
                raise _wrong(spec.path, section)
        try:
            candidates, law = npy_files.load(Path(spec.path)), spec.law
        except NumericalFailure:  # a file that ends too early, in the section of another part
            raise _wrong(spec.path) from None
        # The header may be in the section of another part: a file of these rows has no other header.
        ends_at = getattr(candidates, "offset", 0) + candidates.nbytes
        if candidates.shape != spec.shape or not candidates.flags.c_contiguous or ends_at != self._key[2]:
            raise _wrong(spec.path)
        self._observations = Observations(candidates.shape[1], 1.0, law.nugget, law.capacity)
        self._largest = -1.0
        own = edges(spec.last - spec.first, spec.threads)
        ranges = [range(spec.first + rows.start, spec.first + rows.stop) for rows in own]
        self._parts = self._map(lambda rows: Part(candidates, rows, law, self._observations), ranges)

    def _map(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        return list(map(work, items) if self._pool is None else self._pool.map(work, items))

    def end(self) -> None:
        """Free what is held if its lease has ended, or look again when it will have."""
        with self._lock:
            if (seconds := self.lease_ends - time.monotonic()) > 0:
                self._look_after(seconds)
            else:
                self._parts.clear()

    def _look_after(self, seconds: float) -> None:
        timer = threading.Timer(seconds, _end, [weakref.ref(self)])
        timer.daemon = True
        timer.start()

    def _take(self, news: News, largest: float) -> bool:
        """Make the observations those up to the end of the news. False if they cannot be."""
        if self._largest != largest:
            self._map(lambda part: part.begin(largest), self._parts)
            self._largest = largest
        observed, since = self._observations, news.since
        if since > observed.count or (since and observed.serials[since - 1] != news.base):
            return False
        if _key(self._spec.path) != self._key:
            raise _wrong(self._spec.path)
        observed.retract(since)
        nothing = np.zeros(observed.inputs.shape[1])
        for index, row in enumerate(news.rows.tolist()):
            t = since + index
            line = news.factor[index]
            observed.append(row, nothing, line[:t], float(line[t]), float(news.weights[index]))
            observed.serials[t] = news.serials[index]
        return True


def _end(host: "weakref.ref[PartHost]") -> None:
    if (held := host()) is not None:
        held.end()


def packed(answer: Answer, rows: range) -> Answer | Packed:
    """An answer in as few bytes as it takes."""
    if len(answer.rows) < PACKED_MIN:
        return answer
    top = answer.low.max()
    equal = (answer.low == top) & (answer.high == top)
    bits = np.zeros(len(rows), dtype=np.bool_)
    bits[answer.rows[equal] - rows.start] = True
    return Packed(np.packbits(bits), float(top), Answer(*(values[~equal] for values in answer)))


def unpacked(answer: Answer | Packed, rows: range) -> Answer:
    """An answer of the part with these rows, checked. Raises ValueError for what no part answers."""
    if isinstance(answer, Packed):
        if answer.bits.dtype != np.uint8 or answer.bits.shape != (-(-len(rows) // 8),):
            raise ValueError("bits")
        equal = np.flatnonzero(np.unpackbits(answer.bits, count=len(rows))) + rows.start
        others, tops = answer.others, np.full(len(equal), float(answer.top))
        order = np.argsort(np.concatenate([equal, others.rows]), kind="stable")
        answer = Answer(
            np.concatenate([equal, others.rows])[order],
            np.concatenate([tops, others.low])[order],
            np.concatenate([tops, others.high])[order],
        )
    shapes = {values.shape for values in answer}
    types = [values.dtype for values in answer]
    if len(shapes) != 1 or answer.rows.ndim != 1 or types != [np.intp, np.float64, np.float64]:
        raise ValueError("types")
    if len(answer.rows) and not (rows.start <= answer.rows[0] and answer.rows[-1] < rows.stop):
        raise ValueError("range")
    if not (np.diff(answer.rows) > 0).all():
        raise ValueError("order")
    return answer


def _key(path: str) -> tuple[int, ...]:
    try:
        status = Path(path).stat()
    except OSError:
        raise _wrong(path) from None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=1_024)
def _is_in(section: Section, path: str, key: tuple[int, ...]) -> bool:
    """Whether a section is in a file, which is read once in a process as long as it stays the same."""
    return section.is_in(Path(path))


def _wrong(path: str, section: Section | None = None) -> EngineUnavailable:
    rows = "" if section is None else f": candidates {section.rows.start} to {section.rows.stop - 1} are not there"
    return EngineUnavailable(f"a worker lacks {Path(path).name}, or has another file of that name{rows}")
