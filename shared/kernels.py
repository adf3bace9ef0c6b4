"""Covariance functions over candidates."""

from dataclasses import dataclass
from math import inf

import numpy as np
from scipy.spatial.distance import cdist

from shared.matrix import Matrix


@dataclass(frozen=True, slots=True)
class SquaredExponential:
    """Covariance variance * exp(-|a - b|^2 / (2 lengthscale^2)).

    ``lengthscale`` is in the units of the candidates, ``variance`` in squared units of the outcome.
    Source: Rasmussen & Williams (2006), eq. 4.9; Kharkovskii et al. (2020), section 2.

    >>> float(SquaredExponential(lengthscale=2.0)(np.array([[0.0]]), np.array([[1.0]]))[0, 0])
    0.8824969025845955
    """

    lengthscale: float
    variance: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.lengthscale < inf and 0 < self.variance < inf):  # refuses NaN too
            raise ValueError(f"{self} needs a positive, finite lengthscale and variance")

    def __call__(self, a: Matrix, b: Matrix) -> Matrix:
        """Rows of ``a`` (n, r) against rows of ``b`` (m, r), as an (n, m) matrix."""
        squared: Matrix = cdist(a, b, "sqeuclidean")  # differences first: no cancellation near zero
        squared *= -0.5 / self.lengthscale**2
        np.exp(squared, out=squared)
        squared *= self.variance
        return squared
