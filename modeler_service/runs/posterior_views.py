"""Recommendations, posteriors and maps of a run, computed from its record on request."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix, Rows, Vector
from blindopt.errors import Invalid, NumericalFailure, StateConflict, StillRunning
from blindopt.gp.acquisition import log_improvement
from blindopt.optimizer.chooser import Over, RowChooser, learner_of, points_of, recommendation_of
from modeler_service.runs.record import Outline, Record
from service_kit.context.exclusive import exclusive
from service_kit.store.database import Database

WORK_MAX = 3e10
"""The most multiplications of one view, about: seconds, not minutes."""
LAST_OUTCOMES = 1_000
"""The outcomes that a view is computed from where all of them are too many."""
_BLOCK = 1 << 16
KEPT_BYTES = 256 << 20
WAIT_SECONDS = 20.0

By = Literal["mean", "improvement"]
ROTATED = ("po_gp_ucb", "gaussian_projection", "axes")
"""Mechanisms whose columns of Z are mixtures of features."""
_AXES_MAX = 12


class PosteriorViews:
    """Computes recommendations and posteriors of runs, one at a time.

    The last state is kept if it is not large, so that the next page of the same posterior costs little. A view that
    needs more than ``memory_max`` bytes or ``work_max`` multiplications, also from ``last_outcomes`` alone, is refused.
    """

    def __init__(
        self,
        database: Database,
        folder: Path,
        memory_max: int,
        *,
        work_max: float = WORK_MAX,
        last_outcomes: int = LAST_OUTCOMES,
    ) -> None:
        self._database, self._folder, self._memory_max, self._work_max = database, folder, memory_max, work_max
        self._last_outcomes = last_outcomes
        self._lock = threading.Lock()
        self._kept: tuple[str, int, int, int, RowChooser] | None = None

    def recommendation(self, run_id: str, over: Over) -> wire.Recommendation:
        """Return the recommended row. Raises StateConflict before the first outcome."""

        def rows_needed(run: Outline) -> int:
            if not run.outcomes:
                raise StateConflict("nothing is known yet: wait for the first answer")
            return run.begun.n if over == "all" else min(run.begun.n, run.outcomes)

        with self._database.read() as db:
            outline = Outline.of(db, run_id)
            self._check(outline, rows_needed(outline))  # a recommendation is one of all outcomes, or none
            record = Record.of(db, run_id)
        with self._alone():
            recommendation = recommendation_of(self._state(run_id, record, rows_needed(record.outline)), over)
        if recommendation is None:
            raise Invalid(
                f"{record.plan.algorithm.name} estimates nothing: only queried rows can be compared, by two "
                "answers at least where answers are randomized"
            )
        return recommendation

    def posterior(self, run_id: str, after: int, limit: int) -> tuple[int, list[wire.PosteriorPoint]]:
        """Return the number of outcomes, and the posterior of ``limit`` rows from row ``after`` on."""
        record = self._record(run_id, lambda run: max(0, min(limit, run.begun.n - after)))
        rows = np.arange(after, min(after + limit, record.begun.n))
        with self._alone():
            return record.outcomes, points_of(self._state(run_id, record, len(rows)), rows)

    def top(self, run_id: str, count: int, by: By = "mean") -> tuple[int, list[wire.PosteriorPoint]]:
        """Return the ``count`` rows of the best means, or of the largest expected improvements, the best first.

        The smaller row of equals comes first.
        """
        record = self._record(run_id, lambda run: run.begun.n)
        with self._alone():
            chooser = self._state(run_id, record, record.begun.n)
            mean, sd = learner_of(chooser).moments(np.arange(record.begun.n))
            best = chooser.best("asked")
            gains = None if best is None else improvements(mean, sd, chooser.sign * best.mean)
            order = mean if by == "mean" or gains is None else gains
            rows = np.argsort(-order, kind="stable")[:count]
            points = points_of(chooser, rows)
        if gains is not None:
            points = [p.model_copy(update={"improvement": float(gains[p.row])}) for p in points]
        return record.outcomes, points

    def slices(self, run_id: str, count: int) -> wire.PosteriorSlices:
        """Return slices of the posterior mean along the axes of Z, over about ``count`` candidates spread evenly."""
        record = self._record(run_id, lambda run: min(run.begun.n, count))
        n, candidates = record.begun.n, record.candidates(self._folder)
        rows = np.arange(n) if n <= count else np.unique(np.linspace(0, n - 1, count).astype(np.intp))
        with self._alone():
            chooser = self._state(run_id, record, len(rows))
            means = chooser.sign * learner_of(chooser).moments(rows)[0]
        by: Literal["column", "principal_axis"]
        if record.begun.mechanism in ROTATED:
            by = "principal_axis"
            coordinates, shares = on_axes(candidates, rows, axes=min(_AXES_MAX, candidates.shape[1]))
        else:
            by, coordinates = "column", np.asarray(candidates[rows])
            variances = coordinates.var(axis=0)
            shares = (variances / (float(variances.sum()) or 1.0)).tolist()
        axes = [axis_slice(axis, share, coordinates[:, axis - 1], means) for axis, share in enumerate(shares, start=1)]
        axes.sort(key=lambda axis: -axis.relevance)
        return wire.PosteriorSlices(outcomes=record.outcomes, by=by, axes=axes)

    def map(self, run_id: str, count: int) -> wire.PosteriorMap:
        """Return rows on the first two principal axes of Z: those queried, and about ``count`` others spread evenly."""
        record = self._record(run_id, lambda run: min(run.begun.n, count))  # the rows queried are checked below
        queried = Counter([*(past.row for past in record.observations), *(trial.row for trial in record.trials)])
        n = record.begun.n
        spread = np.arange(n) if n <= count else np.linspace(0, n - 1, count).astype(np.intp)
        rows = np.union1d(spread, np.array(sorted(queried), dtype=np.intp))
        coordinates, shares = on_axes(record.candidates(self._folder), rows)
        points: list[wire.PosteriorPoint] | None
        with self._alone():
            chooser = self._state(run_id, record, len(rows))
            points = None if chooser.learner is None else points_of(chooser, rows)
        return wire.PosteriorMap(
            outcomes=record.outcomes,
            shares=shares,
            rows=n,
            points=[
                wire.MapPoint(
                    row=int(row),
                    first=float(first),
                    second=float(second),
                    mean=points[index].mean if points else None,
                    sd=points[index].sd if points else None,
                    asked=queried[int(row)],
                )
                for index, (row, (first, second)) in enumerate(zip(rows, coordinates, strict=True))
            ],
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Allow one computation at a time. Raises StillRunning if another one takes long.

        Raises StateConflict, with the reason, if the outcomes cannot be computed with.
        """
        refusal = StillRunning("another posterior is being computed: try again")
        with exclusive(self._lock, WAIT_SECONDS, refusal):
            try:
                yield
            except NumericalFailure as failure:
                raise StateConflict(f"the outcomes of this run cannot be computed with: {failure}") from None

    def _record(self, run_id: str, rows: Callable[[Outline], int]) -> Record:
        """Read a run's record for a view of ``rows``: its last outcomes alone if all of them would take too much.

        Raises Invalid before reading it if these would take too much, too.
        """
        with self._database.read() as db:
            outline = Outline.of(db, run_id)
            shortened = replace(outline, outcomes=min(outline.outcomes, self._last_outcomes))
            is_short = not self._fits(outline, rows(outline)) and shortened != outline
            self._check(shortened if is_short else outline, rows(outline))
            return Record.of(db, run_id, last=self._last_outcomes if is_short else None)

    def _fits(self, run: Outline, rows: int) -> bool:
        return work_of(run, rows) <= self._work_max and run.memory <= self._memory_max

    def _check(self, run: Outline, rows: int) -> None:
        if not self._fits(run, rows):
            raise Invalid(
                f"{run.outcomes} outcomes and {rows} rows are too many to compute at once: "
                "take fewer rows, or the export of the run"
            )

    def _state(self, run_id: str, record: Record, rows: int) -> RowChooser:
        """Return the state after the answers so far, for a view of so many rows."""
        self._check(record.outline, rows)
        key = run_id, record.outcomes, record.trials[-1].number if record.trials else 0, record.last_version
        if self._kept is not None and self._kept[:4] == key:
            return self._kept[4]
        self._kept = None  # free its memory first
        chooser = record.replayed(record.candidates(self._folder))
        if record.outline.memory <= KEPT_BYTES:
            self._kept = *key, chooser
        return chooser


