"""A lower bound on the epsilon of answers, from draws alone: Clopper and Pearson."""

import math

import numpy as np
from scipy import stats

MISTAKEN = 1e-6
"""A bound is above the true epsilon less often: both shares would have to be as far off as that, each for itself.

Where epsilon is spent whole, by answers of epsilon 1, it is so once in 10^9."""


def at_least(high, low, threshold):
    """A lower bound on epsilon that is wrong with probability 1e-6, from the event `y > threshold`."""
    k, m = int((high > threshold).sum()), int((low > threshold).sum())
    sure = stats.beta.ppf(MISTAKEN / 2, k, len(high) - k + 1) if k else 0.0
    most = stats.beta.ppf(1 - MISTAKEN / 2, m + 1, len(low) - m) if m < len(low) else 1.0
    return math.log(sure / most) if sure else -math.inf


def lower_bound(high, low):
    """The better bound of both directions; the threshold is chosen on a fifth of the draws, tested on the rest."""
    fifth = len(high) // 5
    bounds = []
    for numerator, other in ((high, low), (-low, -high)):
        pooled = np.concatenate([numerator[:fifth], other[:fifth]])
        thresholds = np.unique(np.quantile(pooled, np.linspace(0.01, 0.99, 99), method="lower")) - 1e-9
        best = max(thresholds, key=lambda t, o=numerator, p=other: at_least(o[:fifth], p[:fifth], t))
        bounds.append(at_least(numerator[fifth:], other[fifth:], best))
    return max(bounds)
