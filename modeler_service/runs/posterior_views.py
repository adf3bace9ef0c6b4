"""What is believed of f after the answers of a run: computed from its record when somebody asks."""

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix, Rows
from blindopt.errors import Invalid, StateConflict, StillRunning
from modeler_service.algorithms.factory import Learner
from modeler_service.choosing.chooser import RowChooser
from modeler_service.runs.record import Outline, Record
from service_kit.store.database import Database

WORK_MAX = 3e10
"""Multiplications of one look, about: seconds, not minutes."""
_BLOCK = 1 << 16
KEPT_BYTES = 256 << 20
WAIT_SECONDS = 20.0
QUANTILE = 1.959963984540054  # of a normal, for 95 %

Over = Literal["asked", "all"]


class Beliefs:
    """Recommendations and posteriors of runs, one computed at a time.

    The last state is kept, so that the next page of the same posterior costs little, if it is not large. What would
    take more than ``memory_max`` bytes or WORK_MAX multiplications is refused.
    """

    def __init__(self, database: Database, folder: Path, memory_max: int) -> None:
        self._database, self._folder, self._memory_max = database, folder, memory_max
        self._lock = threading.Lock()
        self._kept: tuple[str, int, int, RowChooser] | None = None

    def recommendation(self, identity: str, over: Over) -> wire.Recommendation:
        """The row to take. Raises StateConflict before an outcome is known."""

        def looked_at(run: Outline) -> int:
            if not run.outcomes:
                raise StateConflict("nothing is known yet: wait for the first answer")
            return run.begun.n if over == "all" else min(run.begun.n, run.outcomes)

        record = self._record(identity, looked_at)
        with _Held(self._lock):
            told = recommended(self._state(identity, record, looked_at(record.outline)), over)
        if told is None:
            raise Invalid(f"{record.spec.algorithm.name} estimates nothing: only the rows asked can be compared")
        return told

    def posterior(self, identity: str, after: int, limit: int) -> tuple[int, list[wire.PosteriorPoint]]:
        """``limit`` rows from row ``after`` on, and how many outcomes they rest on."""
        record = self._record(identity, lambda run: max(0, min(limit, run.begun.n - after)))
        rows = np.arange(after, min(after + limit, record.begun.n))
        with _Held(self._lock):
            return record.outcomes, _points(self._state(identity, record, len(rows)), rows)

    def top(self, identity: str, count: int) -> tuple[int, list[wire.PosteriorPoint]]:
        """The ``count`` rows of the best means, the best first; the smaller row of equals."""
        record = self._record(identity, lambda run: run.begun.n)
        with _Held(self._lock):
            choosing = self._state(identity, record, record.begun.n)
            mean, _ = _learner(choosing).moments(np.arange(record.begun.n))
            rows = np.argsort(-mean, kind="stable")[:count]
            return record.outcomes, _points(choosing, rows)

    def map(self, identity: str, count: int) -> wire.PosteriorMap:
        """Rows on the first two principal axes of Z: those asked, and about ``count`` others spread evenly."""
        record = self._record(identity, lambda run: min(run.begun.n, count))  # and those asked: looked at again, below
        asked = Counter(told.row for told in [*record.observations, *record.trials])
        n = record.begun.n
        spread = np.arange(n) if n <= count else np.linspace(0, n - 1, count).astype(np.intp)
        rows = np.union1d(spread, np.array(sorted(asked), dtype=np.intp))
        places, shares = on_axes(record.candidates(self._folder), rows)
        points: list[wire.PosteriorPoint] | None
        with _Held(self._lock):
            choosing = self._state(identity, record, len(rows))
            points = None if choosing.learner is None else _points(choosing, rows)
        return wire.PosteriorMap(
            outcomes=record.outcomes,
            shares=shares,
            rows=n,
            points=[
                wire.MapPoint(
                    row=int(row),
                    first=float(place[0]),
                    second=float(place[1]),
                    mean=points[at].mean if points else None,
                    sd=points[at].sd if points else None,
                    asked=asked[int(row)],
                )
                for at, (row, place) in enumerate(zip(rows, places, strict=True))
            ],
        )

    def _record(self, identity: str, rows: Callable[[Outline], int]) -> Record:
        """A run's record, for a look at so many ``rows``: refused before it is read where that would take too much."""
        with self._database.read() as db:
            outline = Outline.of(db, identity)
            self._check(outline, rows(outline))
            return Record.of(db, identity)

    def _check(self, run: Outline, rows: int) -> None:
        if work_of(run, rows) > WORK_MAX or run.memory > self._memory_max:
            raise Invalid(
                f"{run.outcomes} outcomes and {rows} rows are too many to compute at once: "
                "take fewer rows, or the export of the run"
            )

    def _state(self, identity: str, record: Record, rows: int) -> RowChooser:
        """The state after the answers so far, for a look at so many rows."""
        self._check(record.outline, rows)
        mark = identity, len(record.trials), record.told
        if self._kept is not None and self._kept[:3] == mark:
            return self._kept[3]
        self._kept = None  # before another one needs its memory
        choosing = record.replayed(record.candidates(self._folder))
        if record.outline.memory <= KEPT_BYTES:
            self._kept = *mark, choosing
        return choosing


