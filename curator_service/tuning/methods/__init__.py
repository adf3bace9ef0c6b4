"""Private hyper-parameter tuning at the curator: the methods of Kusner et al. (2015) as printed, and better ones.

The curator scores public hyper-parameters on private validation records and releases one of them, lambda~, and
its score, v~. Pure: no database, no HTTP. ``plan_of`` makes a plan from public values; its ``run`` uses the data.
"""

from collections.abc import Callable

from blindopt.wire.tuning import TuningSpec
from curator_service.tuning.methods import gp_design, grid_exponential, kusner
from curator_service.tuning.methods.plan import ExpectedError, Outcome, Plan
from curator_service.tuning.methods.problem import Evaluate, Facts, Problem, Records, Score

__all__ = ["Evaluate", "ExpectedError", "Facts", "Outcome", "Plan", "Problem", "Records", "Score", "plan_of"]


_PLANS: dict[str, Callable[..., Plan]] = {
    "grid_exponential": grid_exponential.plan,
    "gp_design": gp_design.designed,
    "gp_ucb_simulated": gp_design.simulated,
    "kusner_1": kusner.algorithm_1,
    "kusner_2": kusner.algorithm_2,
    "kusner_3": kusner.algorithm_3,
    "public_weights": kusner.public_weights,
}


def plan_of(spec: TuningSpec, problem: Problem) -> Plan:
    """The plan of a tuning, from public values alone. Raises TuningImpossible where the method does not fit."""
    return _PLANS[spec.method.name](spec.method, spec.budget, problem)
