"""The constants of Kusner et al. (2015), Algorithms 1 and 2, and what their proofs allow instead.

In scaled units (prior variance 1) and natural logarithms. n: size of the grid; sigma: noise sd of one score;
``apart`` is 1 - k1 of neighbours, so that their functions differ by N(0, 2 apart) at each hyper-parameter.
"""

from math import exp, log, log1p, pi, sqrt
from typing import Literal

Split = Literal["paper", "corrected"]


def beta(n: int, t: int, delta: float, split: Split = "paper") -> float:
    """Exploration weight beta_t.

    paper: 2 ln(n t^2 pi^2 / (3 delta)), Algorithm 1, line 4: that of Srinivas et al. (2010) at delta / 2, where the
    proof grants delta / 3. corrected: at delta / 4, one of the four events that Theorem 3 rests on.

    >>> round(beta(100, 1, 0.05), 4), round(beta(100, 1, 0.05, "corrected"), 4)
    (17.5835, 18.9698)
    """
    share = delta / 2 if split == "paper" else delta / 4
    return 2 * log(n * t**2 * pi**2 / (6 * share))


def c(n: int, apart: float, delta: float, split: Split = "paper") -> float:
    """Bound on the distance of neighbours' functions over the grid, with error delta / 3 (delta / 4 if corrected).

    2 sqrt((1 - k1) ln(3 n / delta)), Algorithm 1, line 9.
    """
    return 2 * sqrt(apart * log((3 if split == "paper" else 4) * n / delta))


def c2(n: int, apart: float, delta: float) -> float:
    """The same bound with error delta / 2: 2 sqrt((1 - k1) ln(2 n / delta)), Algorithm 2, line 3."""
    return 2 * sqrt(apart * log(2 * n / delta))


def q(sigma: float, evaluations: int, delta: float, form: Split = "paper", split: Split = "paper") -> float:
    """The effect of noise on the difference of two maxima of T noisy scores.

    paper: sigma sqrt(8 ln(3 / delta)), line 10: for one draw at each side, while the noise at the largest of T noisy
    scores is an extreme of T draws. corrected: sigma sqrt(8 ln(6 T / delta)), a union bound over 2 T draws.
    """
    events = 3 if split == "paper" else 4
    draws = 1 if form == "paper" else 2 * evaluations
    return sigma * sqrt(8 * log(events * draws / delta))


def regret_rate(sigma: float, evaluations: int, beta_last: float, gamma: float) -> float:
    """The rate Omega / T = sqrt(C1 beta_T gamma_T / T), C1 = 8 / ln(1 + sigma^-2): Srinivas et al. (2010), Theorem 1.

    ``gamma`` is the largest information gain of T scores, or a bound of it.
    """
    return sqrt(8 / log1p(sigma**-2) * beta_last * gamma / evaluations)


def index_sensitivity(n: int, evaluations: int, apart: float, delta: float, split: Split = "paper") -> float:
    """D_l = 2 sqrt(beta_(T+1)) + c: Theorem 1, of the posterior mean after T scores."""
    return 2 * sqrt(beta(n, evaluations + 1, delta, split)) + c(n, apart, delta, split)


def tight_index_sensitivity(n: int, apart: float, delta: float) -> float:
    """2 sqrt(2 ln(3 n / delta)) + c: Theorem 1 is about one time alone, and needs no t^2."""
    return 2 * sqrt(2 * log(3 * n / delta)) + c(n, apart, delta)


def clip_bound(n: int, delta: float) -> float:
    """sqrt(2 ln(2 n / delta)): functions of the prior stay within +- this everywhere, with error delta / 2."""
    return sqrt(2 * log(2 * n / delta))


def value_sensitivity(rate: float, apart_bound: float, noise_bound: float) -> float:
    """D_v = Omega / T + c + q: Theorem 3, of the largest of T noisy scores."""
    return rate + apart_bound + noise_bound


def last_sensitivity(a: float, tau: float, evaluations: int, d: int, apart_bound: float) -> float:
    """A exp(-T tau / (ln T)^(d/4)) + c2: Theorem 5, of the last score of a search without noise; T >= 2."""
    return a * exp(-evaluations * tau / log(evaluations) ** (d / 4)) + apart_bound


def lipschitz_sensitivity(
    lipschitz: float, m: int, width: float, lambdas: tuple[float, float], form: Split = "corrected"
) -> float:
    """(l_max - l_min) L / (l_max l_min) + min(g*, 2 L / l_min) / m: Theorem 7 over a grid, ``lambdas`` its ends.

    paper: L / l_min in the second term. But two records' scores can lie 2 L |w| apart, and |w_l| is at most 1 / l. It
    holds for logistic training loss, for which |w_l| <= 1 / (2 l).
    """
    low, high = lambdas
    factor = 2 if form == "corrected" else 1
    return (high - low) * lipschitz / (high * low) + min(width, factor * lipschitz / low) / m
