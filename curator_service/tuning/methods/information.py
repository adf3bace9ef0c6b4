"""gamma_T, the largest information gain of T noisy scores, with a certified upper bound."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Vector

Arms = NDArray[np.intp]
_GAP = 2e-3
_STEPS = 300
_TAIL = 1e-6
_WORK = 2e11
"""The most multiplications to tighten the certificate, which holds after any step."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Bounds of the largest 1/2 ln det(I + sigma^-2 K_A) over multisets A of size T; some A attains ``lower``."""

    lower: float
    upper: float


def greedy_design(covariance: Matrix, sigma: float, evaluations: int) -> tuple[Arms, float]:
    """T grid indices (T,), each with the largest posterior variance, and their information gain.

    Depends on the covariance (n, n) alone, not on data. The gain is the sum of ln(1 + variance / sigma^2) / 2.
    """
    n = len(covariance)
    whitened = np.empty((evaluations, n))
    variance = covariance.diagonal().copy()
    arms = np.empty(evaluations, dtype=np.intp)
    gain = 0.0
    for t in range(evaluations):
        arm = arms[t] = int(variance.argmax())
        gain += 0.5 * np.log1p(variance[arm] / sigma**2)
        row = covariance[arm] - whitened[:t, arm] @ whitened[:t]
        row /= np.sqrt(variance[arm] + sigma**2)
        whitened[t] = row
        variance = np.maximum(variance - row**2, 0.0)
    return arms, float(gain)


def largest_gain(covariance: Matrix, sigma: float, evaluations: int) -> Gain:
    """gamma_T for a covariance (n, n): the greedy design, and a certificate of its concave relaxation.

    Over weights w >= 0 that sum to T, g(w) = 1/2 ln det(I + sigma^-2 Phi^T diag(w) Phi) with K = Phi Phi^T is concave,
    and counts of a multiset are such weights; so gamma_T <= g(w) + T max_i dg_i - <dg, w> for any w. Multiplicative
    updates w_i <- w_i dg_i, normalized, make it tight. Dropped eigenvalues, at most e each, add
    T e / (2 sigma^2), as det(I + A + B) <= det(I + A) det(I + B). Where T is smaller than the number of
    informative indices, the relaxation itself is loose, because it may give two indices half a weight.
    """
    from scipy.linalg import eigh

    arms, lower = greedy_design(covariance, sigma, evaluations)
    n = len(covariance)
    values, vectors = eigh(covariance)
    values = np.maximum(values, 0.0)
    informative = values > 2 * sigma**2 * _TAIL * max(lower, 1e-12) / evaluations
    dropped = float(values[~informative].max(initial=0.0)) * evaluations / (2 * sigma**2)
    features: Matrix = vectors[:, informative] * np.sqrt(values[informative]) / sigma
    weights: Vector = 0.99 * np.bincount(arms, minlength=n).astype(np.float64) + 0.01 * evaluations / n
    upper = lower / (1 - np.exp(-1))  # Nemhauser et al. (1978): greedy reaches this share of the maximum
    steps = min(_STEPS, max(5, int(_WORK / features.size / max(1, features.shape[1]))))
    for _ in range(steps):
        gain, slopes = _relaxed(features, weights)
        upper = min(upper, gain + evaluations * float(slopes.max()) - float(slopes @ weights) + dropped)
        if upper - max(gain, lower) <= _GAP * upper:
            break
        weights = weights * slopes
        weights *= evaluations / weights.sum()
    return Gain(lower, max(upper, lower))


def _relaxed(features: Matrix, weights: Vector) -> tuple[float, Vector]:
    """g(w) and its gradient (n,)."""
    from scipy.linalg import cho_factor, cho_solve

    inner = np.eye(features.shape[1]) + features.T @ (weights[:, None] * features)
    factor = cho_factor(inner, lower=True)
    solved = cho_solve(factor, features.T)
    slopes: Vector = 0.5 * np.einsum("ij,ji->i", features, solved)
    return float(np.log(factor[0].diagonal()).sum()), slopes
