"""What is tuned: the public side of it, and the one number that is told of the private side, its size."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.errors import TuningImpossible
from blindopt.wire.tuning_methods import TUNING_GRID_MAX

RECORDS_MAX = 10**9
WIDTH_MIN = 1e-250
"""Of the range of a score: where it is narrower, noise for it has no lattice of doubles that is fine enough."""
Score = float | Vector
"""What ``evaluate`` returns: see ``Problem.records``."""
Evaluate = Callable[[int], Score]
"""From a grid index to the private score of that hyper-parameter, larger is better."""
Progress = Callable[[float], None]
"""Is told the share of the evaluations that is done, from 0 to 1: public."""
Records = Literal["computed", "scored", "averaged", "whole"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is public about how models were trained; None where it is not known.

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
    """How far trained weights may be from the minimisers (Euclidean norm)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A finite grid (n, k) of public hyper-parameters, and scores of ``m`` private validation records in a range.

    ``lower`` and ``upper`` bound the score of each record and are public. ``records`` says what evaluate returns:

    - ``computed``: the scores of all m records, (m,), in any order; each is clipped to the range here, and their mean
      is the score. Each is computed by the curator itself, of its own record and of public models alone.
    - ``scored``: the same, told by someone else, whose word it is that score i depends on record i, the
      hyper-parameters and public models alone. Otherwise one record may move all of them: sensitivity is g*, not g*/m.
    - ``averaged``: their mean. That each record's score lies in the range is the scorer's word too.
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
            raise TuningImpossible(f"the range of the score is narrower than {WIDTH_MIN:g}: tell it in other units")

    @property
    def n(self) -> int:
        """Hyper-parameters in the grid."""
        return len(self.grid)

    @property
    def width(self) -> float:
        """g*: how far two scores can lie apart."""
        return self.upper - self.lower

    @property
    def middle(self) -> float:
        """Of the range."""
        return self.lower + self.width / 2
