"""The number of guesses between two neighbours that it takes to prove anything."""

from collections.abc import Callable
from math import ceil, inf, log10, sqrt

import numpy as np

from curator_service.releases.attacks.intervals import ALPHA, epsilon_bound

TRIALS_MAX = 10**9
"""The largest number of trials per side that is computed."""
_POWER = 1.2816
"""Standard deviations below the mean: on each side a record is that poor one time in ten."""


def to_differ_from_a_coin(right: float, delta: float, alpha: float = ALPHA) -> float:
    """Trials per side from which an attacker with a share ``right`` of right guesses mostly beats a coin provably.

    The smallest n for which a record that is poorer than nine of ten, on each side, implies an epsilon above 0;
    inf beyond TRIALS_MAX.

    >>> to_differ_from_a_coin(1.0, 0.0), to_differ_from_a_coin(0.5, 0.0)
    (6.0, inf)
    """

    def differs(n: int) -> bool:
        hits = max(0, int(n * right - _POWER * sqrt(n * right * (1 - right))))
        return epsilon_bound(hits, n, n - hits, n, delta, alpha) > 0

    return _smallest(differs)


def to_contradict(epsilon: float, delta: float, alpha: float = ALPHA) -> float:
    """Trials per side from which a record without an error implies more than ``epsilon``; inf beyond TRIALS_MAX.

    With fewer trials not even a release without any noise contradicts its claim.

    >>> to_contradict(1.0, 1e-5, 1e-6)
    47.0
    """
    return _smallest(lambda n: epsilon_bound(n, n, 0, n, delta, alpha) > epsilon)


def best_share(family: str, distance: float, d: int) -> float:
    """The share of right guesses of the best attacker between two means behind noise in ``d`` dimensions.

    ``distance`` is that between the means, in the noise's standard deviations per coordinate. The best guess is the
    nearer mean (Neyman & Pearson). It is right while the noise along the line between them is less than half of the
    distance. Noise that is not planar Laplace is treated as normal.

    >>> round(best_share("gaussian", 2.0, 3), 3), round(best_share("planar_laplace", 2.0, 3), 3)
    (0.841, 0.865)
    """
    from scipy.special import betainc, gammaincinv, ndtr

    if family != "planar_laplace":
        return float(ndtr(distance / 2))
    # Radius Gamma(d) in units of sd / sqrt(d + 1), by its quantiles; the cosine of its angle has a Beta law.
    radius = gammaincinv(d, (np.arange(2_000) + 0.5) / 2_000)
    cosine = np.minimum(distance / 2 * sqrt(d + 1) / radius, 1.0)
    half = (d - 1) / 2
    below = betainc(half, half, (1 + cosine) / 2) if d > 1 else np.where(cosine < 1, 0.5, 1.0)
    return float(below.mean())


def about(trials: float) -> str:
    """A number of trials in words, rounded up to two digits.

    >>> about(7), about(4213), about(inf)
    ('about 7', 'about 4,300', 'more than 1,000,000,000')
    """
    if trials > TRIALS_MAX:
        return f"more than {TRIALS_MAX:,}"
    unit = 10 ** max(0, int(log10(trials)) - 1)
    return f"about {unit * ceil(trials / unit):,}"


def _smallest(enough: Callable[[int], bool]) -> float:
    """The smallest number that is ``enough``, by doubling and bisection; off by one or two where rounding wavers."""
    above = 1
    while not enough(above):
        above *= 2
        if above > TRIALS_MAX:
            return inf
    below = above // 2
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if enough(middle) else (middle, above)
    return float(above)
