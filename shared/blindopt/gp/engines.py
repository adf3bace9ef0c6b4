"""Where the parts of the candidates are computed: the protocol of an engine, and the engine within this process."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import numpy as np

from blindopt.arrays import Matrix, Rows, Vector
from blindopt.gp.observations import Observations
from blindopt.gp.part import Answer, Law, Part, Question

T = TypeVar("T")
R = TypeVar("R")


class Engine(Protocol):
    """Holds the parts of the candidates of one posterior, and asks them.

    An engine changes the time and the memory of a choice, and never the choice: a part is a cache of its candidates
    and of the observations, which may be built again at any time.
    """

    def build(self, candidates: Matrix, law: Law, observations: Observations) -> float:
        """Build the parts of ``candidates`` (n, r), in place of any others; return the largest squared norm.

        Each question is about ``observations`` as they then are.
        """
        ...

    def step(self, question: Question) -> Iterable[Answer]:
        """Return the answers of all parts, in the order of their rows."""
        ...

    def fetch(self, rows: Rows | None) -> tuple[Vector, Vector]:
        """Means and variances (m,) of candidates ``rows`` (rising), or of all."""
        ...

    def drop(self) -> None:
        """Free what the parts hold."""
        ...


def edges(n: int, parts: int) -> list[range]:
    """Divide n rows into so many ranges of about the same size, none of them empty.

    >>> edges(10, 3)
    [range(0, 3), range(3, 6), range(6, 10)]
    """
    parts = max(1, min(parts, n))
    return [range(n * i // parts, n * (i + 1) // parts) for i in range(parts)]


Divide = Callable[[int, int], list[range]]
"""Divides n rows into parts, as ``edges`` does."""


def split(rows: Rows, ranges: list[range]) -> Iterator[tuple[int, Rows]]:
    """Return the parts that hold some of ``rows`` (rising), with these rows."""
    limits = np.searchsorted(rows, [part.start for part in ranges] + [ranges[-1].stop])
    for index in range(len(ranges)):
        if len(own := rows[limits[index] : limits[index + 1]]):
            yield index, own


class LocalEngine:
    """Parts in this process, worked on by up to ``threads`` threads at once.

    ``parts_of`` gives the number of parts for n candidates, and ``divide`` their rows. numpy leaves the interpreter to
    other threads while it computes; BLAS should have one thread then (``THREADS`` is what the service pins it to).
    """

    def __init__(self, parts_of: Callable[[int], int] = lambda n: 1, threads: int = 1, divide: Divide = edges) -> None:
        self._parts_of, self._divide = parts_of, divide
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="part") if threads > 1 else None
        self.parts: list[Part] = []

    def build(self, candidates: Matrix, law: Law, observations: Observations) -> float:
        """Build the parts, in place of any others; return the largest squared norm."""
        self.parts.clear()
        ranges = self._divide(len(candidates), self._parts_of(len(candidates)))
        self.parts = self._map(lambda rows: Part(candidates, rows, law, observations), ranges)
        largest = max(part.largest for part in self.parts)
        self._map(lambda part: part.begin(largest), self.parts)
        return largest

    def step(self, question: Question) -> list[Answer]:
        """Return the answers of all parts, in the order of their rows."""
        return self._map(lambda part: part.answer(question), self.parts)

    def fetch(self, rows: Rows | None) -> tuple[Vector, Vector]:
        """Means and variances (m,) of candidates ``rows`` (rising), or of all."""
        parts = self.parts
        if len(parts) == 1:
            return parts[0].moments(rows)
        if rows is None:
            moments = self._map(Part.moments, parts)
        else:
            own = split(rows, [part.rows for part in parts])
            moments = self._map(lambda item: parts[item[0]].moments(item[1]), own)
        mean, variance = (np.concatenate(values) for values in zip(*moments, strict=True))
        return mean, variance

    def drop(self) -> None:
        """Free what the parts hold, and end the threads."""
        self.parts.clear()
        if self._pool is not None:
            self._pool.shutdown()

    def _map(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        return list(map(work, items) if self._pool is None else self._pool.map(work, items))
