"""What a release lets anyone believe about a record, from its public parameters alone (docs/privacy.md, "The dial")."""

from decimal import Decimal
from math import exp, log, sqrt
from statistics import NormalDist

from blindopt.wire import NoiseLaw, Strength

RANGES: tuple[tuple[Decimal, Strength], ...] = ((Decimal(1), "strong"), (Decimal(3), "moderate"), (Decimal(6), "weak"))
"""The largest epsilon of each named range; above all of them it is nearly none."""
RIGHT = 0.75
"""How often the best guess between two values may be right for them to count as confused: three times in four."""


def strength(epsilon: Decimal) -> Strength:
    """The name of the range that epsilon is in."""
    return next((name for most, name in RANGES if epsilon <= most), "nearly none")


def surest(epsilon: Decimal) -> float:
    """The largest belief in one of two values that differ by Delta, of someone who began with 1/2; no delta counted.

    Bayes: the odds change by the ratio of two likelihoods, at most e^epsilon.
    """
    return 1 / (1 + exp(-float(epsilon)))


def confused_within(law: NoiseLaw, d: int, rows: int = 1) -> float | None:
    """The largest change, in scaled units, between whose two values no guess is right more often than 3 times in 4.

    Of someone who began with 1/2, about a record of ``d`` features, or about ``rows`` records of one person that all
    change so. The best guess is right with probability (1 + T) / 2, with T the total variation of the two laws of Z: of
    Gaussian noise exactly Phi(sqrt(rows) v / (2 sd)); of planar Laplace noise, which is a-private with its slope
    a = sqrt(d + 1) / sd, at most e^(rows a v) / (1 + e^(rows a v)). None for other noise.
    """
    if law.sd is None or law.family not in ("gaussian", "planar_laplace"):
        return None
    if law.family == "gaussian":
        return 2 * law.sd * NormalDist().inv_cdf(RIGHT) / sqrt(rows)
    return log(RIGHT / (1 - RIGHT)) * law.sd / (sqrt(d + 1) * rows)
