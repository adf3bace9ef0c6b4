"""The release of Algorithm 2 of Kusner et al. (2015), without noise; and of a whole grid, without A and tau."""

from dataclasses import dataclass

from blindopt.errors import TuningImpossible
from blindopt.wire.tuning_methods import Kusner2, TuningSpec
from curator_service.tuning import cautions, constants, guarantees
from curator_service.tuning.budget import value_alone
from curator_service.tuning.draws import Draws
from curator_service.tuning.plan import ExpectedError, Outcome, Plan
from curator_service.tuning.prior import Scaled
from curator_service.tuning.problem import Evaluate, Problem, Progress
from curator_service.tuning.readings import Readings
from curator_service.tuning.simulation import sample_grid


@dataclass(frozen=True, slots=True)
class Kusner2Plan(Plan):
    """The score of ``indices``, the largest of which is told."""

    scaled: Scaled
    draws: Draws
    indices: range

    def run(self, evaluate: Evaluate, progress: Progress = lambda share: None) -> Outcome:
        readings = Readings(self.problem, evaluate, progress, len(self.indices))
        largest = max(self.scaled.exact(readings, index) for index in self.indices)
        value = self.draws.value.draw(largest) if self.draws.value else None
        return Outcome(None, self.scaled.told(value), readings.clipped, len(self.indices))


def plan(spec: TuningSpec, method: Kusner2, problem: Problem) -> Kusner2Plan:
    """Theorem 5 with the caller's A and tau; or c2 alone, where every score of the grid is known."""
    prior, shares = method.prior, value_alone(spec.budget, needs_delta=True)
    scaled, d = Scaled.of(prior, problem), problem.grid.shape[1]
    apart = constants.c2(problem.n, prior.one_minus_k1, float(shares.total.delta))
    if method.a is None or method.tau is None or method.last is None:
        moved, indices, rate = apart, range(problem.n), 0.0
    else:
        if prior.evaluations < 2:
            raise TuningImpossible(
                "Algorithm 2 needs two evaluations or more: its rate divides by ln T", "method.prior.evaluations"
            )
        if method.last >= problem.n:
            raise TuningImpossible(f"last is an index of the grid: from 0 to {problem.n - 1}", "method.last")
        moved = constants.last_sensitivity(method.a, method.tau, prior.evaluations, d, apart)
        indices, rate = range(method.last, method.last + 1), moved - apart
    draws = Draws.of(None, "exponential", (moved, shares.value))
    noise = draws.noise(scaled.unit, c2=apart, regret_bound=rate)
    expected, spread = scaled.seen(draws, sample_grid(scaled.world, seed=0), "maximum")
    if not method.whole_grid:
        expected = ExpectedError(
            None, noise.value_scale, "The mean absolute error of v~, as the score of the last hyper-parameter."
        )
    return Kusner2Plan(
        spec=spec,
        problem=problem,
        index_cost=None,
        value_cost=shares.value,
        cost=shares.total,
        noise=noise,
        guarantee=guarantees.prior_average(shares.total, prior, problem.records, index=False, value=True, kind="bound")
        + ("" if method.whole_grid else guarantees.KUSNER_2),
        warnings=[*cautions.of_prior(prior), *cautions.of_noise(noise, spread)]
        + ([] if method.whole_grid else [cautions.CONSTANTS]),
        expected_error=expected,
        scaled=scaled,
        draws=draws,
        indices=indices,
    )
