"""A smooth problem, and the moments of a Gaussian process on it by other code than the product's: from scratch."""

from collections.abc import Callable
from typing import Any

import numpy as np

Covariance = Callable[[np.ndarray], np.ndarray]
"""Of two candidates without a nugget, from their squared distance."""


def candidates(n: int = 300, r: int = 2) -> np.ndarray:
    return np.random.default_rng(0).uniform(0, 4, size=(n, r))


def outcome_of(z: np.ndarray) -> np.ndarray:
    return np.sin(2 * z[:, 0]) + np.cos(3 * z[:, 1]) * z[:, 0] / 2


def squared_exponential(lengthscale: float, variance: float, dtype: type = float) -> Covariance:
    return lambda squared: dtype(variance) * np.exp(-squared / (2 * dtype(lengthscale) ** 2))


def squares(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)


def dense(prior: np.ndarray, rows: Any, y: Any, noises: Any, mean: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of all rows, whose covariance is ``prior`` (n, n), by one solve."""
    rows = np.asarray(rows, dtype=int)
    cross, inverse = (
        prior[:, rows],
        np.linalg.inv(prior[np.ix_(rows, rows)] + np.diag(np.broadcast_to(noises, len(rows)))),
    )
    return mean + cross @ inverse @ (np.asarray(y) - mean), np.diag(prior) - np.einsum(
        "ij,jk,ik->i", cross, inverse, cross
    )


def in_long_double(
    z: np.ndarray,
    covariance: Covariance,
    rows: Any,
    outcomes: Any,
    *,
    noise: Any,
    mean: float = 0.0,
    nugget: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """The same in 64-bit mantissas: Cholesky by its definition, then two substitutions."""
    long = np.longdouble
    z, rows, t = z.astype(long), np.asarray(rows), len(rows)
    gram = covariance(squares(z[rows], z[rows])) + long(nugget) * (rows[:, None] == rows)
    gram += np.diag(np.broadcast_to(np.asarray(noise, dtype=long), t))
    cross = covariance(squares(z[rows], z)) + long(nugget) * (rows[:, None] == np.arange(len(z)))
    right = np.concatenate([cross, (np.asarray(outcomes, dtype=long) - long(mean))[:, None]], axis=1)
    factor = np.zeros((t, t), dtype=long)
    for i in range(t):
        for j in range(i):
            factor[i, j] = (gram[i, j] - factor[i, :j] @ factor[j, :j]) / factor[j, j]
        factor[i, i] = np.sqrt(gram[i, i] - factor[i, :i] @ factor[i, :i])
        right[i] = (right[i] - factor[i, :i] @ right[:i]) / factor[i, i]
    prior = covariance(np.zeros(1, dtype=long))[0] + long(nugget)
    return long(mean) + right[:, :-1].T @ right[:, -1], np.maximum(prior - (right[:, :-1] ** 2).sum(axis=0), 0)
