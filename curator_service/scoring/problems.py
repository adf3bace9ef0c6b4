"""What a tuning asks for, as its method takes it: the grid, the score's range, what is public of the models."""

from itertools import product
from math import log10, prod

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.errors import Invalid
from blindopt.wire.tuning_methods import TUNING_GRID_MAX
from curator_service.scoring.logistic import DISTANCE_MAX
from curator_service.scoring.losses import loss_of
from curator_service.tuning import Facts, Problem
from curator_service.tuning.problem import Records

LAMBDA = "lambda"
_TOLD: dict[str, Records] = {"mean": "averaged", "records": "scored", "whole": "whole"}
LAMBDA_MIN, LAMBDA_MAX = 1e-6, 1e6


def check(asked: wire.TuningCreate) -> None:
    """Invalid for a grid that is too large, or does not fit its score."""
    names = [axis.name for axis in asked.grid]
    values = asked.grid[0].values
    faults: list[dict[str, object]] = []
    if len(set(names)) < len(names):
        faults.append({"field": "grid", "message": "each axis needs a name of its own"})
    if prod(len(axis.values) for axis in asked.grid) > TUNING_GRID_MAX:
        faults.append({"field": "grid", "message": f"more than {TUNING_GRID_MAX} combinations: leave some values out"})
    if isinstance(asked.score, wire.LogisticScore):
        if names != [LAMBDA]:
            message = "the logistic score has one hyper-parameter: give one axis with the name lambda"
            faults.append({"field": "grid", "message": message})
        elif not LAMBDA_MIN <= min(values) <= max(values) <= LAMBDA_MAX:
            message = f"lambda must lie between {LAMBDA_MIN:g} and {LAMBDA_MAX:g}"
            faults.append({"field": "grid.0.values", "message": message})
    if faults:
        raise Invalid("the grid cannot be tuned over: errors says why", faults)
    _check_centre(asked)


def _check_centre(asked: wire.TuningCreate) -> None:
    """Invalid for a prior mean outside the range of the score: scores less one far away would be rounded away."""
    method, (lower, upper) = asked.method, score_range(asked.score)
    for name in ("prior", "search"):
        centre = getattr(getattr(method, name, None), "centre", None)
        if centre is not None and not lower <= centre <= upper:
            message = f"must lie in the range of the score, {lower:g} to {upper:g}; null: its middle"
            fault: dict[str, object] = {"field": f"method.{method.name}.{name}.centre", "message": message}
            raise Invalid("the centre lies outside the range of the score", [fault])


def score_range(score: wire.LogisticScore | wire.HttpScore) -> tuple[float, float]:
    """Between which ends one record's score lies."""
    if isinstance(score, wire.HttpScore):
        return score.lower, score.upper
    return -loss_of(score.loss, score.clip).bound, 0.0


def points(asked: wire.TuningCreate) -> list[dict[str, float]]:
    """Every combination of the grid, the last axis fastest."""
    names = [axis.name for axis in asked.grid]
    return [dict(zip(names, point, strict=True)) for point in product(*(axis.values for axis in asked.grid))]


def coordinates(asked: wire.TuningCreate) -> Matrix:
    """The same (n, axes) as a Gaussian process sees them: by each axis's own scale."""
    axes = [[log10(v) for v in axis.values] if axis.scale == "log10" else axis.values for axis in asked.grid]
    return np.array(list(product(*axes)), dtype=np.float64)


def needs_weights(asked: wire.TuningCreate) -> bool:
    """Whether the plan rests on the trained weights themselves, which are public."""
    method = asked.method
    return method.name == "public_weights" or (method.name == "grid_exponential" and method.use_weights)


def is_light(asked: wire.TuningCreate) -> bool:
    """Whether a plan is made in no time: nothing is trained, simulated or optimized for it."""
    return asked.method.name in ("grid_exponential", "kusner_2", "kusner_3") and not needs_weights(asked)


def problem_of(asked: wire.TuningCreate, m: int, weights: Matrix | None = None) -> Problem:
    """The problem on ``m`` private records; ``weights`` (n, d) of each point's model, where they were trained."""
    score, grid = asked.score, coordinates(asked)
    if isinstance(score, wire.HttpScore):
        return Problem(grid=grid, m=m, lower=score.lower, upper=score.upper, records=_TOLD[score.reply])
    loss, penalties = loss_of(score.loss, score.clip), asked.grid[0].values
    facts = Facts(
        weight_norm_max=None if weights is None else float(np.linalg.norm(weights, axis=1).max()),
        weight_distance_max=None if weights is None else _widest(weights),
        lipschitz=loss.lipschitz,
        lambda_min=min(penalties),
        lambda_max=max(penalties),
        training_loss="logistic",
        training_error=DISTANCE_MAX,
    )
    lower, upper = score_range(score)
    return Problem(grid=grid, m=m, lower=lower, upper=upper, records="computed", facts=facts)


def _widest(weights: Matrix) -> float:
    """The largest distance between two of the rows (n, d)."""
    from scipy.spatial.distance import pdist

    return float(pdist(weights).max(initial=0.0))
