"""What the algorithms over few arms share: their problem, their choice, their checks of rewards."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import sqrt

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix, Rows, Vector
from blindopt.errors import Invalid, NumericalFailure
from blindopt.gp.acquisition import Choice, Estimate
from blindopt.gp.arms import check_reward
from blindopt.gp.kernels import kernel_of
from blindopt.optimizer.algorithms.bandits.reward_law import Family, RewardLaw

ARMS_MAX = 2_000
"""The most arms: more need n x n matrices of tens of megabytes, and tens of milliseconds a round."""
MATRICES = 4
"""The most n x n matrices that an algorithm holds at once."""
TIE = 1e-9
"""Indices that differ by less, in units of the largest, are equal: rounding differs between machines."""


@dataclass(frozen=True, slots=True)
class BanditProblem:
    """A bandit with n arms, of covariances ``gram`` (n, n) of unit size with the nugget added, and its law of rewards.

    ``sign`` is -1 for minimization. The horizon T includes the ``initial`` rewards, which come first.
    """

    gram: Matrix
    law: RewardLaw
    sign: int
    seed: int
    horizon: int
    initial: int

    @property
    def offset(self) -> float:
        """The centre of the outcomes in the run's direction, subtracted from them."""
        return self.sign * self.law.centre

    def choice(self, step: int, index: Vector, mean: Vector, variance: Vector, amplitude: float) -> Choice:
        """The arm of largest ``index``; ties, to TIE, are broken by a draw of seed and step alone.

        Its standard deviation is ``amplitude`` times the root of ``variance``. Ties do occur: before the first reward
        all arms are equal, but computed from eigenvectors they differ in the last bits, which depend on the number of
        threads.
        """
        arm = int(index.argmax())
        top = float(index[arm])
        if not abs(top) < np.inf:  # argmax returns the first NaN
            raise NumericalFailure("the index of an arm is not a number")
        equal = index >= top - TIE * (abs(top) + amplitude)
        ties = int(np.count_nonzero(equal))
        if ties > 1:
            draw = np.random.default_rng([self.seed, step]).integers(ties)
            arm = int(np.flatnonzero(equal)[draw])
        return self.as_choice(arm, float(mean[arm]), amplitude * sqrt(max(float(variance[arm]), 0.0)), top, ties)

    def as_choice(self, arm: int, mean: float, sd: float, top: float, ties: int) -> Choice:
        """Return a choice in units of the outcome, with the centre added."""
        return Choice(arm, mean + self.offset, sd, top + self.offset, ties)


class FewArms(ABC):
    """Plays arms again and again; its choice is a function of problem, settings and rewards alone."""

    def __init__(self, problem: BanditProblem) -> None:
        self.problem = problem
        self.warnings: list[str] = []
        """Warnings about settings that do not suit the problem."""
        self.hidden: Rows = np.empty(0, dtype=np.intp)

    def choose(self, step: int) -> Choice | None:
        """Return the arm of the largest index; None where the rest of a batch depends on its answers."""
        mean, variance, width, amplitude = self.estimates()
        index = np.maximum(variance, 0.0)  # rounding may dip below
        np.sqrt(index, out=index)
        index *= width
        index += mean
        index[self.hidden] = -np.inf
        return self.problem.choice(step, index, mean, variance, amplitude)

    def observe(self, row: int, outcome: float, passport: wire.NoisePassport | None = None) -> None:
        """Learn from an outcome. Raises ProtocolViolated for a passport that is not of the study's answers."""
        if not 0 <= row < len(self.problem.gram):
            raise IndexError(f"row {row} of {len(self.problem.gram)} arms")
        if passport is not None:
            self.problem.law.check(passport)
        check_reward(outcome)
        self._learn(row, outcome - self.problem.offset)

    def decline(self, row: int) -> None:
        """Leave estimates, counts of plays and truncation levels as they are."""
        return

    def hide(self, rows: Rows) -> None:
        self.hidden = np.asarray(rows, dtype=np.intp)

    def moments(self, rows: Rows) -> tuple[Vector, Vector]:
        mean, variance, _, amplitude = self.estimates()
        return mean[rows] + self.problem.offset, amplitude * np.sqrt(np.maximum(variance[rows], 0.0))

    def best(self, rows: Rows) -> Estimate:
        mean, sd = self.moments(rows)
        index = int(mean.argmax())
        return Estimate(int(rows[index]), float(mean[index]), float(sd[index]))

    @abstractmethod
    def estimates(self) -> tuple[Vector, Vector, float, float]:
        """Mean and variance of each arm, the weight of the standard deviation, and its unit in units of y.

        Means are centred, in units of y; variances belong to the kernel of unit size, or to that of the algorithm.
        """

    @abstractmethod
    def _learn(self, arm: int, reward: float) -> None:
        """Take a centred reward into account."""


def gram_of(candidates: Matrix, kernel: wire.Kernel, nugget: float) -> Matrix:
    """Covariances of unit size: the kernel's correlations, with ``nugget`` added to the diagonal, divided by 1 + it.

    Raises Invalid for more than ARMS_MAX arms.
    """
    if len(candidates) > ARMS_MAX:
        raise Invalid(
            f"this algorithm is for {ARMS_MAX} candidates at most, not {len(candidates)}: choose gp_ucb or random"
        )
    if not np.isfinite(candidates).all():
        raise NumericalFailure("the candidates hold a number that is not finite")
    gram = kernel_of(kernel.kind, kernel.lengthscale, 1.0)(np.asarray(candidates), np.asarray(candidates))
    gram[np.diag_indices(len(gram))] += nugget
    gram /= 1 + nugget
    return gram


def require_family(law: RewardLaw, name: str, *families: Family) -> None:
    """Raise Invalid unless the study's answers have noise of one of these families."""
    if law.family not in families:
        expected = " or ".join("no privacy noise" if family == "none" else family for family in families)
        actual = "no privacy noise" if law.family == "none" else law.family
        raise Invalid(f"{name} is for answers with {expected}: those of this study have {actual}")


def amplitude(law: RewardLaw, lam: float) -> float:
    """Return the prior standard deviation of f for ``lam``, the noise variance in units of its square."""
    return sqrt(law.noise_variance / lam)
