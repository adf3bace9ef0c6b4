"""Private hyper-parameter tuning at the curator: the methods of Kusner et al. (2015) as printed, and better ones.

The curator scores public hyper-parameters on private validation records and releases one of them, lambda~, and
its score, v~. Pure: no database, no HTTP. ``plan_of`` makes a plan from public values; its ``run`` uses the data.
"""

from blindopt.wire.tuning_methods import (
    GpDesign,
    GpUcbSimulated,
    GridExponential,
    Kusner1,
    Kusner2,
    Kusner3,
    PublicWeights,
    TuningSpec,
)
from curator_service.tuning import (
    gp_design,
    gp_ucb_simulated,
    grid_exponential,
    kusner_1,
    kusner_2,
    kusner_3,
    public_weights,
)
from curator_service.tuning.plan import ExpectedError, Outcome, Plan
from curator_service.tuning.problem import Evaluate, Facts, Problem, Records, Score

__all__ = [
    "Evaluate",
    "ExpectedError",
    "Facts",
    "Outcome",
    "Plan",
    "Problem",
    "Records",
    "Score",
    "plan_of",
]


def plan_of(spec: TuningSpec, problem: Problem) -> Plan:
    """The plan of a tuning, from public values alone. Raises TuningImpossible where the method does not fit."""
    match spec.method:
        case GridExponential() as method:
            return grid_exponential.plan(spec, method, problem)
        case GpDesign() as method:
            return gp_design.plan(spec, method, problem)
        case GpUcbSimulated() as method:
            return gp_ucb_simulated.plan(spec, method, problem)
        case Kusner1() as method:
            return kusner_1.plan(spec, method, problem)
        case Kusner2() as method:
            return kusner_2.plan(spec, method, problem)
        case Kusner3() as method:
            return kusner_3.plan(spec, method, problem)
        case PublicWeights() as method:
            return public_weights.plan(spec, method, problem)
