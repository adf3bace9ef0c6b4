"""Score the whole grid, draw lambda~ and release its score: pure differential privacy of bounded scores."""

import math

import numpy as np

from blindopt.errors import TuningImpossible
from blindopt.wire.tuning import GridExponential, TuningBudget
from curator_service.tuning.methods import guarantees
from curator_service.tuning.methods.draws import Draws, pure_shares
from curator_service.tuning.methods.plan import ExpectedError, Plan, Released, Search, worst_case_plan
from curator_service.tuning.methods.problem import Objective, Problem


def weights_sensitivity(problem: Problem) -> float:
    """The sensitivity min(g*, 2 L max|w|) / m.

    Margins of two records lie within +-|w|, and their scores within 2 L |w|.
    """
    facts = problem.facts
    if problem.records == "whole":
        raise TuningImpossible("this needs a score that is a mean over the records")
    if facts.weight_norm_max is None or facts.lipschitz is None:
        message = "this needs the largest norm of the trained weights, and L of the score: both public"
        raise TuningImpossible(message, "score.loss")
    return min(problem.width, 2 * facts.lipschitz * facts.weight_norm_max) / problem.m


def rounding(problem: Problem) -> float:
    """Bound on the effect of rounding on the move of a mean.

    A mean of offsets rounds once, within 2^-53 of half the width. A mean from the scorer rounds within 2^-53 of the
    ends of the range, because the middle is subtracted after it.
    """
    largest = max(abs(problem.lower), abs(problem.upper)) if problem.records == "averaged" else 0.0
    return problem.width * 2.0**-50 + largest * 2.0**-51


def worst_gap(n: int, scale: float, width: float) -> float:
    """The largest expected gap of the exponential mechanism over all scores of a grid of n within ``width``.

    At a gap g of all n - 1 others it is g (n - 1) / (n - 1 + e^(g / s)), and no scores are worse: largest at
    g = t + s, where it is t = s W((n - 1) / e). Permute-and-flip misses no more (McKenna & Sheldon 2020, Theorem 2).
    """
    from scipy.special import lambertw

    if n == 1:
        return 0.0
    most = scale * float(lambertw((n - 1) / math.e).real)
    if most + scale <= width:
        return most
    return width * (n - 1) / (n - 1 + math.exp(width / scale))


def plan(method: GridExponential, budget: TuningBudget, problem: Problem) -> Plan:
    """The plan with sensitivity g* / m, or with public weights min(g*, 2 L max|w|) / m."""
    moved = weights_sensitivity(problem) if method.use_weights else problem.moved
    moved += rounding(problem)
    draws = Draws.of(pure_shares(budget), index=moved, law=method.selection, value=moved)
    expected = ExpectedError(
        index_gap=worst_gap(problem.n, draws.index.scale, problem.width) if draws.index else None,
        value=draws.value.scale if draws.value else None,
        how="Of lambda~ at most this gap: it is that of the worst scores within the range. Of v~ the exact mean "
        "absolute error, as the score of lambda~ (the largest without it).",
    )
    condition = guarantees.WEIGHTS if method.use_weights else ""

    def release(objective: Objective, draws: Draws) -> Released:
        """Evaluate the whole grid, in an order that does not depend on the data."""
        index, value = draws.on(np.array([objective.offset(index) for index in range(problem.n)]))
        return index, None if value is None else problem.middle + value

    return worst_case_plan(problem, draws, Search(problem.n, release), expected, condition=condition)
