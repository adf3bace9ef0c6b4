"""Algorithm 3 of Kusner et al. (2015): convex training, a Lipschitz score, and Theorem 7, corrected or as printed."""

from decimal import ROUND_CEILING, Decimal

from blindopt.errors import TuningImpossible
from blindopt.wire.tuning_methods import Kusner3, TuningSpec
from curator_service.tuning import cautions, constants, guarantees
from curator_service.tuning.budget import Cost, Shares, value_alone
from curator_service.tuning.draws import Draws
from curator_service.tuning.grid_exponential import rounding
from curator_service.tuning.lipschitz import lipschitz_plan
from curator_service.tuning.plan import Plan
from curator_service.tuning.prior import Scaled
from curator_service.tuning.problem import Problem


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


def plan(spec: TuningSpec, method: Kusner3, problem: Problem) -> Plan:
    """The plan of Algorithm 3. The printed form is charged epsilon times corrected / printed sensitivity."""
    shares = value_alone(spec.budget, needs_delta=False)
    scaled = Scaled.of(method.search, problem)
    corrected, printed = (moved + scaled.rounding for moved in sensitivities(problem))
    literal = method.form == "paper"
    draws = Draws.of(None, "exponential", ((printed if literal else corrected) / scaled.unit, shares.value))
    cost = shares.total
    if literal and problem.facts.training_loss != "logistic":
        ratio = Decimal(corrected) / Decimal(printed)
        cost = Cost((cost.epsilon * ratio).quantize(Decimal("1e-12"), rounding=ROUND_CEILING))
    refuted = cost != shares.total
    return lipschitz_plan(
        spec,
        method.search,
        scaled,
        Shares(None, cost, cost),
        draws,
        condition=guarantees.CONVEX + (f" {guarantees.literal_theorem_7(shares.total, cost)}" if refuted else ""),
        warnings=(cautions.REFUTED,) if refuted else (),
        corrected=corrected,
        printed=printed,
    )