class _Held:
    """One computation at a time; StillRunning where another one takes long."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=WAIT_SECONDS):
            raise StillRunning("another posterior is being computed: try again")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def on_axes(candidates: Matrix, rows: Rows) -> tuple[Matrix, list[float]]:
    """``rows`` (m, 2) on the first two principal axes of all candidates (n, r), and the shares of variance there.

    An axis points to where its largest entry is positive. By blocks of rows: candidates may be larger than memory.
    """
    n, r = candidates.shape
    middle = sum(candidates[at : at + _BLOCK].sum(axis=0) for at in range(0, n, _BLOCK)) / n
    spread = np.zeros((r, r))
    for at in range(0, n, _BLOCK):
        part = candidates[at : at + _BLOCK] - middle
        spread += part.T @ part
    values, vectors = np.linalg.eigh(spread)
    axes = vectors[:, ::-1][:, :2]
    axes = axes * np.where(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])] < 0, -1.0, 1.0)
    found = np.zeros((len(rows), 2))
    found[:, : axes.shape[1]] = (candidates[rows] - middle) @ axes
    total = float(values.sum())
    shares = [float(v) / total if total > 0 else 0.0 for v in [*values[::-1][:2], 0.0][:2]]
    return found, shares


def work_of(run: Outline, rows: int) -> float:
    """Multiplications that a look at so many rows takes, about."""
    t, n = float(run.outcomes), float(run.begun.n)
    match run.spec.algorithm:
        case wire.RandomRows():
            return t
        case wire.FewArmsSpec():
            return t * n * n
        case _:
            return 3 * t**3 + rows * t * t


def recommended(choosing: RowChooser, over: Over) -> wire.Recommendation | None:
    """The row of the best mean; None where nothing is known, or estimated."""
    if (found := choosing.best(over)) is None:
        return None
    by: Literal["posterior", "estimate", "observed"] = "posterior"
    if choosing.learner is None:
        by = "observed"
    elif choosing.few_arms:
        by = "estimate"
    reach = None if found.sd is None else QUANTILE * found.sd
    return wire.Recommendation(
        row=found.row,
        over=over,
        by=by,
        mean=found.mean,
        sd=found.sd,
        interval=None if reach is None else [found.mean - reach, found.mean + reach],
        outcomes=choosing.outcomes,
    )


def _learner(choosing: RowChooser) -> Learner:
    if choosing.learner is None:
        raise Invalid("the algorithm of this run estimates nothing")
    return choosing.learner


def _points(choosing: RowChooser, rows: Rows) -> list[wire.PosteriorPoint]:
    mean, variance = _learner(choosing).moments(rows)
    return [
        wire.PosteriorPoint(row=int(row), mean=float(choosing.sign * m), sd=float(v) ** 0.5)
        for row, m, v in zip(rows, mean, variance, strict=True)
    ]
