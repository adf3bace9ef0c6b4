"""Algorithm 3 with the trained weights themselves, which are public because the training data are."""

from blindopt.errors import TuningImpossible
from blindopt.wire.tuning_methods import PublicWeights, TuningSpec
from curator_service.tuning import guarantees
from curator_service.tuning.budget import value_alone
from curator_service.tuning.draws import Draws
from curator_service.tuning.grid_exponential import rounding, weights_sensitivity
from curator_service.tuning.lipschitz import lipschitz_plan
from curator_service.tuning.plan import Plan
from curator_service.tuning.prior import Scaled
from curator_service.tuning.problem import Problem


def sensitivity(problem: Problem) -> float:
    """The sensitivity min(g*, L max|w_l - w_l'| + min(g*, 2 L max|w|) / m): a neighbour may lead to another model."""
    facts, at_one_model = problem.facts, weights_sensitivity(problem)
    if facts.weight_distance_max is None or facts.lipschitz is None:
        raise TuningImpossible(
            "this needs the largest distance between trained weights, and L of the score: public", "score.loss"
        )
    return min(problem.width, facts.lipschitz * facts.weight_distance_max + at_one_model) + rounding(problem)


def plan(spec: TuningSpec, method: PublicWeights, problem: Problem) -> Plan:
    """The plan like that of Algorithm 3, with this sensitivity."""
    shares = value_alone(spec.budget, needs_delta=False)
    scaled = Scaled.of(method.search, problem)
    draws = Draws.of(None, "exponential", ((sensitivity(problem) + scaled.rounding) / scaled.unit, shares.value))
    return lipschitz_plan(spec, method.search, scaled, shares, draws, condition=guarantees.WEIGHTS)
