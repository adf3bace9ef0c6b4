"""How well a Gaussian process predicts each answer from the others: a check of its hyper-parameters."""

from dataclasses import dataclass

import numpy as np

from blindopt.arrays import Matrix, Vector


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """Predictions of t answers, each from the t - 1 others, with the same hyper-parameters and mean.

    ``log_density`` is the mean log predictive density of an answer (nats, in units of the outcome), ``baseline`` that
    of a model without candidates, a normal with mean and variance of the other answers, and ``largest_residual`` the
    largest distance of an answer from its prediction, in predictive standard deviations, at answer ``worst``.
    """

    log_density: float
    baseline: float
    largest_residual: float
    worst: int


def leave_one_out(root: Matrix, solved: Vector, outcomes: Vector) -> LeaveOneOut:
    """Check outcomes y (t,), t >= 3, given W with W K W^T = I and ``solved`` = K^-1 (y - mean).

    Without answer i, the prediction is y_i - solved_i / [K^-1]_ii with variance 1 / [K^-1]_ii: Rasmussen & Williams
    (2006), eqs. 5.10 to 5.12.
    """
    precision = np.einsum("ij,ij->j", root, root)  # the diagonal of W^T W
    residuals = solved / np.sqrt(precision)
    densities = -0.5 * (residuals**2 - np.log(precision) + np.log(2 * np.pi))
    worst = int(np.abs(residuals).argmax())
    return LeaveOneOut(float(densities.mean()), _baseline(outcomes), float(abs(residuals[worst])), worst)


def _baseline(outcomes: Vector) -> float:
    """Mean log density of each outcome under a normal with mean and variance (of t - 2 degrees) of the others."""
    t, off = len(outcomes), outcomes - outcomes.mean()
    squares = float(off @ off)
    residual = off * (t / (t - 1))  # from the mean of the others
    variance = (squares - off**2 * (t / (t - 1))) / (t - 2) * (t / (t - 1))
    variance = np.maximum(variance, 1e-12 * squares / t)
    return float(-0.5 * np.mean(residual**2 / variance + np.log(2 * np.pi * variance)))
