"""Searches whose largest score is released without a prior: Algorithm 3 of Kusner et al. (2015), and public weights.

Both rest on convex training and a Lipschitz score: on Theorem 7, corrected or as printed, or on the trained weights.
"""

from dataclasses import replace
from decimal import ROUND_CEILING, Decimal

import numpy as np

from blindopt.errors import TuningImpossible
from blindopt.gp.acquisition import beta
from blindopt.wire.base import Caution
from blindopt.wire.tuning import Kusner3, PublicWeights, TuningBudget
from curator_service.tuning.methods import cautions, constants, guarantees
from curator_service.tuning.methods.budget import Cost, Shares, value_alone
from curator_service.tuning.methods.draws import Draws
from curator_service.tuning.methods.grid_exponential import rounding, weights_sensitivity
from curator_service.tuning.methods.plan import ExpectedError, Plan, Released, Search, worst_case_plan
from curator_service.tuning.methods.prior import Scaled
from curator_service.tuning.methods.problem import Objective, Problem

_DELTA = 0.05
"""The delta of the exploration weights. No guarantee rests on it."""


def sensitivities(problem: Problem) -> tuple[float, float]:
    """The sensitivities by Theorem 7, corrected and as printed."""
    facts = problem.facts
    if problem.records == "whole":
        raise TuningImpossible("Algorithm 3 needs a score that is a mean over the records")
    if facts.lambda_min is None or facts.lambda_max is None or facts.lipschitz is None:
        raise TuningImpossible("Algorithm 3 needs lambda_min, lambda_max and L of the score: all public", "score.loss")
    if not 0 < facts.lambda_min <= facts.lambda_max:
        raise TuningImpossible("Algorithm 3 needs penalties with 0 < lambda_min <= lambda_max")
    ends = facts.lambda_min, facts.lambda_max
    corrected, printed = (
        constants.lipschitz_sensitivity(facts.lipschitz, problem.m, problem.width, ends, form)
        for form in ("corrected", "paper")
    )
    # Trained weights, and so their norms, may be off by training_error, at both penalties.
    more = rounding(problem) + 2 * facts.lipschitz * facts.training_error * (1 + 1 / problem.m)
    return corrected + more, printed + more


def algorithm_3(method: Kusner3, budget: TuningBudget, problem: Problem) -> Plan:
    """The plan of Algorithm 3. The printed form is charged epsilon times corrected / printed sensitivity."""
    shares, scaled = value_alone(budget, needs_delta=False), Scaled.of(method.search, problem)
    corrected, printed = (moved + scaled.rounding for moved in sensitivities(problem))
    moved = (printed if method.form == "paper" else corrected) / scaled.unit
    draws = Draws.of(shares, value=moved, unit=scaled.unit, constants={"corrected": corrected, "printed": printed})
    if method.form == "corrected" or problem.facts.training_loss == "logistic" or corrected == printed:
        return _plan(scaled, draws, guarantees.CONVEX)
    epsilon = shares.total.epsilon * (Decimal(corrected) / Decimal(printed))
    charged = Cost(epsilon.quantize(Decimal("1e-12"), rounding=ROUND_CEILING))
    condition = f"{guarantees.CONVEX} {guarantees.literal_theorem_7(shares.total, charged)}"
    return _plan(scaled, replace(draws, shares=Shares(None, charged, charged)), condition, cautions.REFUTED)


def distance_sensitivity(problem: Problem) -> float:
    """The sensitivity min(g*, L max|w_l - w_l'| + min(g*, 2 L max|w|) / m): a neighbour may lead to another model."""
    facts, at_one_model = problem.facts, weights_sensitivity(problem)
    if facts.weight_distance_max is None or facts.lipschitz is None:
        raise TuningImpossible(
            "this needs the largest distance between trained weights, and L of the score: public", "score.loss"
        )
    return min(problem.width, facts.lipschitz * facts.weight_distance_max + at_one_model) + rounding(problem)


def public_weights(method: PublicWeights, budget: TuningBudget, problem: Problem) -> Plan:
    """The plan like that of Algorithm 3, with the sensitivity of the weights, public because training data are."""
    shares, scaled = value_alone(budget, needs_delta=False), Scaled.of(method.search, problem)
    moved = (distance_sensitivity(problem) + scaled.rounding) / scaled.unit
    return _plan(scaled, Draws.of(shares, value=moved, unit=scaled.unit), guarantees.WEIGHTS)


def _plan(scaled: Scaled, draws: Draws, condition: str, *warnings: Caution) -> Plan:
    betas = np.array([beta(scaled.problem.n, t, _DELTA) for t in range(1, scaled.search.evaluations + 1)])
    how = "Exact: the mean absolute error of v~, as the largest score that the search finds."

    def release(objective: Objective, draws: Draws) -> Released:
        largest = scaled.largest_score(betas, objective)
        return None, scaled.unscaled(draws.value.draw(largest) if draws.value else None)

    return worst_case_plan(
        scaled.problem,
        draws,
        Search(len(betas), release),
        ExpectedError(None, draws.noise.value_scale, how),
        condition=condition,
        warnings=(*warnings, cautions.TRACE),
    )
