"""Covariance functions over candidates."""

from dataclasses import dataclass

import numpy as np

from shared.matrix import Matrix

SMALLEST, LARGEST = 1e-50, 1e50


@dataclass(frozen=True, slots=True)
class SquaredExponential:
    """Covariance variance * exp(-|a - b|^2 / (2 lengthscale^2)).

    ``lengthscale`` is in the units of the candidates, ``variance`` in squared units of the outcome.
    Source: Rasmussen & Williams (2006), eq. 4.9; Kharkovskii et al. (2020), section 2.

    >>> round(float(SquaredExponential(lengthscale=2.0)(np.array([[0.0]]), np.array([[1.0]]))[0, 0]), 7)
    0.8824969
    """

    lengthscale: float
    variance: float = 1.0

    def __post_init__(self) -> None:
        # Squares and their inverses must be numbers; this refuses NaN too.
        if not (SMALLEST <= self.lengthscale <= LARGEST and SMALLEST <= self.variance <= LARGEST):
            raise ValueError(f"{self} needs a positive, finite lengthscale and variance (1e-50 to 1e50)")

    def __call__(self, a: Matrix, b: Matrix) -> Matrix:
        """Rows of ``a`` (n, r) against rows of ``b`` (m, r), as an (n, m) matrix."""
        from scipy.spatial.distance import cdist  # late: a command line that computes nothing starts in half the time

        squared: Matrix = cdist(a, b, "sqeuclidean")  # differences first: no cancellation near zero
        squared *= -0.5 / self.lengthscale**2
        np.exp(squared, out=squared)
        squared *= self.variance
        return squared
