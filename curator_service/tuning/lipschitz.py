"""Searches whose largest score is released without a prior: Algorithm 3, and its variant with public weights."""

from dataclasses import dataclass, field

import numpy as np

from blindopt.arrays import Vector
from blindopt.gp.acquisition import beta
from blindopt.wire.base import Caution
from blindopt.wire.tuning_methods import TuningSearch, TuningSpec
from curator_service.tuning import cautions
from curator_service.tuning.budget import Shares
from curator_service.tuning.draws import Draws
from curator_service.tuning.objective import Objective
from curator_service.tuning.plan import ExpectedError, Plan, worst_case_plan
from curator_service.tuning.prior import Scaled
from curator_service.tuning.private_search import largest_score

_DELTA = 0.05
"""The delta of the exploration weights. No guarantee rests on it."""


@dataclass(frozen=True, slots=True)
class LargestSearch:
    """Runs GP-UCB with exploration weights ``betas`` (T,) and releases the largest score."""

    scaled: Scaled
    betas: Vector = field(repr=False)

    @property
    def evaluations(self) -> int:
        return len(self.betas)

    def release(self, objective: Objective, draws: Draws) -> tuple[int | None, float | None]:
        largest = largest_score(self.scaled, self.betas, objective)
        return None, self.scaled.unscaled(draws.value.draw(largest) if draws.value else None)


def lipschitz_plan(
    spec: TuningSpec,
    search: TuningSearch,
    scaled: Scaled,
    shares: Shares,
    draws: Draws,
    *,
    condition: str,
    warnings: tuple[Caution, ...] = (),
    **parts: float,
) -> Plan:
    """The plan of such a search; ``parts`` are the constants of its sensitivity."""
    problem, noise = scaled.problem, draws.noise(scaled.unit, **parts)
    betas = np.array([beta(problem.n, t, _DELTA) for t in range(1, search.evaluations + 1)])
    how = "Exact: the mean absolute error of v~, as the largest score that the search finds."
    return worst_case_plan(
        spec,
        problem,
        shares,
        draws,
        noise,
        LargestSearch(scaled, betas),
        expected=ExpectedError(None, noise.value_scale, how),
        condition=condition,
        warnings=(*warnings, cautions.TRACE),
    )