def on_axes(candidates: Matrix, rows: Rows, block: int = _BLOCK, *, axes: int = 2) -> tuple[Matrix, list[float]]:
    """Project ``rows`` on the first principal axes of all candidates (n, r): (m, axes), and the shares of variance.

    The largest entry of an axis is positive. Candidates may be larger than memory: ``block`` rows are read at a time.
    """
    n, r = candidates.shape
    middle = sum(candidates[start : start + block].sum(axis=0) for start in range(0, n, block)) / n
    spread = np.zeros((r, r))
    for start in range(0, n, block):
        centred = candidates[start : start + block] - middle
        spread += centred.T @ centred
    values, vectors = np.linalg.eigh(spread)
    along = vectors[:, ::-1][:, :axes]
    along = along * np.where(along[np.abs(along).argmax(axis=0), np.arange(along.shape[1])] < 0, -1.0, 1.0)
    projected = np.zeros((len(rows), axes))
    projected[:, : along.shape[1]] = (candidates[rows] - middle) @ along
    total = float(values.sum())
    shares = [float(v) / total if total > 0 else 0.0 for v in [*values[::-1][:axes], *[0.0] * axes][:axes]]
    return projected, shares


def work_of(run: Outline, rows: int) -> float:
    """Estimate the multiplications of a view of so many rows."""
    t, n = float(run.outcomes), float(run.begun.n)
    match run.plan.algorithm:
        case wire.RandomRows():
            return t
        case wire.FewArmsSpec():
            return t * n * n
        case _:
            return 3 * t**3 + rows * t * t


