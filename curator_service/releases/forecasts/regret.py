"""Simple regret of a search by GP-UCB, and of one at random."""

import math
from dataclasses import dataclass

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.gp.acquisition import UpperConfidenceBound, beta
from blindopt.gp.kernels import Kernel
from blindopt.gp.posterior import Posterior
from blindopt.wire import GpUcb

DELTA_PRIME = GpUcb(name="gp_ucb").delta_ucb / 2


def gp_ucb_regret(
    candidates: Matrix,
    f: Vector,
    noise: Vector,
    kernel: Kernel,
    noise_variance: float,
    rng: np.random.Generator,
    nugget: float = 0.0,
) -> float:
    """Simple regret max f - max of f over queried rows, after one query for each number in ``noise`` (queries,).

    Simulates a modeler's gp_ucb on ``candidates`` (n, r) with its default settings, maximizing: it observes
    f + noise, models f by ``kernel`` and ``nugget`` on the candidates and ``noise_variance``, and may query a row
    again. ``rng`` breaks ties, such as that of the first row, and nothing else. In units of f.
    """
    n, best = len(f), -np.inf
    posterior = Posterior(candidates, kernel, noise_variance=noise_variance, nugget=nugget, capacity=len(noise))
    for step, error in enumerate(noise, start=1):
        row = posterior.argmax(UpperConfidenceBound(beta(n, step, DELTA_PRIME)), lambda: rng).row
        best = max(best, f[row])
        if step < len(noise):
            posterior.observe(row, float(f[row] + error))
    return float(f.max() - best)


def chance_regret(f: Vector, queries: int) -> float:
    """Expected simple regret of ``queries`` uniform random rows without repetition; every row where there are fewer.

    Exact: the row of rank k (0 is the best of n) is the best of q with probability C(n-1-k, q-1) / C(n, q).
    """
    n, falling = len(f), np.sort(f)[::-1]
    q = min(queries, n)
    k = np.arange(n - q)
    probability = q / n * np.cumprod(np.concatenate([[1.0], (n - q - k) / (n - 1 - k)]))
    return float(falling[0] - probability @ falling[: n - q + 1])


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with its 95 % interval."""

    value: float
    low: float
    high: float


def mean_regret(regrets: Vector) -> Mean:
    """The mean of independent regrets (m,), m >= 2, with Student's interval, cut at 0: no regret is less."""
    from scipy.special import stdtrit

    m = len(regrets)
    value = math.fsum(regrets) / m
    half = float(stdtrit(m - 1, 0.975)) * float(np.std(regrets, ddof=1)) / math.sqrt(m)
    return Mean(value, max(value - half, 0.0), value + half)
