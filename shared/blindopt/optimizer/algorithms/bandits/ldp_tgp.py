"""TGP-UCB: truncated rewards, Algorithm 2 of Zhou & Tan (2021)."""

from dataclasses import dataclass
from math import log, sqrt

from blindopt.arrays import Vector
from blindopt.gp.arms import ArmsPosterior
from blindopt.optimizer.algorithms.bandits.few_arms import BanditProblem, FewArms, amplitude
from blindopt.optimizer.algorithms.bandits.reward_law import RewardLaw


@dataclass(frozen=True, slots=True)
class LaplaceTruncation:
    """Constants under Laplace noise; ``tight`` are those that the proof needs.

    Printed: b_t = B + R + L ln t, and beta_t = B' + 2 sqrt(2 / lam) b_(t-1) sqrt(G + ln(1 / delta))
    + sqrt(K (ln(t - 1) + 1) / lam) with K = B^2 + R^2 + 2 L^2 and ln 0 = 0. Tight: sqrt(2 / lam) in the second term
    (a truncated reward is b-sub-Gaussian), and in the third the sum of the squared biases ((b_s + L) / s)^2, s < t.
    """

    law: RewardLaw
    rkhs_bound: float
    delta: float
    tight: bool = False

    def level(self, t: int) -> float:
        """b_t."""
        return self.law.bound + self.law.scale * log(max(t, 1))

    def squared_bias(self, t: int) -> float:
        """A bound of the squared bias of truncated reward t."""
        return ((self.level(t) + self.law.scale) / t) ** 2

    def beta(self, t: int, gain: float, biases: float, lam: float) -> float:
        """beta_(t+1) after t rewards with realised gain G_t; ``biases`` is the sum of the squared biases."""
        noise = sqrt(2 / lam) * self.level(t) * sqrt(gain + log(1 / self.delta))
        if self.tight:
            return self.rkhs_bound + noise + sqrt(biases / lam)
        moment = self.law.value_bound**2 + self.law.noise_bound**2 + 2 * self.law.scale**2
        return self.rkhs_bound + 2 * noise + sqrt(moment * (log(max(t, 1)) + 1) / lam)


@dataclass(frozen=True, slots=True)
class HeavyTruncation:
    """Constants under heavy tails without privacy: E|y|^(1 + alpha) <= ``moment``.

    b_t = v^(1/(1+alpha)) t^(1/(2(1+alpha))),
    beta_(t+1) = B' + b_t lam^(-1/2) (2 sqrt(2 (G + ln(1/delta))) + sqrt(1 + alpha)).
    """

    moment: float
    rkhs_bound: float
    delta: float
    alpha: float

    def level(self, t: int) -> float:
        """b_t."""
        return float((self.moment * sqrt(t)) ** (1 / (1 + self.alpha)))

    def squared_bias(self, t: int) -> float:
        """Return 0: the bias is part of ``beta``."""
        return 0.0

    def beta(self, t: int, gain: float, biases: float, lam: float) -> float:
        """beta_(t+1) after t rewards with realised gain G_t."""
        width = 2 * sqrt(2 * (gain + log(1 / self.delta))) + sqrt(1 + self.alpha)
        return self.rkhs_bound + self.level(t) * width / sqrt(lam)


class LdpTgp(FewArms):
    """The arm of largest mean + scale beta sd of the exact posterior, with rewards beyond b_t set to 0.

    gamma_t is replaced by the realised gain G_t, which the inequality behind it holds with.
    """

    def __init__(
        self, problem: BanditProblem, rule: LaplaceTruncation | HeavyTruncation, *, lam: float, scale: float
    ) -> None:
        super().__init__(problem)
        self.posterior = ArmsPosterior(problem.gram, lam)
        self._rule = rule
        self.scale = scale
        self._biases = 0.0
        self._sd = amplitude(problem.law, lam)

    @property
    def width(self) -> float:
        """The exploration weight, scale * beta, of the next round."""
        posterior = self.posterior
        return self.scale * self._rule.beta(posterior.plays, posterior.gain, self._biases, posterior.lam)

    def estimates(self) -> tuple[Vector, Vector, float, float]:
        return self.posterior.mean, self.posterior.variance, self.width, self._sd

    def _learn(self, arm: int, reward: float) -> None:
        t = self.posterior.plays + 1
        self.posterior.play(arm, reward if abs(reward) <= self._rule.level(t) else 0.0)
        self._biases += self._rule.squared_bias(t)
