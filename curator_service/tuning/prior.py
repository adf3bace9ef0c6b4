"""A Gaussian process over the grid, and the public units that scores are brought to."""

from dataclasses import dataclass, field

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.errors import TuningImpossible
from blindopt.gp.kernels import kernel_of
from blindopt.wire.tuning_methods import TuningPrior, TuningSearch
from curator_service.tuning.draws import Draws
from curator_service.tuning.information import Arms
from curator_service.tuning.plan import ExpectedError
from curator_service.tuning.problem import Problem
from curator_service.tuning.readings import Readings, with_noise
from curator_service.tuning.simulation import SaidAt, Sample, World, expected_errors


@dataclass(frozen=True, slots=True)
class Scaled:
    """Scores less ``centre``, in units of ``unit``: prior mean 0 and variance 1; ``covariance`` is k2 (n, n)."""

    problem: Problem
    centre: float
    unit: float
    sigma: float
    covariance: Matrix = field(repr=False)
    adds_noise: bool

    @classmethod
    def of(cls, search: TuningSearch, problem: Problem) -> "Scaled":
        """By public values alone: standardizing by observed scores would leak.

        Raises TuningImpossible for a centre outside the range: scores less one far away would be rounded away.
        """
        centre = problem.middle if search.centre is None else search.centre
        if not problem.lower <= centre <= problem.upper:
            raise TuningImpossible(f"centre must lie in the range of the score: {problem.lower:g} to {problem.upper:g}")
        return cls(
            problem,
            centre,
            problem.width / 4 if search.scale is None else search.scale,
            search.noise_sd,
            kernel_of(search.kernel, search.lengthscale, 1.0)(problem.grid, problem.grid),
            isinstance(search, TuningPrior) and search.noise == "added",
        )

    @property
    def rounding(self) -> float:
        """What ``exact`` adds to how far a score moves, in units of the score: a sum and a quotient of doubles."""
        return 2.0**-50 * max(abs(self.centre), abs(self.problem.middle), self.problem.width)

    def exact(self, readings: Readings, index: int) -> float:
        """A score in scaled units."""
        return (readings.offset(index) + (self.problem.middle - self.centre)) / self.unit

    def noisy(self, readings: Readings, index: int) -> float:
        """The same with fresh noise: the curator's, or that which the score has by itself."""
        value = self.exact(readings, index)
        return with_noise(value, self.sigma) if self.adds_noise else value

    @property
    def world(self) -> World:
        """To simulate what the prior says."""
        ends = (self.problem.lower - self.centre) / self.unit, (self.problem.upper - self.centre) / self.unit
        return World(self.covariance, self.sigma, ends, self.adds_noise)

    def seen(self, draws: Draws, sample: Sample, value_at: SaidAt) -> tuple[ExpectedError, float]:
        """What a release will miss on average over the prior, and how far its scores spread: in units of the score."""
        gap, error = expected_errors(
            sample,
            index_scale=draws.index.scale if draws.index else None,
            exponential=draws.index is not None and draws.index.law == "exponential",
            value_scale=draws.value.scale if draws.value else None,
            value_at=value_at,
        )
        what = "the score of lambda~ (the largest without it)" if value_at == "chosen" else "the largest score"
        told = ExpectedError(
            index_gap=gap * self.unit if draws.index else None,
            value=error * self.unit if draws.value else None,
            how=f"Means over {len(sample.functions)} simulated functions of the prior; v~ is compared with {what}.",
        )
        return told, min(self.problem.width, sample.spread * self.unit)

    def told(self, value: float | None) -> float | None:
        """From scaled units to those of the score."""
        return None if value is None else self.centre + self.unit * value


def posterior_weights(covariance: Matrix, arms: Arms, sigma: float) -> Matrix:
    """W (n, T) with mu_T = W v for scores v (T,) at ``arms``: K_A (K_AA + sigma^2 I)^-1."""
    from scipy.linalg import cho_factor, cho_solve

    among = covariance[np.ix_(arms, arms)] + sigma**2 * np.eye(len(arms))
    weights: Matrix = cho_solve(cho_factor(among, lower=True), covariance[arms]).T
    return weights


def design_sd(covariance: Matrix, arms: Arms, sigma: float, apart: float) -> Vector:
    """Standard deviations (n,) of mu'_T - mu_T ~ N(0, W (2 (1 - k1) K_AA + 2 sigma^2 I) W^T): exact, of a fixed design.

    Neighbours' functions differ by N(0, 2 (1 - k1) k2), and each has noise of its own.
    """
    weights = posterior_weights(covariance, arms, sigma)
    among = 2 * apart * covariance[np.ix_(arms, arms)] + 2 * sigma**2 * np.eye(len(arms))
    variance: Vector = np.einsum("ij,jk,ik->i", weights, among, weights, optimize=True)
    return np.sqrt(variance)
