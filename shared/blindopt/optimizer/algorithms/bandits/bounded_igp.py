"""IGP-UCB on bounded answers, where its exploration weight is a theorem."""

from math import sqrt

from blindopt.optimizer.algorithms.bandits.few_arms import BanditProblem
from blindopt.optimizer.algorithms.bandits.igp_ucb import IgpUcb


class BoundedIgp(IgpUcb):
    """IGP-UCB for answers of sup norm M', which are M'-sub-Gaussian about f (Hoeffding).

    ``guaranteed``: s = M', lam = s^2, scale 1: no truncation, no medians, no factor in T. Otherwise s^2 is the
    worst-case variance and R^2, lam = s^2 / B^2, scale 0.3: better in the trials of docs/results.md, and no theorem.
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
