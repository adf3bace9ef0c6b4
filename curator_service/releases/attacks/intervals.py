"""Intervals that hold for any sample size: for a share, for a median, and for the epsilon that guesses imply."""

from math import inf, log

import numpy as np

from blindopt.arrays import Vector

ALPHA = 0.05
"""The probability that the interval of a finding misses the true value."""


def clopper_pearson(hits: int, trials: int, alpha: float = ALPHA) -> tuple[float, float]:
    """Two-sided interval for a share, with alpha / 2 on each side (Clopper & Pearson 1934).

    >>> low, high = clopper_pearson(50, 50, 1e-6)
    >>> round(low, 3), high
    (0.748, 1.0)
    """
    from scipy.special import betaincinv

    low = float(betaincinv(hits, trials - hits + 1, alpha / 2)) if hits else 0.0
    high = 1 - float(betaincinv(trials - hits, hits + 1, alpha / 2)) if hits < trials else 1.0
    return low, high


def median_interval(values: Vector, alpha: float = ALPHA) -> tuple[float, float, float]:
    """Sample median, and two order statistics with the true median between them (David & Nagaraja 2003, 7.1).

    For independent values of any law, ties included. Raises ValueError for too few values.

    >>> median_interval(np.arange(1.0, 22.0))
    (11.0, 6.0, 16.0)
    """
    from scipy.special import bdtr

    n, ordered = len(values), np.sort(values)
    # The k-th smallest is above the median with probability P(Binomial(n, 1/2) < k), on each side.
    k = 0
    while bdtr(k, n, 0.5) <= alpha / 2:
        k += 1
    if k == 0:
        raise ValueError(f"{n} values are too few for an interval of their median")
    return float(np.median(ordered)), float(ordered[k - 1]), float(ordered[n - k])


def epsilon_bound(
    true_hits: int, true_trials: int, false_hits: int, false_trials: int, delta: float, alpha: float = ALPHA
) -> float:
    """A lower bound on epsilon at ``delta`` from the counts of an attacker who tells two neighbours apart.

    An event of probability p under one dataset and q under its neighbour needs p <= e^epsilon q + delta, and
    1 - q <= e^epsilon (1 - p) + delta; p and q are replaced by ends of their intervals, alpha / 2 each. The bound
    is wrong with probability alpha at most.

    >>> round(epsilon_bound(50, 50, 0, 50, 1e-5, 1e-6), 2)
    1.09
    """
    p, _ = clopper_pearson(true_hits, true_trials, alpha)
    _, q = clopper_pearson(false_hits, false_trials, alpha)
    epsilon = 0.0
    for likely, unlikely in ((p, q), (1 - q, 1 - p)):
        if likely > delta:
            epsilon = max(epsilon, log((likely - delta) / unlikely) if unlikely > 0 else inf)
    return epsilon
