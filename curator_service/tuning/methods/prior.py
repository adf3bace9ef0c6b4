"""A Gaussian process over the grid, and the public units that scores are scaled to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.errors import TuningImpossible
from blindopt.gp.kernels import kernel_of
from blindopt.wire.base import Caution
from blindopt.wire.tuning import TuningPrior, TuningSearch
from curator_service.privacy.noise import add_gaussian
from curator_service.tuning.methods import cautions, guarantees
from curator_service.tuning.methods.draws import Draws
from curator_service.tuning.methods.information import Arms
from curator_service.tuning.methods.plan import ExpectedError, Plan, Search
from curator_service.tuning.methods.problem import Objective, Problem
from curator_service.tuning.methods.simulation import Estimand, Sample, World, expected_errors, ucb


@dataclass(frozen=True, slots=True)
class Scaled:
    """Scores less ``centre`` in units of ``unit``, with prior mean 0 and variance 1; ``covariance`` is k2 (n, n)."""

    problem: Problem
    search: TuningSearch
    centre: float
    unit: float
    covariance: Matrix = field(repr=False)

    @classmethod
    def of(cls, search: TuningSearch, problem: Problem) -> "Scaled":
        """The scaling of a search, by public values alone: standardizing by observed scores would leak.

        Raises TuningImpossible for a centre outside the range: differences from a far one would be rounded away.
        """
        centre = problem.middle if search.centre is None else search.centre
        if not problem.lower <= centre <= problem.upper:
            raise TuningImpossible(f"centre must lie in the range of the score: {problem.lower:g} to {problem.upper:g}")
        return cls(
            problem,
            search,
            centre,
            problem.width / 4 if search.scale is None else search.scale,
            kernel_of(search.kernel, search.lengthscale, 1.0)(problem.grid, problem.grid),
        )

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise of one score."""
        return self.search.noise_sd

    @property
    def adds_noise(self) -> bool:
        return isinstance(self.search, TuningPrior) and self.search.noise == "added"

    @property
    def rounding(self) -> float:
        """Bound on the rounding of ``exact``, in units of the score: of a sum and a quotient of doubles."""
        return 2.0**-50 * max(abs(self.centre), abs(self.problem.middle), self.problem.width)

    def exact(self, objective: Objective, index: int) -> float:
        """Evaluate a score, in scaled units."""
        return (objective.offset(index) + (self.problem.middle - self.centre)) / self.unit

    def noisy(self, objective: Objective, index: int) -> float:
        """Evaluate a score with noise, which the curator adds unless the score has its own, in scaled units."""
        value = self.exact(objective, index)
        return float(add_gaussian(np.array([value]), self.sigma)[0]) if self.adds_noise else value

    def posterior_mean(self, betas: Vector, objective: Objective) -> tuple[Vector, float]:
        """Run GP-UCB on noisy scores: the posterior mean (n,), and the largest score, in scaled units.

        It is the search of simulations, with exploration weights ``betas`` (T,).
        """
        means, _, scores = self._searched(betas, lambda index: self.noisy(objective, index))
        return means[0], float(scores.max())

    def largest_score(self, betas: Vector, objective: Objective) -> float:
        """Run GP-UCB on scores without noise: the largest, in scaled units."""
        return float(self._searched(betas, lambda index: self.exact(objective, index))[2].max())

    def _searched(self, betas: Vector, score: Callable[[int], float]) -> tuple[Matrix, Arms, Matrix]:
        return ucb(self.covariance, self.sigma, betas, 1, lambda arms: np.array([score(int(arms[0]))]))

    @property
    def world(self) -> World:
        ends = (self.problem.lower - self.centre) / self.unit, (self.problem.upper - self.centre) / self.unit
        return World(self.covariance, self.sigma, ends, self.adds_noise)

    def expected_error(self, draws: Draws, sample: Sample, value_at: Estimand) -> tuple[ExpectedError, float]:
        """Mean errors of the releases over the prior, and the spread of their scores, in units of the score."""
        gap, error = expected_errors(
            sample,
            index_scale=draws.index.scale if draws.index else None,
            exponential=draws.index is not None and draws.index.law == "exponential",
            value_scale=draws.value.scale if draws.value else None,
            value_at=value_at,
        )
        target = "the score of lambda~ (the largest without it)" if value_at == "chosen" else "the largest score"
        expected = ExpectedError(
            index_gap=gap * self.unit if draws.index else None,
            value=error * self.unit if draws.value else None,
            how=f"Means over {len(sample.functions)} simulated functions of the prior, which hold only if the scores "
            f"are such a function; v~ is compared with {target}.",
        )
        return expected, min(self.problem.width, sample.spread * self.unit)

    def unscaled(self, value: float | None) -> float | None:
        """Convert from scaled units to those of the score."""
        return None if value is None else self.centre + self.unit * value


def posterior_weights(covariance: Matrix, arms: Arms, sigma: float) -> Matrix:
    """W (n, T) with mu_T = W v for scores v (T,) at ``arms``: K_A (K_AA + sigma^2 I)^-1."""
    from scipy.linalg import cho_factor, cho_solve

    among = covariance[np.ix_(arms, arms)] + sigma**2 * np.eye(len(arms))
    weights: Matrix = cho_solve(cho_factor(among, lower=True), covariance[arms]).T
    return weights


def design_sd(covariance: Matrix, arms: Arms, sigma: float, apart: float) -> Vector:
    """Standard deviations (n,) of mu'_T - mu_T = W (f' - f) ~ N(0, 2 (1 - k1) W K_AA W^T), exact for fixed designs.

    Neighbours' functions differ by N(0, 2 (1 - k1) k2). The noise of evaluations has one law under both datasets, so it
    may be taken as equal, and cancels (docs/tuning.md has the proof).
    """
    weights = posterior_weights(covariance, arms, sigma)
    among = covariance[np.ix_(arms, arms)]
    variance: Vector = np.einsum("ij,jk,ik->i", weights, among, weights, optimize=True)
    return np.sqrt(2 * apart * np.maximum(variance, 0.0))


def prior_average_plan(
    scaled: Scaled,
    draws: Draws,
    search: Search,
    sample: Sample,
    *,
    kind: guarantees.Kind,
    value_at: Estimand,
    addition: str = "",
    warnings: tuple[Caution, ...] = (),
) -> Plan:
    """The plan of a method that is private on average over the prior.

    ``sample`` simulates its search. ``addition`` is appended to the guarantee.
    """
    prior, records = scaled.search, scaled.problem.records
    assert isinstance(prior, TuningPrior)
    expected, spread = scaled.expected_error(draws, sample, value_at)
    guarantee_kind, words = guarantees.prior_average(draws, prior, records, kind)
    rests_on_noise = guarantees.rests_on_noise(kind)
    return Plan(
        scaled.problem,
        draws,
        guarantee_kind,
        words + addition,
        [
            *cautions.of_prior(prior),
            *([cautions.OWN] if rests_on_noise and guarantees.rests_on_absent_noise(prior, records) else []),
            *cautions.of_closeness(scaled.problem, scaled.unit * sqrt(2 * prior.one_minus_k1)),
            *cautions.of_noise(draws.noise, spread),
            *cautions.of_cost(draws),
            *warnings,
        ],
        expected,
        search,
        repeated=prior.noise == "own",
    )
