"""ATA-GP-UCB: adaptively truncated features, Algorithm 1 of Zhou & Tan (2021)."""

from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from blindopt.arrays import Vector
from blindopt.gp.features import RENEWED_EVERY, Root, features
from blindopt.gp.single_thread_blas import left_product, right_product
from blindopt.optimizer.algorithms.bandits.few_arms import BanditProblem, FewArms, amplitude

PRUNED_EVERY = 32


@dataclass(frozen=True, slots=True)
class AtaSettings:
    """Constants: E|y|^(1 + alpha) <= ``moment``, ||f|| <= ``rkhs_bound``, ``accuracy`` of the embedding (veps)."""

    lam: float
    scale: float
    rkhs_bound: float
    moment: float
    alpha: float = 1.0
    delta: float = 0.1
    accuracy: float = 0.5

    def _log(self, rank: int, horizon: int) -> float:
        return log(4 * rank * horizon / self.delta)

    def cut(self, t: int, rank: int, horizon: int) -> float:
        """b_t: products u y larger than it are left out. It never falls as t grows."""
        power = 1 / (1 + self.alpha)
        return float((self.moment / self._log(rank, horizon)) ** power * t ** ((1 - self.alpha) / 2 * power))

    def width(self, t: int, rank: int, horizon: int) -> float:
        """The exploration weight, scale * beta_(t+1)."""
        power = 1 / (1 + self.alpha)
        noise = self.moment**power * self._log(rank, horizon) ** (self.alpha * power)
        noise *= t ** ((1 - self.alpha) / 2 * power)
        trust = self.rkhs_bound * (1 + 1 / sqrt(1 - self.accuracy))
        return float(self.scale * (trust + 4 * sqrt(rank / self.lam) * noise))


class LdpAta(FewArms):
    """The arm of largest mu~ + beta sigma~, with mu~(x) = u_x . r and r_i the sum of the u_(i,tau) y_tau up to b_t.

    The sum over all t rewards is not formed. r is U S less what is cut; every row of U has sum_a N_a u_(i,a)^2 <= 1,
    so that a reward with |y| <= b_t sqrt(N_a) is cut neither now nor later (neither b_t nor N_a falls): only the
    others, the dangerous ones, are kept one by one. The cut is b_t for all rewards, not b_tau as in Algorithm 1,
    line 9: the analysis needs b_t.
    """

    SAFE = 1 - 1e-9
    """A reward is kept from this share of its bound on: |u| <= N^(-1/2) holds up to rounding."""

    def __init__(self, problem: BanditProblem, settings: AtaSettings, renewed_every: int = RENEWED_EVERY) -> None:
        super().__init__(problem)
        self.settings = settings
        self.root = Root(features(problem.gram), settings.lam, renewed_every)
        self._missed = np.diag(problem.gram) - np.einsum("ij,ij->j", self.root.phi, self.root.phi)
        self._sums = np.zeros(len(problem.gram))
        self._arms = np.zeros(0, dtype=np.intp)
        self._rewards = np.zeros(0)
        self._new: list[tuple[int, float]] = []
        self._sd = amplitude(problem.law, settings.lam)

    @property
    def _cut(self) -> float:
        return self.settings.cut(self.root.plays, self.root.rank, self.problem.horizon)

    def mean(self) -> Vector:
        """mu~ of each arm (n,)."""
        total = right_product(self.root.whitened, self._sums)
        self._gather()
        if len(self._arms):
            products = self.root.whitened[:, self._arms] * self._rewards
            products[np.abs(products) <= self._cut] = 0.0
            total -= products.sum(axis=1)
        return left_product(total, self.root.whitened)

    def estimates(self) -> tuple[Vector, Vector, float, float]:
        root = self.root
        width = self.settings.width(root.plays, root.rank, self.problem.horizon)
        return self.mean(), self._missed + root.lam * root.squared_norms, width, self._sd

    def _learn(self, arm: int, reward: float) -> None:
        self.root.play(arm)
        self._sums[arm] += reward
        if abs(reward) > self._cut * sqrt(self.root.counts[arm]) * self.SAFE:
            self._new.append((arm, reward))
        if self.root.plays % PRUNED_EVERY == 0:
            self._prune()

    def _gather(self) -> None:
        if self._new:
            arms, rewards = zip(*self._new, strict=True)
            self._arms = np.concatenate([self._arms, np.array(arms, dtype=np.intp)])
            self._rewards = np.concatenate([self._rewards, np.array(rewards)])
            self._new.clear()

    def _prune(self) -> None:
        self._gather()
        is_large = np.abs(self._rewards) > self._cut * np.sqrt(self.root.counts[self._arms]) * self.SAFE
        self._arms, self._rewards = self._arms[is_large], self._rewards[is_large]
