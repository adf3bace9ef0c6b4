"""A design fixed before any data is seen, and releases from the posterior mean: exact Gaussian sensitivity."""

from dataclasses import dataclass, field
from math import log, sqrt

import numpy as np

from blindopt.arrays import Matrix
from blindopt.wire.tuning_methods import GpDesign, TuningSpec
from curator_service.tuning import cautions, guarantees
from curator_service.tuning.budget import shared_event
from curator_service.tuning.draws import Draws
from curator_service.tuning.information import Arms, greedy_design
from curator_service.tuning.plan import Outcome, Plan
from curator_service.tuning.prior import Scaled, design_sd, posterior_weights
from curator_service.tuning.problem import Evaluate, Problem, Progress
from curator_service.tuning.readings import Readings
from curator_service.tuning.simulation import sample_design


def sensitivity(largest_sd: float, n: int, delta: float) -> float:
    """Max sd x sqrt(2 ln(n / delta)): no posterior mean of n moves further, but for delta.

    A normal deviate is beyond x sd with probability exp(-x^2 / 2) at most, on either side together.
    """
    return largest_sd * sqrt(2 * log(n / delta))


@dataclass(frozen=True, slots=True)
class DesignPlan(Plan):
    """Scores at ``arms`` (T,), and the matrix that makes posterior means of them: both public."""

    method: GpDesign
    scaled: Scaled
    draws: Draws
    arms: Arms = field(repr=False)
    weights: Matrix = field(repr=False)

    def run(self, evaluate: Evaluate, progress: Progress = lambda share: None) -> Outcome:
        fresh = self.method.prior.noise == "own"
        readings = Readings(self.problem, evaluate, progress, len(self.arms), fresh)
        scores = np.array([self.scaled.noisy(readings, arm) for arm in self.arms.tolist()])
        index, value = self.draws.on(self.weights @ scores, value_at=self.method.value_at)
        return Outcome(index, self.scaled.told(value), readings.clipped, len(self.arms))


def plan(spec: TuningSpec, method: GpDesign, problem: Problem) -> DesignPlan:
    """Greedy information gain looks at the kernel and sigma alone."""
    prior, shares = method.prior, shared_event(spec.budget)
    scaled = Scaled.of(prior, problem)
    arms, gain = greedy_design(scaled.covariance, prior.noise_sd, prior.evaluations)
    weights = posterior_weights(scaled.covariance, arms, prior.noise_sd)
    largest = float(design_sd(scaled.covariance, arms, prior.noise_sd, prior.one_minus_k1).max())
    moved = sensitivity(largest, problem.n, float(shares.total.delta))
    draws = Draws.of((moved, shares.index), method.selection, (moved, shares.value))
    noise = draws.noise(scaled.unit, largest_sd=largest, gain=gain)
    expected, spread = scaled.seen(draws, sample_design(scaled.world, arms, weights, seed=0), method.value_at)
    return DesignPlan(
        spec=spec,
        problem=problem,
        index_cost=shares.index,
        value_cost=shares.value,
        cost=shares.total,
        noise=noise,
        guarantee=guarantees.prior_average(
            shares.total,
            prior,
            problem.records,
            index=draws.index is not None,
            value=draws.value is not None,
            kind="exact",
        ),
        warnings=[
            *cautions.of_prior(prior),
            *cautions.of_own_noise(prior, problem.records),
            *cautions.of_noise(noise, spread),
            *cautions.of_both(shares),
        ],
        expected_error=expected,
        method=method,
        scaled=scaled,
        draws=draws,
        arms=arms,
        weights=weights,
    )
