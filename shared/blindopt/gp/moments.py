"""Moments of all candidates as kept: rounded, and each up to date with some number of observations."""

import numpy as np

from blindopt.arrays import Matrix, Rows, Vector


class Moments:
    """Whitened rows V (n, capacity), means and variances (n,) of all candidates, which updates write in place.

    They start as those of the prior. ``var_tol`` bounds the rounding error of a variance, in squared units of the
    outcome.
    """

    def __init__(self, whitened: Matrix, prior_mean: float, prior_variance: float, var_tol: float) -> None:
        self.whitened, self.var_tol = whitened, var_tol
        self.prior_mean, self.prior_variance = prior_mean, prior_variance
        self.mean: Vector = np.full(len(whitened), prior_mean)
        self.variance: Vector = np.full(len(whitened), prior_variance)

    def restore(self, rows: Rows, weights: Vector) -> None:
        """Recompute the moments of ``rows`` from their first s whitened columns and the first s ``weights``."""
        whitened = self.whitened[rows, : len(weights)]
        self.mean[rows] = self.prior_mean + whitened @ weights
        self.variance[rows] = np.maximum(self.prior_variance - np.einsum("ij,ij->i", whitened, whitened), 0.0)
