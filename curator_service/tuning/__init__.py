"""Private hyper-parameter tuning at the curator: Kusner et al. (2015), literally, and what does better.

The curator scores public hyper-parameters on private validation records and releases one of them, lambda~, and
its score, v~. Pure: no database, no HTTP. ``plan_of`` makes a plan from public values; its ``run`` touches the data.
"""

from curator_service.tuning.plan import Cost, ExpectedError, Noise, Outcome, Plan
from curator_service.tuning.problem import Evaluate, Facts, Problem, Progress, Records, Score
from shared.wire.tunings import TuningSpec

__all__ = [
    "Cost",
    "Evaluate",
    "ExpectedError",
    "Facts",
    "Noise",
    "Outcome",
    "Plan",
    "Problem",
    "Progress",
    "Records",
    "Score",
    "plan_of",
]


def plan_of(spec: TuningSpec, problem: Problem) -> Plan:
    """The plan of a tuning, from public values alone. TuningImpossible says what does not fit, before any charge."""
    raise NotImplementedError
