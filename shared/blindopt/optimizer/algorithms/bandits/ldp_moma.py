"""MoMA-GP-UCB: medians of means in epochs, Algorithm 3 of Zhou & Tan (2021)."""

from dataclasses import dataclass
from math import ceil, e, log, sqrt

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.gp.acquisition import Choice
from blindopt.gp.features import Root, features
from blindopt.gp.single_thread_blas import left_product
from blindopt.optimizer.algorithms.bandits.few_arms import TIE, BanditProblem, FewArms, amplitude


def plays_of_theorem(horizon: int, delta: float) -> int:
    """Plays of an epoch, k = ceil(24 ln(4 e T / delta)): about 300 for T in the thousands."""
    return ceil(24 * log(4 * e * horizon / delta))


@dataclass(frozen=True, slots=True)
class MomaSettings:
    """Constants: E|eta|^(1 + alpha) <= ``moment``; ``plays`` is k, at most T."""

    lam: float
    scale: float
    rkhs_bound: float
    moment: float
    plays: int
    alpha: float = 1.0
    accuracy: float = 0.5

    def width(self, epochs: int, rank: int) -> float:
        """The exploration weight, scale * beta_(n+1), after n epochs."""
        power = 1 / (1 + self.alpha)
        noise = (9 * rank * self.moment) ** power * epochs ** ((1 - self.alpha) / 2 * power)
        trust = self.rkhs_bound * (1 + 1 / sqrt(1 - self.accuracy))
        return float(self.scale * (trust + 3 / sqrt(self.lam) * noise))


def median_of_means(turned: Matrix, totals: Matrix) -> Vector:
    """Z_k* (m,): of the k estimates Z = U Y the one with the smallest median distance from the others.

    ``turned`` is U (m, n), ``totals`` Y (n, k) the sums by arm and position in the epoch. |Z_j - Z_s| is the distance
    of theta_j and theta_s in the norm of V; the median of an even number is their middle. Of equals, to TIE, the first
    is taken: after an epoch of one arm all estimates lie on a line, where medians are often equal.
    """
    estimates = turned @ totals
    k = estimates.shape[1]
    if k == 1:
        return np.asarray(estimates[:, 0])
    centred = estimates - estimates.mean(axis=1, keepdims=True)  # distances are the same, with less to cancel
    squares = np.einsum("ij,ij->j", centred, centred)
    distances = squares[:, None] + squares[None, :] - 2 * (centred.T @ centred)
    np.fill_diagonal(distances, np.inf)
    np.maximum(distances, 0.0, out=distances)
    ordered = np.sqrt(np.sort(distances, axis=1)[:, : k - 1])
    middle = (ordered[:, (k - 2) // 2] + ordered[:, (k - 1) // 2]) / 2
    first = int(np.argmax(middle <= middle.min() + TIE * middle.max()))
    return np.asarray(estimates[:, first])


class LdpMoma(FewArms):
    """Epochs of k plays of one arm; the ridge matrix has one row an epoch.

    N = floor((T - initial) / k) epochs, k at most their number of plays; the left-over rounds play the arm of largest
    index, and change no estimate. Initial rewards are no part of an epoch and are left out. An epoch that a decline
    cuts short is left out as well: a median needs a reward at each of the k positions. The next round
    begins another epoch.
    """

    def __init__(self, problem: BanditProblem, settings: MomaSettings) -> None:
        super().__init__(problem)
        self.settings = settings
        self.plays = max(1, min(settings.plays, problem.horizon - problem.initial))
        self.root = Root(features(problem.gram), settings.lam)
        self._missed = np.diag(problem.gram) - np.einsum("ij,ij->j", self.root.phi, self.root.phi)
        self._totals: Matrix = np.zeros((len(problem.gram), self.plays))
        self._epoch: list[float] = []
        self._arm = 0
        self._pending: tuple[int, int] | None = None
        """In a batch: the arm of the epoch, and its rounds, pending ones included."""
        self._seen = 0
        self._best: Vector = np.zeros(self.root.rank)
        self._sd = amplitude(problem.law, settings.lam)

    @property
    def mean(self) -> Vector:
        """mu~ of each arm (n,), from the complete epochs."""
        return left_product(self._best, self.root.whitened)

    def choose(self, step: int) -> Choice | None:
        """Return the epoch's arm, or the arm of the largest index at the first round of an epoch.

        None at the end of an epoch with pending rounds: a batch has the rounds of one epoch alone, so it asks what
        single queries would.
        """
        arm, rounds = self._pending or (self._arm, len(self._epoch))
        if self._pending is not None and rounds == self.plays:
            return None
        if not rounds or arm in self.hidden:
            return super().choose(step)
        mean, variance, width, amplitude = self.estimates()
        sigma = sqrt(max(float(variance[arm]), 0.0))
        return self.problem.as_choice(arm, float(mean[arm]), amplitude * sigma, float(mean[arm]) + width * sigma, 1)

    def suppose(self, row: int) -> None:
        arm, rounds = self._pending or (self._arm, len(self._epoch))
        self._pending = row, rounds + 1 if row == arm else 1

    def retract(self) -> None:
        self._pending = None

    def decline(self, row: int) -> None:
        """End the epoch, and drop its rewards."""
        self._seen += 1
        self._epoch.clear()

    def estimates(self) -> tuple[Vector, Vector, float, float]:
        root = self.root
        width = self.settings.width(root.plays, root.rank)
        return self.mean, self._missed + root.lam * root.squared_norms, width, self._sd

    def _learn(self, arm: int, reward: float) -> None:
        self._seen += 1
        if self._seen <= self.problem.initial:
            return
        if arm != self._arm:  # the epoch before was cut short by a decline, which was answered later
            self._epoch.clear()
        self._arm = arm
        self._epoch.append(reward)
        if len(self._epoch) == self.plays:
            self._totals[arm] += self._epoch
            self._epoch.clear()
            self.root.play(arm)
            self._best = median_of_means(self.root.whitened, self._totals)
