"""Algorithms 1 to 3 of Kusner et al. (2015), with the constants of their theorems, and the third by public weights.

The first is GP-UCB on noisy scores. The second releases a score without noise, or that of a whole grid without A, tau.
The third releases the largest score of a search without a prior. It rests on convex training and a Lipschitz score: on
Theorem 7, corrected or as printed, or on the trained weights.
"""

from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal

import numpy as np

from blindopt.errors import TuningImpossible
from blindopt.gp.acquisition import beta
from blindopt.wire.base import Caution
from blindopt.wire.tuning import Kusner1, Kusner2, Kusner3, PublicWeights, TuningBudget
from curator_service.tuning.methods import cautions, constants, guarantees
from curator_service.tuning.methods.draws import Cost, Draws, Shares, split_events, value_alone
from curator_service.tuning.methods.grid_exponential import rounding, weights_sensitivity
from curator_service.tuning.methods.information import largest_gain
from curator_service.tuning.methods.plan import ExpectedError, Plan, Released, Search, worst_case_plan
from curator_service.tuning.methods.prior import Scaled, prior_average_plan
from curator_service.tuning.methods.problem import Objective, Problem
from curator_service.tuning.methods.simulation import sample_grid, sample_search

_WEIGHTS_DELTA = 0.05
"""The delta of the exploration weights of Algorithm 3. No guarantee rests on it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Sensitivities of lambda~ and v~ in scaled units, and the constants that they were computed from."""

    index: float | None
    value: float | None
    parts: dict[str, float]


def bounds(method: Kusner1, n: int, gamma: float, index_delta: float | None, value_delta: float | None) -> Bounds:
    """Compute the bounds of Theorems 1 and 3, each at its own delta; ``gamma`` bounds the gain of T scores."""
    prior, split = method.prior, method.delta_split
    sigma, evaluations, apart = prior.noise_sd, prior.evaluations, prior.one_minus_k1
    constants_used: dict[str, float] = {"gamma": gamma}
    index = value = None
    if index_delta is not None:
        index = constants.index_sensitivity(n, evaluations, apart, index_delta, split)
        if method.index_bound == "tight":
            index = constants.tight_index_sensitivity(n, apart, index_delta)
        elif method.index_bound == "clip":
            index = min(index, 2 * constants.clip_bound(n, index_delta))
        constants_used["beta_next"] = constants.beta(n, evaluations + 1, index_delta, split)
        constants_used["c_index"] = constants.c(n, apart, index_delta, split)
    if value_delta is not None:
        constants_used["beta_last"] = constants.beta(n, evaluations, value_delta, split)
        constants_used["omega_over_t"] = constants.regret_rate(sigma, evaluations, constants_used["beta_last"], gamma)
        constants_used["c_value"] = constants.c(n, apart, value_delta, split)
        constants_used["q"] = constants.q(sigma, evaluations, value_delta, method.q, split)
        value = constants.value_sensitivity(
            constants_used["omega_over_t"], constants_used["c_value"], constants_used["q"]
        )
    return Bounds(index, value, constants_used)


def algorithm_1(method: Kusner1, budget: TuningBudget, problem: Problem) -> Plan:
    """The plan of Algorithm 1. The search's beta_t is that of the delta of v~'s bound, or of lambda~'s without v~."""
    prior, shares = method.prior, split_events(budget)
    scaled = Scaled.of(prior, problem)
    gain = largest_gain(scaled.covariance, prior.noise_sd, prior.evaluations)
    index_delta, value_delta = (float(cost.delta) if cost else None for cost in (shares.index, shares.value))
    limits = bounds(method, problem.n, gain.upper, index_delta, value_delta)
    delta = value_delta or index_delta or 0.0
    betas = np.array([constants.beta(problem.n, t, delta, method.delta_split) for t in range(1, prior.evaluations + 1)])
    constants_used = {"gamma_lower": gain.lower, **limits.parts}
    draws = Draws.of(shares, index=limits.index, value=limits.value, unit=scaled.unit, constants=constants_used)
    clip = constants.clip_bound(problem.n, index_delta) if method.index_bound == "clip" and index_delta else None
    unproved = (cautions.UNPROVED,) if draws.value and method.q == "paper" else ()

    def release(objective: Objective, draws: Draws) -> Released:
        mean, largest = scaled.posterior_mean(betas, objective)
        inside = mean if clip is None else np.clip(mean, -clip, clip)
        index = draws.index.draw(inside) if draws.index else None
        return index, scaled.unscaled(draws.value.draw(largest) if draws.value else None)

    return prior_average_plan(
        scaled,
        replace(draws, shares=_charged(method, shares)),
        Search(len(betas), release),
        sample_search(scaled.world, betas, seed=0),
        kind="noisy bound",
        value_at="largest_score",
        addition=guarantees.kusner_1(method) if draws.value else "",
        warnings=(*unproved, cautions.TRACE),
    )


