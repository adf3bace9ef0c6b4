"""What a worker process holds of a run: one part of the candidates, from their file, and the observations so far."""

import platform
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from blindopt.arrays import Matrix, Rows, Vector
from blindopt.errors import EngineUnavailable, NumericalFailure
from blindopt.formats import npy_files
from blindopt.formats.release_files import Section
from blindopt.gp.observations import Observations
from blindopt.gp.parts import Leaders, Model, Parts, Search, Threads

PACKED_MIN = 1_000
"""Equal rows from which on a reply has one bit for each row of the part, in place of their numbers."""

TESTED = {
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
}
"""What workers run with in deploy/dask: without these keys they are slow, or end a run that fits."""


def versions() -> dict[str, str]:
    """What must be the same in all processes that work on one thing."""
    try:
        own = version("blindopt")
    except PackageNotFoundError:  # a checkout on the path
        own = "checkout"
    return {"Python": platform.python_version(), "numpy": np.__version__, "blindopt": own}


def differences(own: dict[str, str], others: dict[str, str]) -> list[str]:
    """The versions of another process that differ, in words."""
    return [f"{name} {others.get(name)} instead of {own[name]}" for name in own if others.get(name) != own[name]]


def about_worker() -> tuple[list[str], dict[str, str]]:
    """Run at a worker: the keys of its configuration that are not as tested, and its versions."""
    from dask import config

    return [name for name, value in TESTED.items() if config.get(name, "absent") is not value], versions()


@dataclass(frozen=True, slots=True)
class PartSpec:
    """One part: ``rows`` of the candidates (n, r) in a file, with its sections that hold them.

    It is worked on by ``threads`` threads.
    """

    path: str
    shape: tuple[int, ...]
    sections: tuple[Section, ...]
    rows: range
    model: Model
    threads: int = 1


@dataclass(frozen=True, slots=True)
class News:
    """Observations ``since`` .. t - 1, for who has the ones before: those up to the one with the serial ``base``.

    ``factor`` has their rows of L (t - since, t), and ``places`` those of refined candidates.
    """

    since: int
    base: int
    rows: Rows
    serials: Rows
    factor: Matrix
    weights: Vector
    places: dict[int, Vector]


@dataclass(frozen=True, slots=True)
class Packed:
    """Leaders of which many are equal, with ``top``: bits of the part, and all others one by one."""

    bits: np.ndarray[tuple[int], np.dtype[np.uint8]]
    top: float
    others: Leaders


def news_of(observed: Observations, since: int) -> News:
    t = observed.count
    base = int(observed.serials[since - 1]) if since else -1
    new = slice(since, t)
    rows, serials, weights = observed.rows[new].copy(), observed.serials[new].copy(), observed.weights[new].copy()
    places = {row: observed.places[row] for row in rows[observed.is_refined(rows)].tolist()}
    return News(since, base, rows, serials, observed.factor[new, :t].copy(), weights, places)


