"""Private quantiles of columns: OpenDP's permute-and-flip among public candidates, scored by rank.

A candidate c of an alpha-quantile has the score -|(1 - alpha) #(values below c) - alpha #(values above c)|. Replacing
one of n values moves each score by 1 at most, so permute-and-flip (McKenna & Sheldon 2020) with scale 2 / epsilon is
epsilon-private: Smith (2011), and OpenDP's proof of the transformation. docs/privacy.md has the proof.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from functools import lru_cache
from typing import Any

import numpy as np

from blindopt.arrays import Matrix, Vector
from curator_service.privacy.noise.lattice import check_finite, untrusted

STEPS = 128
"""Equal steps of an outer range; candidates are their ends."""
FAILURE = 0.05
"""The probability that a quantile is further off than ``rank_error`` says."""
_UNIT = Decimal("1e-12")
"""The unit of the ledger."""
_STEPS_UP = 64


@dataclass(frozen=True, slots=True)
class Outer:
    """A public range that values are clamped to. Raises ValueError if it has no room for the candidates."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lower) and math.isfinite(self.upper) and (np.diff(self.candidates) > 0).all()):
            raise ValueError(f"an outer range must be finite and wide enough for {STEPS} steps")

    @property
    def candidates(self) -> Vector:
        """The candidates (STEPS + 1,), from lower to upper."""
        steps = np.arange(STEPS + 1) / STEPS
        spread: Vector = self.lower * (1 - steps) + self.upper * steps  # no overflow of upper - lower
        return spread


def share(epsilon: Decimal, draws: int) -> Decimal:
    """Epsilon of each of ``draws``, which add up to ``epsilon`` at most."""
    return (epsilon / draws).quantize(_UNIT, rounding=ROUND_FLOOR)


def rank_error(epsilon: Decimal, records: int = 1) -> float:
    """How far the score of a quantile, in values, is below that of the best candidate, but for probability FAILURE.

    A candidate whose score is t below the best one is drawn with probability exp(-t epsilon / (2 records)) at most.
    """
    return 2 * records / float(epsilon) * math.log((STEPS + 1) / FAILURE)


def outermost(n: int, epsilon: Decimal, records: int = 1) -> float:
    """The smallest alpha from 0.01 to 0.25 for which all n values lie above an alpha-quantile as rarely as FAILURE.

    That holds below 0.25, and for values of which none is shared by many records: the best candidate then has a score
    near 0, and one beyond all values -alpha n.
    """
    return min(0.25, max(0.01, round(rank_error(epsilon, records) / n, 3)))


def private_quantiles(
    columns: Matrix, outer: Sequence[Outer], alphas: Sequence[float], epsilon: Decimal, records: int = 1
) -> Matrix:
    """Draw quantiles (columns, alphas) of ``columns`` (n, columns), each row in ascending order.

    All together are epsilon-differentially private for replacing any ``records`` of the n rows: each draw gets an
    equal share. ``alphas`` ascend. Values outside ``outer`` are clamped. Raises NumericalFailure for a value
    that is not finite, and where OpenDP does not account as it should.
    """
    check_finite(columns)
    if not (columns.ndim == 2 and len(outer) == columns.shape[1] and len(columns) and alphas):
        raise ValueError("quantiles need values, and an outer range for each column")
    draw_epsilon = share(epsilon, len(outer) * len(alphas))
    quantiles = np.array(
        [
            [
                _draw(np.clip(column, bounds.lower, bounds.upper), bounds, alpha, draw_epsilon, records)
                for alpha in alphas
            ]
            for column, bounds in zip(columns.T, outer, strict=True)
        ]
    )
    return np.sort(quantiles, axis=1)


def _draw(values: Vector, outer: Outer, alpha: float, epsilon: Decimal, records: int) -> float:
    return float(quantile(len(values), outer, alpha, epsilon, records)(values.tolist()))


@lru_cache(maxsize=64)
def quantile(n: int, outer: Outer, alpha: float, epsilon: Decimal, records: int) -> Any:
    """OpenDP's measurement. Its input metric counts insertions and deletions: replacing a record is two of them."""
    from opendp import domains, measurements, measures, metrics, mod  # its prelude would load twice the memory

    if not (0 < alpha < 1 and epsilon > 0 and records >= 1):
        raise ValueError("a quantile needs an alpha inside of 0 to 1, a positive epsilon and a record")
    mod.enable_features("contrib")
    domain = domains.vector_domain(domains.atom_domain(T=float, nan=False), size=n)
    scale = 2 * records / float(epsilon)
    for _ in range(_STEPS_UP):  # OpenDP rounds its epsilon up
        measurement: Any = measurements.make_private_quantile(
            domain,
            metrics.symmetric_distance(),
            measures.max_divergence(),
            candidates=outer.candidates.tolist(),
            alpha=alpha,
            scale=scale,
        )
        cost = Decimal(measurement.map(2 * records))
        if cost <= epsilon:
            break
        scale = math.nextafter(scale, math.inf)
    # Tripwire for upgrades: the scale is that of the proof, and its cost is all of epsilon.
    if not Decimal("0.999999") * epsilon < cost <= epsilon:
        raise untrusted()
    return measurement
