"""Score the whole grid, draw lambda~, tell its score: pure, worst-case differential privacy of bounded scores."""

import math
from dataclasses import dataclass

import numpy as np

from blindopt.errors import TuningImpossible
from blindopt.wire.tuning_methods import GridExponential, TuningSpec
from curator_service.tuning import cautions, guarantees
from curator_service.tuning.budget import pure_shares
from curator_service.tuning.draws import Draws
from curator_service.tuning.plan import ExpectedError, Outcome, Plan
from curator_service.tuning.problem import Evaluate, Problem, Progress
from curator_service.tuning.readings import Readings


def weights_sensitivity(problem: Problem) -> float:
    """min(g*, 2 L max|w|) / m: margins of two records lie within +-|w|, and their scores within 2 L |w|."""
    facts = problem.facts
    if problem.records == "whole":
        raise TuningImpossible("this needs a score that is a mean over the records")
    if facts.weight_norm_max is None or facts.lipschitz is None:
        message = "this needs the largest norm of the trained weights, and L of the score: both public"
        raise TuningImpossible(message, "score.loss")
    return min(problem.width, 2 * facts.lipschitz * facts.weight_norm_max) / problem.m


def score_sensitivity(problem: Problem) -> float:
    """How far one record moves a score: g* / m of a mean over the records, else g*."""
    return problem.width if problem.records == "whole" else problem.width / problem.m


def rounding(problem: Problem) -> float:
    """What doubles add to how far a mean of offsets moves: a mean rounds once, within 2^-53 of half the width.

    One that is told comes before the middle is taken off: it rounds within 2^-53 of the ends of the range.
    """
    told = max(abs(problem.lower), abs(problem.upper)) if problem.records == "averaged" else 0.0
    return problem.width * 2.0**-50 + told * 2.0**-51


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


@dataclass(frozen=True, slots=True)
class GridPlan(Plan):
    """Evaluations that do not depend on the data: every hyper-parameter once."""

    draws: Draws

    def run(self, evaluate: Evaluate, progress: Progress = lambda share: None) -> Outcome:
        problem = self.problem
        readings = Readings(problem, evaluate, progress, problem.n)
        scores = np.array([readings.offset(index) for index in range(problem.n)])
        index, value = self.draws.on(scores)
        return Outcome(index, None if value is None else problem.middle + value, readings.clipped, problem.n)


def plan(spec: TuningSpec, method: GridExponential, problem: Problem) -> GridPlan:
    """Sensitivity g* / m, or with public weights min(g*, 2 L max|w|) / m."""
    shares = pure_shares(spec.budget)
    moved = weights_sensitivity(problem) if method.use_weights else score_sensitivity(problem)
    moved += rounding(problem)
    draws = Draws.of((moved, shares.index), method.selection, (moved, shares.value))
    noise = draws.noise(1.0)
    return GridPlan(
        spec=spec,
        problem=problem,
        index_cost=shares.index,
        value_cost=shares.value,
        cost=shares.total,
        noise=noise,
        guarantee=guarantees.worst_case(
            shares.total,
            problem.records,
            index=draws.index is not None,
            value=draws.value is not None,
            condition=guarantees.WEIGHTS if method.use_weights else "",
        ),
        warnings=cautions.of_noise(noise, problem.width) + cautions.of_both(shares),
        expected_error=ExpectedError(
            index_gap=worst_gap(problem.n, draws.index.scale, problem.width) if draws.index else None,
            value=draws.value.scale if draws.value else None,
            how=(
                "Exact: of lambda~ the worst mean over all scores within the range (an upper bound for "
                "permute_and_flip); of v~ the mean absolute error, as the score of lambda~ (the largest without it)."
            ),
        ),
        draws=draws,
    )
