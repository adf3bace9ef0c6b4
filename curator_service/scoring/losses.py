"""Bounded losses of one record by its margin y <w, x>: replacing a record moves a mean of m by at most bound/m."""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp

import numpy as np

from blindopt.arrays import Vector


@dataclass(frozen=True, slots=True)
class Loss:
    """g(margin) with 0 <= g <= ``bound`` (g*), ``lipschitz`` (L) in the margin; None where there is no such constant.

    With |x| <= 1 it is L-Lipschitz in w too. Source: Kusner et al. (2015), section 5.
    """

    name: str
    bound: float
    lipschitz: float | None
    of: Callable[[Vector], Vector]

    def __call__(self, margins: Vector) -> Vector:
        """The losses of margins (m,), clipped to [0, bound], so that the bound holds for doubles too."""
        return np.clip(self.of(margins), 0.0, self.bound)


def _zero_one(margins: Vector) -> Vector:
    """A margin of 0 counts as an error, because the class would be arbitrary."""
    return (margins <= 0).astype(np.float64)


def _ramp(margins: Vector) -> Vector:
    return (1.0 - margins) / 2


def _logistic(margins: Vector) -> Vector:
    return np.logaddexp(0.0, -margins)


def loss_of(name: str, clip: float) -> Loss:
    """The loss with this name; ``clip`` is the bound of the logistic loss, which is unbounded by itself.

    >>> loss_of("ramp", 1.0)(np.array([-3.0, 0.0, 0.5, 2.0]))
    array([1.  , 0.5 , 0.25, 0.  ])
    """
    if name == "zero_one":
        return Loss(name, 1.0, None, _zero_one)
    if name == "ramp":
        return Loss(name, 1.0, 0.5, _ramp)
    if name == "clipped_logistic":
        # The slope at margin t is 1/(1 + e^t), steepest where the clip begins: where 1 + e^-t = e^clip.
        return Loss(name, clip, 1.0 - exp(-clip), _logistic)
    raise ValueError(f"there is no loss of the name {name!r}")
