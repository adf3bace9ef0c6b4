"""Searches whose largest score is released without any prior: Algorithm 3, and its capped form."""

from dataclasses import dataclass, field

import numpy as np

from blindopt.arrays import Vector
from blindopt.gp.acquisition import beta
from blindopt.wire.tuning_methods import TuningSearch
from curator_service.tuning.draws import Draws
from curator_service.tuning.plan import Outcome, Plan
from curator_service.tuning.prior import Scaled
from curator_service.tuning.private_search import largest_score
from curator_service.tuning.problem import Evaluate, Progress
from curator_service.tuning.readings import Readings

_DELTA = 0.05
"""Of the exploration weights alone: nothing that is promised rests on it."""


@dataclass(frozen=True, slots=True)
class LipschitzPlan(Plan):
    """GP-UCB for T scores; whatever it asks for, the largest moves by the sensitivity at most."""

    scaled: Scaled
    draws: Draws
    betas: Vector = field(repr=False)

    def run(self, evaluate: Evaluate, progress: Progress = lambda share: None) -> Outcome:
        readings = Readings(self.problem, evaluate, progress, len(self.betas))
        largest = largest_score(self.scaled, self.betas, readings)
        value = self.draws.value.draw(largest) if self.draws.value else None
        return Outcome(None, self.scaled.told(value), readings.clipped, len(self.betas))


def exploration(search: TuningSearch, n: int) -> Vector:
    """beta_t (T,)."""
    return np.array([beta(n, t, _DELTA) for t in range(1, search.evaluations + 1)])


HOW = "Exact: the mean absolute error of v~, as the largest score that the search finds."
