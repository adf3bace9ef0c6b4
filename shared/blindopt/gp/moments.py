"""Moments of all candidates as kept: rounded, and each up to date with some number of observations."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from blindopt.arrays import Matrix, Rows, Vector
from blindopt.gp.candidates import Precision, empty_columns


@dataclass(frozen=True, slots=True)
class Moments:
    """Whitened rows V (n, capacity), means and variances (n,) of all candidates, which updates write in place.

    ``var_tol`` bounds the rounding error of a variance, in squared units of the outcome.
    """

    whitened: Matrix
    mean: Vector
    variance: Vector
    prior_mean: float
    prior_variance: float
    var_tol: float

    @classmethod
    def of_prior(
        cls,
        shape: tuple[int, int],
        dtype: Precision,
        order: Literal["C", "F", "padded"],
        prior_mean: float,
        prior_variance: float,
        var_tol: float,
    ) -> "Moments":
        """Moments before the first observation; ``order`` lays the whitened rows out."""
        whitened: Matrix = empty_columns(*shape, dtype) if order == "padded" else np.empty(shape, dtype, order=order)
        mean, variance = np.full(shape[0], prior_mean), np.full(shape[0], prior_variance)
        return cls(whitened, mean, variance, prior_mean, prior_variance, var_tol)

    @property
    def arrays(self) -> tuple[Matrix, Vector, Vector]:
        """Whitened rows, means and variances."""
        return self.whitened, self.mean, self.variance

    def restore(self, rows: Rows, weights: Vector) -> None:
        """Recompute the moments of ``rows`` from their first s whitened columns and the first s ``weights``."""
        whitened = self.whitened[rows, : len(weights)]
        self.mean[rows] = self.prior_mean + whitened @ weights
        self.variance[rows] = np.maximum(self.prior_variance - np.einsum("ij,ij->i", whitened, whitened), 0.0)

    def upper(self, rows: Rows, weight: float, mean_tol: float) -> Vector:
        """Upper bounds (m,) of mean + sqrt(weight variance) of ``rows``, whatever rounding did."""
        bounds: Vector = self.mean[rows] + mean_tol + np.sqrt(weight * (self.variance[rows] + self.var_tol))
        return bounds

    def lower(self, rows: Rows, weight: float, mean_tol: float) -> Vector:
        """Lower bounds (m,) of it."""
        variance = np.maximum(self.variance[rows] - self.var_tol, 0.0)
        bounds: Vector = self.mean[rows] - mean_tol + np.sqrt(weight * variance)
        return bounds
