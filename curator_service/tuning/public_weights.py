"""Algorithm 3 with the trained weights themselves: training data is public, so all of them are."""

from blindopt.errors import TuningImpossible
from blindopt.wire.tuning_methods import PublicWeights, TuningSpec
from curator_service.tuning import cautions, guarantees
from curator_service.tuning.budget import value_alone
from curator_service.tuning.draws import Draws
from curator_service.tuning.grid_exponential import rounding, weights_sensitivity
from curator_service.tuning.lipschitz import HOW, LipschitzPlan, exploration
from curator_service.tuning.plan import ExpectedError
from curator_service.tuning.prior import Scaled
from curator_service.tuning.problem import Problem


def sensitivity(problem: Problem) -> float:
    """min(g*, L max|w_l - w_l'| + min(g*, 2 L max|w|) / m): another dataset may lead to another model."""
    facts, one = problem.facts, weights_sensitivity(problem)
    if facts.weight_distance_max is None or facts.lipschitz is None:
        raise TuningImpossible(
            "this needs the largest distance between trained weights, and L of the score: public", "score.loss"
        )
    return min(problem.width, facts.lipschitz * facts.weight_distance_max + one) + rounding(problem)


def plan(spec: TuningSpec, method: PublicWeights, problem: Problem) -> LipschitzPlan:
    """As Algorithm 3, with this sensitivity."""
    shares = value_alone(spec.budget, needs_delta=False)
    scaled = Scaled.of(method.search, problem)
    moved = sensitivity(problem) + scaled.rounding
    draws = Draws.of(None, "exponential", (moved / scaled.unit, shares.value))
    noise = draws.noise(scaled.unit)
    return LipschitzPlan(
        spec=spec,
        problem=problem,
        index_cost=None,
        value_cost=shares.value,
        cost=shares.total,
        noise=noise,
        guarantee=guarantees.worst_case(
            shares.total, problem.records, index=False, value=True, condition=guarantees.WEIGHTS
        ),
        warnings=[*cautions.of_noise(noise, problem.width), cautions.TRACE],
        expected_error=ExpectedError(None, noise.value_scale, HOW),
        scaled=scaled,
        draws=draws,
        betas=exploration(method.search, problem.n),
    )
