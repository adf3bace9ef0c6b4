"""Private selection by scores: permute-and-flip, or the exponential mechanism."""

import math
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from blindopt.arrays import Vector
from curator_service.privacy.noise.lattice import check_finite, lattice, untrusted

Law = Literal["permute_and_flip", "exponential"]


def selection_scale(sensitivity: float, epsilon: Decimal) -> float:
    """Scale s of ``select``: slightly more than 2 sensitivity / epsilon, for rounding scores to the lattice.

    Each of two scores is rounded by half a step at most, so their distance grows by one step at most.
    """
    if not (0 < sensitivity < math.inf and 0 < epsilon < math.inf):
        raise ValueError("a draw needs a positive, finite sensitivity and epsilon")
    return 2 * _rounded(sensitivity) / float(epsilon) * (1 + 2.0**-50)


def select(scores: Vector, sensitivity: float, epsilon: Decimal, law: Law) -> int:
    """Draw an index of ``scores`` (n,), larger scores with larger probability.

    epsilon-DP where each score moves by ``sensitivity`` at most.

    exponential: probability proportional to exp(score / s), s = ``selection_scale`` (McSherry & Talwar 2007), for the
    largest of scores with Gumbel noise. permute_and_flip: the largest of scores with exponential noise of mean s
    (McKenna & Sheldon 2020; Ding et al. 2021). Raises NumericalFailure for a score that is not finite: infinity
    would win silently.
    """
    check_finite(scores)
    if scores.ndim != 1 or not scores.size:
        raise ValueError("a draw needs scores")
    k = lattice(sensitivity)
    rounded = np.ldexp(np.rint(np.ldexp(scores, -k)), k)
    check_finite(rounded)
    index = _noisy_max(sensitivity, epsilon, law)(rounded.tolist())
    return int(index)


def _rounded(sensitivity: float) -> float:
    return sensitivity + math.ldexp(1.0, lattice(sensitivity))


@lru_cache(maxsize=16)
def _noisy_max(sensitivity: float, epsilon: Decimal, law: Law) -> Any:
    from opendp import domains, measurements, measures, metrics, mod  # its prelude would load twice the memory

    mod.enable_features("contrib")
    scale, moved = selection_scale(sensitivity, epsilon), _rounded(sensitivity)
    space = domains.vector_domain(domains.atom_domain(T=float, nan=False)), metrics.linf_distance(T=float)
    pure = law == "permute_and_flip"
    measure = measures.max_divergence() if pure else measures.zero_concentrated_divergence()
    measurement: Any = measurements.make_noisy_max(*space, measure, scale=scale)
    # Tripwire for upgrades. For the exponential mechanism OpenDP returns rho = epsilon^2 / 8, which holds for a bounded
    # range of epsilon; epsilon-DP of this mechanism is a textbook theorem.
    cost = measurement.map(moved)
    spent = cost if pure else math.sqrt(8 * cost)
    if not 0.5 * float(epsilon) < spent <= float(epsilon) * (1 + (0 if pure else 1e-12)):
        raise untrusted()
    return measurement
