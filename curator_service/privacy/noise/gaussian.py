"""Gaussian noise on a lattice."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from blindopt.arrays import Matrix, Vector
from curator_service.privacy.noise.lattice import check_finite, lattice, untrusted


@dataclass(frozen=True, slots=True)
class GaussianLaw:
    """Independent noise N(0, sd^2) in each of ``d`` coordinates of each row."""

    d: int
    sd: float

    @property
    def draws_per_row(self) -> float:
        """One for each coordinate."""
        return float(self.d)

    def add(self, block: Matrix) -> Matrix:
        """``block`` (m, d) with noise, on the lattice of ``add_gaussian``."""
        return add_gaussian(block.ravel(), self.sd).reshape(block.shape)


def add_gaussian(values: Vector, sd: float) -> Vector:
    """``values`` (m,) rounded to the lattice 2^k plus discrete Gaussian noise on it, k = floor(log2 sd) - 40.

    How close its law is to the continuous one on rounded values: docs/privacy.md. Raises
    NumericalFailure for a value that is not finite.
    """
    check_finite(values)
    if values.size == 0:
        return values.copy()
    noisy: Vector = np.array(_gaussian(values.size, sd)(values.tolist()))
    return noisy


@lru_cache(maxsize=16)
def _gaussian(size: int, sd: float) -> Any:
    from opendp import domains, measurements, metrics, mod  # its prelude would load twice the memory

    mod.enable_features("contrib")  # never `idealized-numerics`, which opens the unsafe part
    domain = domains.vector_domain(domains.atom_domain(T=float, nan=False), size=size)
    measurement: Any = measurements.make_gaussian(domain, metrics.l2_distance(T=float), scale=sd, k=lattice(sd))
    # A sensitivity of one sd must cost rho = 1/2 and a little for the lattice: a tripwire for upgrades.
    rho = measurement.map(sd)
    if not 0.5 <= rho < 0.5 * (1 + 1e-6 * math.sqrt(size)):
        raise untrusted()
    return measurement
