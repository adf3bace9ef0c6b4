"""GP-UCB as in Algorithm 1, with a sensitivity measured on simulated neighbours.

Both runs of a pair get the same noise, step by step, and choose for themselves: docs/tuning.md has the proof.
"""

import numpy as np

from blindopt.wire.tuning import GpUcbSimulated, TuningBudget
from curator_service.tuning.methods import cautions, constants
from curator_service.tuning.methods.budget import shared_event
from curator_service.tuning.methods.draws import Draws
from curator_service.tuning.methods.objective import Objective
from curator_service.tuning.methods.plan import Plan, Released, Search
from curator_service.tuning.methods.prior import Scaled, prior_average_plan
from curator_service.tuning.methods.problem import Problem
from curator_service.tuning.methods.simulation import neighbour_differences, sample_search, upper_quantile


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

    def release(objective: Objective, draws: Draws) -> Released:
        """With the exploration weights of the simulated runs."""
        mean, _ = scaled.posterior_mean(betas, objective)
        index, value = draws.on(mean, value_at=method.value_at)
        return index, scaled.unscaled(value)

    return prior_average_plan(
        scaled,
        draws,
        Search(len(betas), release),
        sample_search(scaled.world, betas, method.seed),
        kind="simulated",
        value_at=method.value_at,
        warnings=(cautions.TRACE,),
    )
