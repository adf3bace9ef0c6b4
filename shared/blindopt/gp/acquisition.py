"""Upper confidence bounds, their exploration weight, and a reproducible choice of their maximum."""

from collections.abc import Callable
from dataclasses import dataclass
from math import log, pi, sqrt

import numpy as np

from blindopt.arrays import Vector
from blindopt.errors import NumericalFailure


def beta(n: int, t: int, delta_prime: float) -> float:
    """Exploration weight beta_t = 2 ln(n t^2 pi^2 / (6 delta')) for n candidates at step t >= 1.

    Source: Kharkovskii et al. (2020), Algorithm 2 line 3, with delta' = delta_ucb / 2 (Theorem 3);
    Srinivas et al. (2010), Theorem 1 has the same form.

    >>> round(beta(10_000, 1, 0.025), 6)
    26.79384
    """
    return 2.0 * log(n * t**2 * pi**2 / (6.0 * delta_prime))


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen row with its moments and acquisition, in the run's own direction (maximization)."""

    row: int
    mean: float | None
    sd: float | None
    acquisition: float | None
    ties: int
    """Number of rows that share the maximum exactly; the run's seed drew one of them."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimate of f at one row, in the run's own direction and in units of the outcome."""

    row: int
    mean: float
    sd: float | None
    """None where the algorithm estimates no spread."""


def upper_confidence_bound(mean: Vector, variance: Vector, weight: float) -> Vector:
    """Mean + sqrt(weight * variance), elementwise over the n candidates."""
    return mean + np.sqrt(weight * variance)


def choose_maximum(
    acquisition: Vector,
    mean: Vector,
    variance: Vector,
    rng: np.random.Generator | Callable[[], np.random.Generator],
) -> Choice:
    """The row of largest acquisition; exact ties are broken by a draw from ``rng``.

    A callable ``rng`` is called only if there are ties. They are common: before the first outcome every row is equal,
    and grids have symmetric rows. Raises NumericalFailure if the acquisition of a row is not a number.
    """
    best = np.flatnonzero(acquisition == acquisition.max())
    if not len(best):  # NaN equals nothing
        raise NumericalFailure("the acquisition of a candidate is not a number")
    row = int(best[0])
    if len(best) > 1:
        source = rng if isinstance(rng, np.random.Generator) else rng()
        row = int(best[source.integers(len(best))])
    return Choice(
        row=row,
        mean=float(mean[row]),
        sd=sqrt(variance[row]),
        acquisition=float(acquisition[row]),
        ties=len(best),
    )
