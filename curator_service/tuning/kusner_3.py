"""Algorithm 3 of Kusner et al. (2015): convex training, a Lipschitz score, and Theorem 7, corrected or as printed."""

from decimal import ROUND_CEILING, Decimal

from blindopt.errors import TuningImpossible
from blindopt.wire.tuning_methods import Kusner3, TuningSpec
from curator_service.tuning import cautions, constants, guarantees
from curator_service.tuning.budget import value_alone
from curator_service.tuning.draws import Draws
from curator_service.tuning.grid_exponential import rounding
from curator_service.tuning.lipschitz import HOW, LipschitzPlan, exploration
from curator_service.tuning.plan import Cost, ExpectedError
from curator_service.tuning.prior import Scaled
from curator_service.tuning.problem import Problem


def sensitivities(problem: Problem) -> tuple[float, float]:
    """Theorem 7 corrected, and as printed."""
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
    # Trained weights are that far from the minimisers, at both penalties, and their norms too.
    more = rounding(problem) + 2 * facts.lipschitz * facts.training_error * (1 + 1 / problem.m)
    return corrected + more, printed + more


def plan(spec: TuningSpec, method: Kusner3, problem: Problem) -> LipschitzPlan:
    """The printed form is charged for what its noise keeps: epsilon times corrected / printed sensitivity."""
    shares = value_alone(spec.budget, needs_delta=False)
    scaled = Scaled.of(method.search, problem)
    corrected, printed = (moved + scaled.rounding for moved in sensitivities(problem))
    literal = method.form == "paper"
    draws = Draws.of(None, "exponential", ((printed if literal else corrected) / scaled.unit, shares.value))
    cost = shares.total
    if literal and problem.facts.training_loss != "logistic":
        ratio = Decimal(corrected) / Decimal(printed)
        cost = Cost((cost.epsilon * ratio).quantize(Decimal("1e-12"), rounding=ROUND_CEILING))
    noise = draws.noise(scaled.unit, corrected=corrected, printed=printed)
    return LipschitzPlan(
        spec=spec,
        problem=problem,
        index_cost=None,
        value_cost=cost,
        cost=cost,
        noise=noise,
        guarantee=guarantees.worst_case(
            cost,
            problem.records,
            index=False,
            value=True,
            condition=guarantees.CONVEX
            + (f" {guarantees.literal_theorem_7(shares.total, cost)}" if cost != shares.total else ""),
        ),
        warnings=[
            *cautions.of_noise(noise, problem.width),
            *([cautions.REFUTED] if cost != shares.total else []),
            cautions.TRACE,
        ],
        expected_error=ExpectedError(None, noise.value_scale, HOW),
        scaled=scaled,
        draws=draws,
        betas=exploration(method.search, problem.n),
    )
