"""The problem of a tuning: its public values with the number of private records, and its private scores."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.errors import TuningFailed, TuningImpossible
from blindopt.wire.tuning import TUNING_GRID_MAX
from curator_service.privacy.noise import OnProgress

RECORDS_MAX = 10**9
WIDTH_MIN = 1e-250
"""The smallest range of a score: for a narrower one no lattice of doubles is fine enough for its noise."""
Score = float | Vector
"""The return value of ``evaluate``: see ``Problem.records``."""
Evaluate = Callable[[int], Score]
"""Returns the private score of the hyper-parameter with this grid index; larger is better."""
Records = Literal["computed", "scored", "averaged", "whole"]


@dataclass(frozen=True, slots=True)
class Facts:
    """Public facts about how models were trained; None for an unknown one.

    Weights are those of each grid point's model, trained on public data to optimality: no intercept, records
    with |x|_2 <= 1. ``lipschitz`` is L of one record's score in w (Euclidean norm).
    """

    weight_norm_max: float | None = None
    """max |w_l|."""
    weight_distance_max: float | None = None
    """max |w_l - w_l'|."""
    lipschitz: float | None = None
    lambda_min: float | None = None
    lambda_max: float | None = None
    """Of the L2 penalty l/2 |w|^2 over the grid."""
    training_loss: str | None = None
    """Such as ``logistic`` or ``hinge``."""
    training_error: float = 0.0
    """Bound on the distance of trained weights from the minimisers (Euclidean norm)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A finite grid (n, k) of public hyper-parameters, and scores of ``m`` private validation records in a range.

    ``lower`` and ``upper`` bound the score of each record and are public. ``records`` is what evaluate returns:

    - ``computed``: the scores of all m records, (m,), in any order; each is clipped to the range here, and their mean
      is the score. Each is computed by the curator itself, of its own record and of public models alone.
    - ``scored``: the same, from the owner's scorer, who promises that score i depends on record i, the
      hyper-parameters and public models alone. Otherwise one record may move all of them: sensitivity is g*, not g*/m.
    - ``averaged``: their mean. The scorer promises, too, that each record's score lies in the range.
    - ``whole``: any function of the whole dataset in the range: one record may move it from end to end.

    Raises TuningImpossible for an empty or invalid grid, no records, or a range that is none.
    """

    grid: Matrix = field(repr=False)
    m: int
    lower: float
    upper: float
    records: Records = "averaged"
    facts: Facts = Facts()

    def __post_init__(self) -> None:
        if self.grid.ndim != 2 or not 1 <= len(self.grid) <= TUNING_GRID_MAX or self.grid.shape[1] < 1:
            raise TuningImpossible(f"the grid needs 1 to {TUNING_GRID_MAX} hyper-parameters of one or more dimensions")
        if not np.isfinite(self.grid).all():
            raise TuningImpossible("the grid holds a number that is not finite")
        if not 1 <= self.m <= RECORDS_MAX:
            raise TuningImpossible("the validation dataset has no records: there is nothing to tune on")
        if not (math.isfinite(self.upper - self.lower) and self.lower < self.upper):
            raise TuningImpossible("the score needs a finite public range, with lower smaller than upper")
        if self.upper - self.lower < WIDTH_MIN:
            raise TuningImpossible(f"the range of the score is narrower than {WIDTH_MIN:g}: state it in other units")

    @property
    def n(self) -> int:
        return len(self.grid)

    @property
    def width(self) -> float:
        return self.upper - self.lower

    @property
    def moved(self) -> float:
        """How far one record can move a score: g* / m for a mean over the records, else g*."""
        return self.width if self.records == "whole" else self.width / self.m

    @property
    def middle(self) -> float:
        return self.lower + self.width / 2


@dataclass(slots=True)
class Objective:
    """The private scores of hyper-parameters, checked and clipped: nothing else reads them.

    It evaluates each hyper-parameter once and caches its score, unless evaluations are ``repeated``.
    """

    problem: Problem
    evaluate: Evaluate = field(repr=False)
    on_progress: OnProgress = field(repr=False)
    planned: int
    """The number of evaluations in the plan."""
    repeated: bool = False
    done: int = 0
    clipped: int = field(default=0, repr=False)
    _cache: dict[int, float] = field(default_factory=dict, repr=False)

    def offset(self, index: int) -> float:
        """The score of a hyper-parameter less the middle of the range: within half its width of 0."""
        value = self._cache.get(index)
        if value is None or self.repeated:
            value = self._cache[index] = self._score(index)
        self.done += 1
        self.on_progress(self.done / self.planned)
        return value

    def _score(self, index: int) -> float:
        problem = self.problem
        reply = self.evaluate(index)
        try:
            scores = np.asarray(reply, dtype=np.float64)
        except (TypeError, ValueError):  # whose text would quote it
            raise TuningFailed("the scorer returned something that is not a number: nothing was released") from None
        if scores.shape != ((problem.m,) if problem.records in ("computed", "scored") else ()):
            raise TuningFailed("the scorer did not return what the problem says: one score, or one for each record")
        if not np.isfinite(scores).all():  # the message does not say which score, because that depends on the data
            raise TuningFailed("the scorer returned something that is not a finite number: nothing was released")
        half = problem.width / 2
        with np.errstate(over="ignore"):  # infinity is clipped like the rest
            offsets = scores - problem.middle
        self.clipped += int(np.count_nonzero((scores < problem.lower) | (scores > problem.upper)))
        inside = np.clip(offsets, -half, half)
        # fsum rounds once, so the order of the records does not add to the effect of one of them on the mean.
        return math.fsum(inside.tolist()) / problem.m if scores.ndim else float(inside)
