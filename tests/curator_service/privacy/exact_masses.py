"""How well integers fit a law with given masses."""

from collections.abc import Callable

import numpy as np
from scipy import stats


def misfit(drawn: np.ndarray, reach: int, density: Callable[[np.ndarray], np.ndarray]) -> float:
    """The p-value of chi-square against masses proportional to ``density`` of integers up to ``reach`` on each side.

    Integers beyond 8 expected draws are counted together.
    """
    x = np.arange(-reach, reach + 1)
    masses = density(x)
    expected = len(drawn) * masses / masses.sum()
    is_common = expected > 8
    observed = np.array([(drawn == value).sum() for value in x[is_common]])
    rest = max(expected[~is_common].sum(), 1e-9)
    terms = (observed - expected[is_common]) ** 2 / expected[is_common]
    other = len(drawn) - observed.sum()
    return stats.chi2.sf(terms.sum() + min((other - rest) ** 2 / rest, 1e9), len(terms))
