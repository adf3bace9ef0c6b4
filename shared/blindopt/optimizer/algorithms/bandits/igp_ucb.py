"""IGP-UCB: Chowdhury & Gopalan (2017), with the realised gain."""

from math import exp, log, sqrt

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
        self._answered: ArmsPosterior | None = None
        """The posterior without the pending rounds of a batch; None outside of one."""

    @property
    def width(self) -> float:
        """The exploration weight, scale * beta, of the next round."""
        answered = self._answered or self.posterior
        inner = 2 * (answered.gain + log(1 / self._delta)) / answered.lam
        pending = exp(self.posterior.gain - answered.gain)  # 1 outside of a batch
        return self.scale * (self._rkhs_bound + self.sub_gaussian * sqrt(inner)) * pending

    def suppose(self, row: int) -> None:
        """Add a pending round: it changes the variances alone.

        A standard deviation falls by a factor exp(C) at most, C the gain of the pending rounds (Desautels et al. 2014,
        section 4.2), by which the exploration weight grows: so the confidence bounds of a batch hold as without one,
        and the bound on the regret is larger by exp(C) at most, C of the largest batch.
        """
        self._answered = self._answered or self.posterior.copied()
        self.posterior.play(row, float(self.posterior.mean[row]))

    def retract(self) -> None:
        self.posterior, self._answered = self._answered or self.posterior, None

    def estimates(self) -> tuple[Vector, Vector, float, float]:
        return self.posterior.mean, self.posterior.variance, self.width, self._sd

    def _learn(self, arm: int, reward: float) -> None:
        self.posterior.play(arm, reward)


class BoundedIgp(IgpUcb):
    """IGP-UCB for answers of sup norm M', which are M'-sub-Gaussian about f (Hoeffding).

    ``guaranteed``: s = M', lam = s^2, scale 1: no truncation, no medians, no factor in T. Otherwise s^2 is the
    worst-case variance and R^2, lam = s^2 / B^2, scale 0.3: better in the trials of benchmarks/papers, and no theorem.
    """

    def __init__(
        self, problem: BanditProblem, *, guaranteed: bool, rkhs_bound: float, delta: float, scale: float | None = None
    ) -> None:
        law = problem.law
        s = law.scale if guaranteed else sqrt(law.noise_variance)
        super().__init__(
            problem,
            lam=s**2 if guaranteed else (s / law.value_bound) ** 2,
            scale=scale if scale is not None else 1.0 if guaranteed else 0.3,
            sub_gaussian=s,
            rkhs_bound=rkhs_bound,
            delta=delta,
        )
