"""The unit in which an algorithm reckons with outcomes, so that its choices do not depend on theirs."""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from blindopt.arrays import Vector


@dataclass(frozen=True, slots=True)
class OutcomeUnit:
    """Outcomes y as numbers z = (y / largest - centre) / spread.

    The largest size is divided out first, because its square may be no double.

    >>> OutcomeUnit.of(np.array([1e300, 3e300])).inner(3e300)
    1.0
    """

    largest: float = 1.0
    centre: float = 0.0
    spread: float = 1.0

    @classmethod
    def of(cls, outcomes: Vector) -> "OutcomeUnit":
        """The unit in which ``outcomes`` have a mean of 0, and a standard deviation of 1 if they differ."""
        largest = float(np.abs(outcomes).max(initial=0.0)) or 1.0
        shares = outcomes / largest
        spread = float(np.std(shares)) if len(shares) and np.ptp(shares) > 0 else 1.0
        return cls(largest, float(np.mean(shares)) if len(shares) else 0.0, spread)

    @classmethod
    def of_prior(cls, mean: float, variance: float) -> "OutcomeUnit":
        """The unit in which a prior has a mean of 0 and a variance of 1."""
        return cls(sqrt(variance), mean / sqrt(variance))

    @property
    def sd(self) -> float:
        """One unit, in units of the outcome."""
        return self.largest * self.spread

    def inner(self, y: float) -> float:
        """An outcome in this unit."""
        return (y / self.largest - self.centre) / self.spread

    def inner_variance(self, variance: float) -> float:
        """A variance in this unit."""
        return variance / self.largest / self.largest / self.spread**2

    def outer(self, z: float) -> float:
        """A value of this unit in units of the outcome."""
        return self.largest * (self.centre + self.spread * z)

    def outer_all(self, z: Vector) -> Vector:
        """Values of this unit in units of the outcome."""
        return self.largest * (self.centre + self.spread * z)
