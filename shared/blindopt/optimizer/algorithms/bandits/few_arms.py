"""What the algorithms over few arms share: their problem, choice, checks of rewards, and warnings about settings."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import ceil, sqrt

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


# --- warnings about the settings of a run -----------------------------------------------------------

SLOW = (
    "these constants are those of the theorem: below about 1,000,000 queries they choose hardly better than at random; "
    "choose theory: false for constants that work in practice"
)
FEW = (
    "{queries} queries at epsilon {epsilon:.3g} choose hardly better than at random: ask the owner for {needed} "
    "queries, a larger epsilon or a narrower range of outcomes"
)
LONG = "an epoch of {plays} rounds is more than a twentieth of the {horizon} queries: few decisions are left"
AGAIN = (
    "candidates may be queried again, and records are people in this study: each answer about one uses epsilon again, "
    "and one release of a mean is worth more than repeats"
)
FLAT = "the largest eigenvalue of the kernel is more than half of its trace: the candidates are nearly one arm"
INITIAL_UNUSED = "the initial rows are no part of an epoch: their answers are left out, so ask for none"
WIDER = "one_bit answers have a smaller sup norm than piecewise ones at every epsilon: better for the guaranteed mode"


def warnings_for(spec: wire.FewArms, problem: BanditProblem, *, plays: int | None, unit_is_row: bool) -> list[str]:
    """Return the warnings. ``plays``: rounds of an epoch; ``unit_is_row``: answers about one row add up.

    The thresholds are rules of thumb from trials of an earlier implementation, but for 5, the least epsilon sqrt(T) at
    which a quick algorithm does better than uniform play (docs/algorithms.md), which was measured. Clipped
    rewards are not counted: only the curator could, and it does not report them.
    """
    from scipy.linalg import eigh  # late, for a fast start of the services

    law, horizon = problem.law, problem.horizon
    warnings = []
    if isinstance(spec, wire.PaperSpec) and not isinstance(spec, wire.IgpUcb):
        scale = spec.scale if spec.scale is not None else 1.0 if spec.theory else 0.0
        if scale >= 1:
            warnings.append(SLOW)
    is_quick = isinstance(spec, wire.LaplaceAdf | wire.Thompson)
    if isinstance(spec, wire.BoundedIgp):
        is_quick = spec.mode == "practical"
    least = 5 if is_quick else 100
    if law.epsilon is not None and law.epsilon * sqrt(horizon) < least:
        warnings.append(FEW.format(queries=horizon, epsilon=law.epsilon, needed=ceil((least / law.epsilon) ** 2)))
    if plays is not None and plays > horizon / 20:
        warnings.append(LONG.format(plays=plays, horizon=horizon))
    if plays is not None and problem.initial:
        warnings.append(INITIAL_UNUSED)
    if law.epsilon is not None and unit_is_row:
        warnings.append(AGAIN)
    if isinstance(spec, wire.BoundedIgp) and spec.mode == "guaranteed" and law.family == "piecewise":
        warnings.append(WIDER)
    last = len(problem.gram) - 1
    (largest,) = eigh(problem.gram, eigvals_only=True, subset_by_index=[last, last])
    if 2 * float(largest) > float(np.trace(problem.gram)):
        warnings.append(FLAT)
    return warnings
