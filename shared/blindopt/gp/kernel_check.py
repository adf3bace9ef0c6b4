"""Whether a kernel that was given fits the answers so far: two tests that hold however the candidates were chosen."""

from math import log, pi

import numpy as np

from blindopt.arrays import Vector
from blindopt.gp.marginal_likelihood import Hyper, MarginalLikelihood

ERROR = 0.01
"""Probability that each of the two tests ever rejects a kernel that the answers are drawn from, at most."""


class KernelCheck:
    """Checks a given kernel after 10, 20, ... answers, or so; remembers what earlier checks saw.

    Let w = L^-1 (y - m) be the whitened answers under the kernel: w_i is the distance of answer i from its prediction
    by those before it, in standard deviations. If the kernel is right, they are independent and standard normal,
    however each candidate was chosen from the answers before it.

    The first test compares |w|^2 of c answers with the quantiles of chi-square with c degrees. The k-th check spends
    ERROR / (k (k + 1)) of the error, half on each side, so that all together spend at most ERROR.

    The second compares each block of answers since the last check under the kernel with its density under the fit made
    at the last check. If the kernel is right, the product of these ratios is a non-negative martingale with mean 1, and
    by Ville's inequality it ever reaches 1 / ERROR with probability ERROR at most (a test by a plug-in likelihood:
    Wasserman, Ramdas & Balakrishnan 2020, section 8). It finds kernels under which answers are likely, but less so than
    under another one: a length-scale that is much too short. Both hold for normal answers; heavy tails reject more.
    """

    def __init__(self) -> None:
        self.checks, self.log_ratio = 0, 0.0

    def surprise(self, white: Vector) -> str | None:
        """The next check by the first test, of all ``white`` (c,) so far: what is wrong, in words; None if nothing."""
        from scipy.special import chdtr, chdtrc  # late, for a fast start of the services

        self.checks += 1
        level = ERROR / (2 * self.checks * (self.checks + 1))
        squares, count = float(white @ white), len(white)
        far = f"{np.sqrt(squares / count):.2g} times as far from its predictions as it expects"
        if not chdtrc(count, squares) >= level:  # a sum that is no number is a surprise too
            return f"the answers lie {far}"
        return f"the answers lie only {far}" if chdtr(count, squares) < level else None

    def loses(self, log_density: float, rival: float) -> str | None:
        """Add a block of answers with these log densities under the kernel and under the fit before it."""
        self.log_ratio += rival - log_density
        if not self.log_ratio >= -log(ERROR):
            return None
        return "fitted values predict new answers much better than it does"


def block_log_density(white: Vector, pivots: Vector) -> float:
    """Log density of answers given those before them: ``white`` (c,) under standard deviations ``pivots`` (c,)."""
    return float(-0.5 * (white @ white) - np.log(pivots).sum() - 0.5 * len(white) * log(2 * pi))


def rival_log_density(whole: MarginalLikelihood, before: MarginalLikelihood, hyper: Hyper) -> float:
    """Log density of the answers that the first likelihood has and the second one has not, with fitted values."""
    logs = np.log([*(hyper.lengthscales or (hyper.lengthscale,)), hyper.signal_variance, hyper.noise_variance])
    return whole.at(logs)[0] - before.at(logs)[0]
