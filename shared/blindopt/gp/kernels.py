"""Covariance functions over candidates."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from blindopt.arguments import number_of
from blindopt.arrays import Matrix
from blindopt.errors import Invalid

SMALLEST, LARGEST = 1e-50, 1e50
Kind = Literal["squared_exponential", "matern_12", "matern_32", "matern_52"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A covariance variance * c(|a - b| / lengthscale), the same in every direction, with c(0) = 1.

    ``lengthscale`` is in the units of the candidates, ``variance`` in squared units of the outcome.
    """

    lengthscale: float
    variance: float = 1.0
    smooth: ClassVar[bool] = True
    """Whether an error of h in a squared distance near zero changes the correlation by about h, and not by its root."""

    def __post_init__(self) -> None:
        # Squares and their inverses must be numbers; this refuses NaN too.
        sizes = number_of(self.lengthscale), number_of(self.variance)
        if not all(size is not None and SMALLEST <= size <= LARGEST for size in sizes):
            raise Invalid("a kernel needs a positive, finite lengthscale and variance (1e-50 to 1e50)")

    def __call__(self, a: Matrix, b: Matrix) -> Matrix:
        """Rows of ``a`` (n, r) against rows of ``b`` (m, r), as an (n, m) matrix."""
        from scipy.spatial.distance import cdist  # late, so that commands that compute nothing start in half the time

        try:
            squared: Matrix = cdist(a, b, "sqeuclidean")  # differences first: no cancellation near zero
        except (TypeError, ValueError):
            raise Invalid("a kernel compares two matrices of numbers with equally many columns") from None
        squared *= 1.0 / self.lengthscale**2
        self.correlate(squared)
        if self.variance != 1.0:
            squared *= self.variance
        return squared

    @abstractmethod
    def correlate(self, squared: Matrix) -> None:
        """Turn ``squared`` distances, in units of the lengthscale, into correlations c: in place, in any precision."""

    def slope(self, squared: Matrix) -> Matrix:
        """Derivative of the correlation by the logarithm of the lengthscale, at ``squared`` distances in its units."""
        raise TypeError(f"{type(self).__name__} has no derivative")


@dataclass(frozen=True, slots=True)
class SquaredExponential(Kernel):
    """Covariance variance * exp(-|a - b|^2 / (2 lengthscale^2)).

    Source: Rasmussen & Williams (2006), eq. 4.9; Kharkovskii et al. (2020), section 2.

    >>> round(float(SquaredExponential(lengthscale=2.0)(np.array([[0.0]]), np.array([[1.0]]))[0, 0]), 7)
    0.8824969
    """

    def correlate(self, squared: Matrix) -> None:
        """exp(-s / 2) for s = (d / l)^2."""
        squared *= -0.5
        np.exp(squared, out=squared)

    def slope(self, squared: Matrix) -> Matrix:
        """S exp(-s / 2) for s = (d / l)^2."""
        slope: Matrix = squared * np.exp(-0.5 * squared)
        return slope


@dataclass(frozen=True, slots=True)
class Matern12(Kernel):
    """Matern of order 1/2: variance * exp(-d / lengthscale). Source: Rasmussen & Williams (2006), eq. 4.18.

    >>> round(float(Matern12(lengthscale=2.0)(np.array([[0.0]]), np.array([[1.0]]))[0, 0]), 7)
    0.6065307
    """

    smooth: ClassVar[bool] = False

    def correlate(self, squared: Matrix) -> None:
        """exp(-d / l)."""
        np.sqrt(squared, out=squared)
        np.negative(squared, out=squared)
        np.exp(squared, out=squared)

    def slope(self, squared: Matrix) -> Matrix:
        """U exp(-u) for u = d / l."""
        u: Matrix = np.sqrt(squared)
        return u * np.exp(-u)


@dataclass(frozen=True, slots=True)
class Matern32(Kernel):
    """Matern of order 3/2: variance * (1 + u) exp(-u), u = sqrt(3) d / lengthscale.

    Source: Rasmussen & Williams (2006), eq. 4.17.

    >>> round(float(Matern32(lengthscale=2.0)(np.array([[0.0]]), np.array([[1.0]]))[0, 0]), 7)
    0.7848877
    """

    def correlate(self, squared: Matrix) -> None:
        """(1 + u) exp(-u) for u = sqrt(3) d / l."""
        squared *= 3.0
        np.sqrt(squared, out=squared)
        fading = np.exp(-squared)
        squared += 1.0
        squared *= fading

    def slope(self, squared: Matrix) -> Matrix:
        """u^2 exp(-u) for u = sqrt(3) d / l."""
        u: Matrix = np.sqrt(3.0 * squared)
        return u * u * np.exp(-u)


@dataclass(frozen=True, slots=True)
class Matern52(Kernel):
    """Matern of order 5/2: variance * (1 + u + u^2 / 3) exp(-u), u = sqrt(5) d / lengthscale.

    Source: Rasmussen & Williams (2006), eq. 4.17.

    >>> round(float(Matern52(lengthscale=2.0)(np.array([[0.0]]), np.array([[1.0]]))[0, 0]), 7)
    0.8286491
    """

    def correlate(self, squared: Matrix) -> None:
        """(1 + u + u^2 / 3) exp(-u) for u = sqrt(5) d / l."""
        squared *= 5.0
        root = np.sqrt(squared)
        squared *= 1.0 / 3.0
        squared += root
        squared += 1.0
        np.negative(root, out=root)
        np.exp(root, out=root)
        squared *= root

    def slope(self, squared: Matrix) -> Matrix:
        """u^2 (1 + u) exp(-u) / 3 for u = sqrt(5) d / l."""
        u: Matrix = np.sqrt(5.0 * squared)
        return u * u * (1.0 + u) * np.exp(-u) / 3.0


KERNELS: dict[Kind, type[Kernel]] = {
    "squared_exponential": SquaredExponential,
    "matern_12": Matern12,
    "matern_32": Matern32,
    "matern_52": Matern52,
}


def kernel_of(kind: Kind, lengthscale: float, variance: float) -> Kernel:
    """The kernel that ``kind`` names on the wire."""
    return KERNELS[kind](lengthscale, variance)
