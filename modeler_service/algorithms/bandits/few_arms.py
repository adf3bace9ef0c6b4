"""What the algorithms over few arms share: the stage they play on, their choice, their care with rewards."""

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
from modeler_service.algorithms.bandits.reward_law import Family, RewardLaw

ARMS_MAX = 2_000
"""More would need n x n matrices of tens of megabytes, and tens of milliseconds a round."""
MATRICES = 4
"""How many n x n matrices an algorithm holds at once, at most."""
TIE = 1e-9
"""Indices that differ by less, in units of the largest, are equal: rounding differs between machines."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where an algorithm plays: n arms with covariances ``gram`` (n, n) of unit size, and the law of the rewards.

    ``sign`` is -1 for minimization. The horizon T counts ``initial`` rewards, which it is shown first.
    """

    gram: Matrix
    law: RewardLaw
    sign: int
    seed: int
    horizon: int
    initial: int

    @property
    def offset(self) -> float:
        """What is taken off outcomes: the centre, in the run's direction."""
        return self.sign * self.law.centre

    def choice(self, step: int, index: Vector, mean: Vector, variance: Vector, amplitude: float) -> Choice:
        """The arm of largest ``index``; ties, to TIE, are broken by a draw of seed and step alone.

        The standard deviation that it tells is ``amplitude`` times the root of ``variance``. Ties are real: before
        the first reward all arms are equal, and eigenvectors make them so to the last bits only, which depend on the
        number of threads.
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
        return self.told(arm, float(mean[arm]), amplitude * sqrt(max(float(variance[arm]), 0.0)), top, ties)

    def told(self, arm: int, mean: float, sd: float, top: float, ties: int) -> Choice:
        """A choice in units of the outcome: the centre is put back."""
        return Choice(arm, mean + self.offset, sd, top + self.offset, ties)


class FewArms(ABC):
    """Plays arms again and again; what it chooses is a function of stage, settings and rewards alone."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.warnings: list[str] = []
        """What speaks against it on this stage, in words."""
        self.hidden: Rows = np.empty(0, dtype=np.intp)

    def choose(self, step: int) -> Choice:
        """The arm of the largest index."""
        mean, variance, width, amplitude = self._view()
        index = np.maximum(variance, 0.0)  # rounding may dip below
        np.sqrt(index, out=index)
        index *= width
        index += mean
        index[self.hidden] = -np.inf
        return self.stage.choice(step, index, mean, variance, amplitude)

    def observe(self, row: int, outcome: float, passport: wire.NoisePassport | None = None) -> None:
        """Learn from an outcome. ProtocolViolated for a passport that is not of the study's answers."""
        if not 0 <= row < len(self.stage.gram):
            raise IndexError(f"row {row} of {len(self.stage.gram)} arms")
        if passport is not None:
            self.stage.law.check(passport)
        check_reward(outcome)
        self._learn(row, outcome - self.stage.offset)

    def decline(self, row: int) -> None:
        """Nothing is learnt: estimates, counts of plays and truncation levels are as before."""
        return

    def hide(self, rows: Rows) -> None:
        """Choose none of these arms from now on, and any other."""
        self.hidden = np.asarray(rows, dtype=np.intp)

    def moments(self, rows: Rows) -> tuple[Vector, Vector]:
        """Its own estimates of f at ``rows``, and their variances."""
        mean, variance, _, amplitude = self._view()
        return mean[rows] + self.stage.offset, amplitude**2 * np.maximum(variance[rows], 0.0)

    def best(self, rows: Rows) -> Estimate:
        """The first of ``rows`` with the largest estimate."""
        mean, variance = self.moments(rows)
        place = int(mean.argmax())
        return Estimate(int(rows[place]), float(mean[place]), sqrt(float(variance[place])))

    @abstractmethod
    def _view(self) -> tuple[Vector, Vector, float, float]:
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


def need(law: RewardLaw, name: str, *families: Family) -> None:
    """Invalid if the study's answers are not what an algorithm is for."""
    if law.family not in families:
        wanted = " or ".join("no privacy noise" if family == "none" else family for family in families)
        told = "no privacy noise" if law.family == "none" else law.family
        raise Invalid(f"{name} is for answers with {wanted}: those of this study have {told}")


def amplitude(law: RewardLaw, lam: float) -> float:
    """Prior standard deviation of f that ``lam`` amounts to: lam is the noise variance in squares of it."""
    return sqrt(law.noise_variance / lam)
