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
        """The number of draws for a row: one for each coordinate."""
        return float(self.d)

    def add(self, block: Matrix) -> Matrix:
        """Return ``block`` (m, d) with noise, on the lattice of ``add_gaussian``."""
        return add_gaussian(block.ravel(), self.sd).reshape(block.shape)


def add_gaussian(values: Vector, sd: float) -> Vector:
    """Round ``values`` (m,) to the lattice 2^k, k = floor(log2 sd) - 40, and add discrete Gaussian noise on it.

    docs/privacy.md bounds the difference to the continuous law. Raises NumericalFailure for a value that is not finite.
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
    # Tripwire for upgrades: a sensitivity of one sd must cost rho = 1/2 and slightly more for the lattice.
    rho = measurement.map(sd)
    if not 0.5 <= rho < 0.5 * (1 + 1e-6 * math.sqrt(size)):
        raise untrusted()
    return measurement