def improvements(mean: Vector, sd: Vector, best: float) -> Vector:
    """Expected improvement on ``best`` of each row, in the direction of maximization; 0 where nothing is uncertain."""
    certain = sd <= 0
    spread = np.where(certain, 1.0, sd)
    improvement: Vector = spread * np.exp(log_improvement((mean - best) / spread))
    return np.where(certain, np.maximum(mean - best, 0.0), improvement)


BINS = 20
_LOW, _HIGH = 0.1, 0.9


def axis_slice(axis: int, share: float, coordinates: Vector, means: Vector, bins: int = BINS) -> wire.AxisSlice:
    """Group candidates by their coordinate (m,) along an axis, and summarize their posterior means (m,) in each group.

    Groups have about as many candidates each. The relevance is the correlation ratio: the variance of the group means
    over that of all means, 0 where the axis explains nothing and 1 where it explains all. Source: Saltelli et al.
    (2010), the first-order index, estimated by groups.
    """
    order = np.argsort(coordinates, kind="stable")
    groups = [group for group in np.array_split(order, min(bins, len(order))) if len(group)]
    total = float(means.var())
    middle = float(means.mean())
    between = sum(len(group) * (float(means[group].mean()) - middle) ** 2 for group in groups) / len(means)
    return wire.AxisSlice(
        axis=axis,
        share=share,
        relevance=min(1.0, between / total) if total > 0 else 0.0,
        parts=[_slice_part(coordinates[group], means[group]) for group in groups],
    )


def _slice_part(coordinates: Vector, means: Vector) -> wire.SlicePart:
    low, high = np.quantile(means, [_LOW, _HIGH])
    at = float(coordinates.mean())
    return wire.SlicePart(at=at, mean=float(means.mean()), low=float(low), high=float(high), rows=len(means))
