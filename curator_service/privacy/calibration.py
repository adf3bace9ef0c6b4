"""How much noise a promise needs."""

import math
from decimal import Decimal
from functools import lru_cache

import numpy as np

from curator_service.privacy.noise import LATTICE_BITS

EPSILON_MIN = Decimal("0.000001")  # below, the root finder's error is not small against delta


@lru_cache(maxsize=256)
def gaussian_sd(epsilon: Decimal, delta: float, sensitivity: float, dimension: int) -> float:
    """Standard deviation per coordinate of the analytic Gaussian mechanism (Balle & Wang 2018).

    For (epsilon, delta)-DP when the ``dimension`` coordinates move together by at most ``sensitivity``
    in Euclidean norm, rounding to the noise's lattice included. The root finder does not round up, so
    delta is shrunk and the result grown by more than its error (docs/privacy.md).

    >>> from decimal import Decimal
    >>> round(gaussian_sd(Decimal(1), 1e-5, 1.0, 2), 4)
    3.7306
    """
    import dp_accounting

    if not (EPSILON_MIN <= epsilon <= 1_000 and 0 < delta < 1 and 0 < sensitivity < math.inf):
        raise ValueError("epsilon must be between 0.000001 and 1000, delta and sensitivity positive and finite")
    with np.errstate(divide="ignore"):  # the root finder passes through infinity for a large epsilon
        per_unit = dp_accounting.get_sigma_gaussian(float(epsilon) * (1 - 1e-12), delta * (1 - 1e-6)) * (1 + 1e-9)
    # The lattice step is at most per_unit * sensitivity * 2^-40, and rounding moves a row by step * sqrt(d).
    rounding = per_unit * 2.0**-LATTICE_BITS * math.sqrt(dimension)
    return float(per_unit * sensitivity * (1 + 2 * rounding))