class PartHost:
    """One part, and a copy of the observations. Neither is kept anywhere: they are built again where they are needed.

    Calls may come twice, or late, and one at a time. Raises EngineUnavailable, with the last component of the path, for
    a file that is missing or not the right one.
    """

    def __init__(self, spec: PartSpec) -> None:
        self._path, self._rows, self._key = spec.path, spec.rows, _key(spec.path)
        candidates = self._candidates(spec)
        self._observations = Observations(candidates.shape[1], 1.0, spec.model.nugget, spec.model.capacity)
        self._threads = Threads(spec.threads, spec.threads)
        ranges, self._norm = self._threads.build_some(candidates, spec.rows, spec.model, self._observations)
        self._parts, self._largest = Parts(self._threads, ranges), -1.0

    def about(self) -> tuple[float, dict[str, str]]:
        """The largest squared norm of the part, and the versions of this process."""
        return self._norm, versions()

    def leaders(self, news: News, largest: float, search: Search) -> Leaders | Packed | None:
        """Leaders of the part, or None where observations before the news are not the ones here."""
        return packed(self._parts.leaders(search), self._rows) if self._take(news, largest) else None

    def moments(self, news: News, largest: float, rows: Rows | None) -> tuple[Vector, Vector] | None:
        """Means and variances of rows of the part, or of all of them; None as ``leaders``."""
        return self._parts.moments(rows) if self._take(news, largest) else None

    def _candidates(self, spec: PartSpec) -> Matrix:
        for section in spec.sections:
            if not _is_in(section, spec.path, self._key):
                raise _wrong(spec.path, section)
        try:
            candidates = npy_files.load(Path(spec.path))
        except NumericalFailure:  # a file that ends too early, in the section of another part
            raise _wrong(spec.path) from None
        # The header may be in the section of another part: a file of these rows has no other header.
        ends_at = getattr(candidates, "offset", 0) + candidates.nbytes
        if candidates.shape != spec.shape or not candidates.flags.c_contiguous or ends_at != self._key[2]:
            raise _wrong(spec.path)
        return candidates

    def _take(self, news: News, largest: float) -> bool:
        """Make the observations those up to the end of the news. False if they cannot be."""
        if self._largest != largest:
            self._threads.begin(largest)
            self._largest = largest
        observed, since = self._observations, news.since
        if since > observed.count or (since and observed.serials[since - 1] != news.base):
            return False
        if _key(self._path) != self._key:
            raise _wrong(self._path)
        observed.retract(since)
        observed.places.update(news.places)
        nowhere = np.zeros(observed.inputs.shape[1])
        for index, row in enumerate(news.rows.tolist()):
            t = since + index
            line = news.factor[index]
            observed.append(row, nowhere, line[:t], float(line[t]), float(news.weights[index]))
            observed.serials[t] = news.serials[index]
        return True


def packed(leaders: Leaders, rows: range) -> Leaders | Packed:
    if len(leaders.rows) < PACKED_MIN:
        return leaders
    top = leaders.low.max()
    equal = (leaders.low == top) & (leaders.high == top)
    bits = np.zeros(len(rows), dtype=np.bool_)
    bits[leaders.rows[equal] - rows.start] = True
    return Packed(np.packbits(bits), float(top), Leaders(*(values[~equal] for values in leaders)))


def arrays_of(result: Any) -> dict[str, Any]:
    """The result of a method of a part as words and arrays, which ``result_of`` reads again; none for None."""
    match result:
        case None:
            return {}
        case Packed():
            return {"arrays": [np.array([result.top]), result.bits, *result.others]}
        case Leaders() | (np.ndarray(), np.ndarray()):
            return {"arrays": list(result)}
        case (norm, dict(others)):
            return {"arrays": [np.array([float(norm)])], "words": others}
    raise TypeError("this is no result of a part")


def result_of(words: dict[str, str], arrays: list[Any]) -> Any:
    """The result of a method of a part. Raises ValueError, TypeError or the like for what no part replies."""
    match arrays:
        case []:
            return None
        case [norm]:
            return float(norm[0]), words
        case [mean, variance]:
            return mean, variance
        case [rows, low, high]:
            return Leaders(rows, low, high)
        case [top, bits, rows, low, high]:
            return Packed(bits, float(top[0]), Leaders(rows, low, high))
    raise ValueError("arrays")


def unpacked(leaders: Leaders | Packed, rows: range) -> Leaders:
    """Leaders of the part with these rows, checked. Raises ValueError for what no part replies."""
    if isinstance(leaders, Packed):
        if leaders.bits.dtype != np.uint8 or leaders.bits.shape != (-(-len(rows) // 8),):
            raise ValueError("bits")
        equal = np.flatnonzero(np.unpackbits(leaders.bits, count=len(rows))) + rows.start
        others, tops = leaders.others, np.full(len(equal), float(leaders.top))
        order = np.argsort(np.concatenate([equal, others.rows]), kind="stable")
        leaders = Leaders(
            np.concatenate([equal, others.rows])[order],
            np.concatenate([tops, others.low])[order],
            np.concatenate([tops, others.high])[order],
        )
    shapes = {values.shape for values in leaders}
    types = [values.dtype for values in leaders]
    if len(shapes) != 1 or leaders.rows.ndim != 1 or types != [np.intp, np.float64, np.float64]:
        raise ValueError("types")
    if len(leaders.rows) and not (rows.start <= leaders.rows[0] and leaders.rows[-1] < rows.stop):
        raise ValueError("range")
    if not (np.diff(leaders.rows) > 0).all():
        raise ValueError("order")
    return leaders


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
