"""GP-UCB as in Algorithm 1, with a sensitivity measured on simulated neighbours."""

from dataclasses import dataclass, field

import numpy as np

from blindopt.arrays import Vector
from blindopt.wire.tuning_methods import GpUcbSimulated, TuningSpec
from curator_service.tuning import cautions, constants, guarantees
from curator_service.tuning.budget import shared_event
from curator_service.tuning.draws import Draws
from curator_service.tuning.plan import Outcome, Plan
from curator_service.tuning.prior import Scaled
from curator_service.tuning.private_search import posterior_mean
from curator_service.tuning.problem import Evaluate, Problem, Progress
from curator_service.tuning.readings import Readings
from curator_service.tuning.simulation import neighbour_differences, sample_search, upper_quantile


@dataclass(frozen=True, slots=True)
class SimulatedPlan(Plan):
    """``betas`` (T,) are the exploration weights, of the private run and of the simulated ones."""

    method: GpUcbSimulated
    scaled: Scaled
    draws: Draws
    betas: Vector = field(repr=False)

    def run(self, evaluate: Evaluate, progress: Progress = lambda share: None) -> Outcome:
        fresh = self.method.prior.noise == "own"
        readings = Readings(self.problem, evaluate, progress, len(self.betas), fresh)
        mean, _ = posterior_mean(self.scaled, self.betas, readings)
        index, value = self.draws.on(mean, value_at=self.method.value_at)
        return Outcome(index, self.scaled.told(value), readings.clipped, len(self.betas))


def plan(spec: TuningSpec, method: GpUcbSimulated, problem: Problem) -> SimulatedPlan:
    """The order statistic of max |mu' - mu| over simulated pairs that exceeds the (1 - delta) quantile."""
    prior, shares = method.prior, shared_event(spec.budget)
    scaled, delta = Scaled.of(prior, problem), float(shares.total.delta)
    betas = np.array([constants.beta(problem.n, t, delta) for t in range(1, prior.evaluations + 1)])
    upper_quantile(np.zeros(method.pairs), delta)  # too few pairs are refused before they are simulated
    differences = neighbour_differences(scaled.world, betas, prior.one_minus_k1, method.pairs, method.seed)
    moved = upper_quantile(differences.mean, delta)
    draws = Draws.of((moved, shares.index), method.selection, (moved, shares.value))
    noise = draws.noise(scaled.unit, pairs=method.pairs, median_difference=float(np.median(differences.mean)))
    expected, spread = scaled.seen(draws, sample_search(scaled.world, betas, method.seed), method.value_at)
    return SimulatedPlan(
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
            kind="simulated",
        ),
        warnings=[
            *cautions.of_prior(prior),
            *cautions.of_own_noise(prior, problem.records),
            *cautions.of_noise(noise, spread),
            *cautions.of_both(shares),
            cautions.TRACE,
        ],
        expected_error=expected,
        method=method,
        scaled=scaled,
        draws=draws,
        betas=betas,
    )
