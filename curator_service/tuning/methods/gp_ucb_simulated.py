"""GP-UCB as in Algorithm 1, with a sensitivity measured on simulated neighbours.

Both runs of a pair get the same noise, step by step, and choose for themselves: docs/tuning.md has the proof.
"""

from dataclasses import dataclass, field

import numpy as np

from blindopt.arrays import Vector
from blindopt.wire.tuning import GpUcbSimulated, TuningBudget, ValueAt
from curator_service.tuning.methods import cautions, constants
from curator_service.tuning.methods.budget import shared_event
from curator_service.tuning.methods.draws import Draws
from curator_service.tuning.methods.objective import Objective
from curator_service.tuning.methods.plan import Plan
from curator_service.tuning.methods.prior import Scaled, prior_average_plan
from curator_service.tuning.methods.problem import Problem
from curator_service.tuning.methods.simulation import neighbour_differences, sample_search, upper_quantile


@dataclass(frozen=True, slots=True)
class MeanSearch:
    """Runs GP-UCB with exploration weights ``betas`` (T,), those of the simulated runs."""

    scaled: Scaled
    value_at: ValueAt
    betas: Vector = field(repr=False)

    @property
    def evaluations(self) -> int:
        return len(self.betas)

    def release(self, objective: Objective, draws: Draws) -> tuple[int | None, float | None]:
        mean, _ = self.scaled.posterior_mean(self.betas, objective)
        index, value = draws.on(mean, value_at=self.value_at)
        return index, self.scaled.unscaled(value)


def plan(method: GpUcbSimulated, budget: TuningBudget, problem: Problem) -> Plan:
    """The plan whose sensitivity is an order statistic of max |mu' - mu| over simulated pairs.

    It exceeds the (1 - delta) quantile with high probability.
    """
    prior, shares = method.prior, shared_event(budget)
    scaled, delta = Scaled.of(prior, problem), float(shares.total.delta)
    betas = np.array([constants.beta(problem.n, t, delta) for t in range(1, prior.evaluations + 1)])
    upper_quantile(np.zeros(method.pairs), delta)  # refuses too few pairs before they are simulated
    differences = neighbour_differences(scaled.world, betas, prior.one_minus_k1, method.pairs, method.seed)
    moved = upper_quantile(differences.mean, delta)
    draws = Draws.of(
        shares,
        index=moved,
        law=method.selection,
        value=moved,
        unit=scaled.unit,
        constants={"pairs": method.pairs, "median_difference": float(np.median(differences.mean))},
    )
    return prior_average_plan(
        scaled,
        draws,
        MeanSearch(scaled, method.value_at, betas),
        sample_search(scaled.world, betas, method.seed),
        kind="simulated",
        value_at=method.value_at,
        warnings=(cautions.TRACE,),
    )
