"""IGP-UCB: Chowdhury & Gopalan (2017), with the realised gain."""

from math import log, sqrt

from blindopt.arrays import Vector
from blindopt.gp.arms import ArmsPosterior
from blindopt.optimizer.algorithms.bandits.few_arms import BanditProblem, FewArms, amplitude


class IgpUcb(FewArms):
    """The arm of largest mean + scale beta sd, beta_t = B' + s sqrt(2 (G_(t-1) + ln(1 / delta)) / lam).

    A theorem where the noise is ``sub_gaussian`` = s; with Laplace noise s is its standard deviation, and a heuristic.
    """

    def __init__(
        self, problem: BanditProblem, *, lam: float, scale: float, sub_gaussian: float, rkhs_bound: float, delta: float
    ) -> None:
        super().__init__(problem)
        self.posterior = ArmsPosterior(problem.gram, lam)
        self.scale, self.sub_gaussian, self._rkhs_bound, self._delta = scale, sub_gaussian, rkhs_bound, delta
        self._sd = amplitude(problem.law, lam)

    @property
    def width(self) -> float:
        """The exploration weight, scale * beta, of the next round."""
        inner = 2 * (self.posterior.gain + log(1 / self._delta)) / self.posterior.lam
        return self.scale * (self._rkhs_bound + self.sub_gaussian * sqrt(inner))

    def estimates(self) -> tuple[Vector, Vector, float, float]:
        return self.posterior.mean, self.posterior.variance, self.width, self._sd

    def _learn(self, arm: int, reward: float) -> None:
        self.posterior.play(arm, reward)
