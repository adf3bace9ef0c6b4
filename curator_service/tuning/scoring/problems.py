"""From a tuning on the wire to the problem of its method: grid, range of the score, public facts of the models."""

from itertools import product
from math import log10, prod

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.errors import Invalid
from blindopt.wire.tuning import TUNING_GRID_MAX
from curator_service.tuning.methods import Facts, Problem
from curator_service.tuning.methods.problem import Records
from curator_service.tuning.scoring.logistic import DISTANCE_MAX, loss_of

LAMBDA = "lambda"
_RECORDS_OF: dict[str, Records] = {"mean": "averaged", "records": "scored", "whole": "whole"}
LAMBDA_MIN, LAMBDA_MAX = 1e-6, 1e6


def check(tuning: wire.TuningCreate) -> None:
    """Raise Invalid for a grid that is too large, or that does not fit its score."""
    names = [axis.name for axis in tuning.grid]
    values = tuning.grid[0].values
    faults: list[dict[str, object]] = []
    if len(set(names)) < len(names):
        faults.append({"field": "grid", "message": "each axis needs a name of its own"})
    if prod(len(axis.values) for axis in tuning.grid) > TUNING_GRID_MAX:
        faults.append({"field": "grid", "message": f"more than {TUNING_GRID_MAX} combinations: leave some values out"})
    if isinstance(tuning.score, wire.LogisticScore):
        if names != [LAMBDA]:
            message = "the logistic score has one hyper-parameter: give one axis with the name lambda"
            faults.append({"field": "grid", "message": message})
        elif not LAMBDA_MIN <= min(values) <= max(values) <= LAMBDA_MAX:
            message = f"lambda must lie between {LAMBDA_MIN:g} and {LAMBDA_MAX:g}"
            faults.append({"field": "grid.0.values", "message": message})
    if faults:
        raise Invalid.of(faults)
    _check_centre(tuning)


def _check_centre(tuning: wire.TuningCreate) -> None:
    """Raise Invalid for a prior mean outside the range: differences from a far one would be rounded away."""
    method, (lower, upper) = tuning.method, score_range(tuning.score)
    for name in ("prior", "search"):
        centre = getattr(getattr(method, name, None), "centre", None)
        if centre is not None and not lower <= centre <= upper:
            message = f"must lie in the range of the score, {lower:g} to {upper:g}; null: its middle"
            raise Invalid.at(f"method.{name}.centre", message)


def score_range(score: wire.LogisticScore | wire.HttpScore) -> tuple[float, float]:
    if isinstance(score, wire.HttpScore):
        return score.lower, score.upper
    return -loss_of(score.loss, score.clip).bound, 0.0


def points(tuning: wire.TuningCreate) -> list[dict[str, float]]:
    """All combinations of the grid; the last axis varies fastest."""
    names = [axis.name for axis in tuning.grid]
    return [dict(zip(names, point, strict=True)) for point in product(*(axis.values for axis in tuning.grid))]


def coordinates(tuning: wire.TuningCreate) -> Matrix:
    """The combinations (n, axes) as inputs of a Gaussian process, each axis on its own scale."""
    axes = [[log10(v) for v in axis.values] if axis.scale == "log10" else axis.values for axis in tuning.grid]
    return np.array(list(product(*axes)), dtype=np.float64)


def needs_weights(tuning: wire.TuningCreate) -> bool:
    """Whether the plan needs the trained weights themselves, which are public."""
    method = tuning.method
    return method.name == "public_weights" or (method.name == "grid_exponential" and method.use_weights)


def is_light(tuning: wire.TuningCreate) -> bool:
    """Whether a plan takes no time, because it needs no training, simulation or optimization."""
    return tuning.method.name in ("grid_exponential", "kusner_2", "kusner_3") and not needs_weights(tuning)


def problem_of(tuning: wire.TuningCreate, m: int, weights: Matrix | None = None) -> Problem:
    """The problem on ``m`` private records; ``weights`` (n, d) are those of each point's model, if it needs them."""
    score, grid = tuning.score, coordinates(tuning)
    if isinstance(score, wire.HttpScore):
        return Problem(grid=grid, m=m, lower=score.lower, upper=score.upper, records=_RECORDS_OF[score.reply])
    loss, penalties = loss_of(score.loss, score.clip), tuning.grid[0].values
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
