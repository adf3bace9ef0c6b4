"""The release of Algorithm 2 of Kusner et al. (2015), without noise; and of a whole grid, without A and tau."""

from dataclasses import dataclass, replace

from blindopt.errors import TuningImpossible
from blindopt.wire.tuning import Kusner2, TuningBudget
from curator_service.tuning.methods import cautions, constants, guarantees
from curator_service.tuning.methods.budget import value_alone
from curator_service.tuning.methods.draws import Draws
from curator_service.tuning.methods.objective import Objective
from curator_service.tuning.methods.plan import ExpectedError, Plan
from curator_service.tuning.methods.prior import Scaled, prior_average_plan
from curator_service.tuning.methods.problem import Problem
from curator_service.tuning.methods.simulation import sample_grid


@dataclass(frozen=True, slots=True)
class MaximumSearch:
    """Evaluates the scores of ``indices`` and releases the largest."""

    scaled: Scaled
    indices: range

    @property
    def evaluations(self) -> int:
        return len(self.indices)

    def release(self, objective: Objective, draws: Draws) -> tuple[int | None, float | None]:
        largest = max(self.scaled.exact(objective, index) for index in self.indices)
        return None, self.scaled.unscaled(draws.value.draw(largest) if draws.value else None)


def plan(method: Kusner2, budget: TuningBudget, problem: Problem) -> Plan:
    """The plan by Theorem 5 with the caller's A and tau, or by c2 alone where the whole grid is scored."""
    prior, shares = method.prior, value_alone(budget, needs_delta=True)
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
    draws = Draws.of(shares, value=moved, unit=scaled.unit, constants={"c2": apart, "regret_bound": rate})
    whole_plan = prior_average_plan(
        scaled,
        draws,
        MaximumSearch(scaled, indices),
        sample_grid(scaled.world, seed=0),
        kind="bound",
        value_at="maximum",
        addition="" if method.whole_grid else guarantees.KUSNER_2,
        warnings=() if method.whole_grid else (cautions.CONSTANTS,),
    )
    if method.whole_grid:
        return whole_plan
    how = "The mean absolute error of v~, as the score of the last hyper-parameter."
    return replace(whole_plan, expected_error=ExpectedError(None, draws.noise.value_scale, how))