def _charged(method: Kusner1, shares: Shares) -> Shares:
    """The shares that are charged: v~ costs 5/3 of its delta by the printed split.

    It adds up two regret bounds at 1/2 each, and two events at 1/3.
    """
    if method.delta_split == "corrected" or shares.value is None:
        return shares
    delta = (shares.value.delta * 5 / 3).quantize(Decimal("1e-18"), rounding=ROUND_CEILING)
    real = replace(shares.value, delta=delta)
    return Shares(shares.index, real, shares.index + real if shares.index else Cost(real.epsilon, real.delta))


def algorithm_2(method: Kusner2, budget: TuningBudget, problem: Problem) -> Plan:
    """The plan by Theorem 5 with the caller's A and tau, or by c2 alone where the whole grid is scored."""
    prior, shares = method.prior, value_alone(budget, needs_delta=True)
    scaled, d = Scaled.of(prior, problem), problem.grid.shape[1]
    apart = constants.c2(problem.n, prior.one_minus_k1, float(shares.total.delta))
    if method.a is None or method.tau is None or method.last is None:
        moved, indices, rate = apart, range(problem.n), 0.0
    else:
        if prior.evaluations < 2:
            raise TuningImpossible(
                "Algorithm 2 needs two evaluations or more: its rate divides by ln T", "method.prior.evaluations"
            )
        if method.last >= problem.n:
            raise TuningImpossible(f"last is an index of the grid: from 0 to {problem.n - 1}", "method.last")
        moved = constants.last_sensitivity(method.a, method.tau, prior.evaluations, d, apart)
        indices, rate = range(method.last, method.last + 1), moved - apart
    draws = Draws.of(shares, value=moved, unit=scaled.unit, constants={"c2": apart, "regret_bound": rate})

    def release(objective: Objective, draws: Draws) -> Released:
        largest = max(scaled.exact(objective, index) for index in indices)
        return None, scaled.unscaled(draws.value.draw(largest) if draws.value else None)

    whole_plan = prior_average_plan(
        scaled,
        draws,
        Search(len(indices), release),
        sample_grid(scaled.world, seed=0),
        kind="bound",
        value_at="maximum",
        addition="" if method.whole_grid else guarantees.KUSNER_2,
        warnings=() if method.whole_grid else (cautions.CONSTANTS,),
    )
    if method.whole_grid:
        return whole_plan
    how = "The mean absolute error of v~, as the score of the last hyper-parameter."
    return replace(whole_plan, expected_error=ExpectedError(None, draws.noise.value_scale, how))


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
        return _search_plan(scaled, draws, guarantees.CONVEX)
    epsilon = shares.total.epsilon * (Decimal(corrected) / Decimal(printed))
    charged = Cost(epsilon.quantize(Decimal("1e-12"), rounding=ROUND_CEILING))
    condition = f"{guarantees.CONVEX} {guarantees.literal_theorem_7(shares.total, charged)}"
    return _search_plan(scaled, replace(draws, shares=Shares(None, charged, charged)), condition, cautions.REFUTED)


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
    return _search_plan(scaled, Draws.of(shares, value=moved, unit=scaled.unit), guarantees.WEIGHTS)


def _search_plan(scaled: Scaled, draws: Draws, condition: str, *warnings: Caution) -> Plan:
    betas = np.array([beta(scaled.problem.n, t, _WEIGHTS_DELTA) for t in range(1, scaled.search.evaluations + 1)])
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
