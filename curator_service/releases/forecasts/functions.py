"""Functions drawn from a Gaussian process, at given points."""

import numpy as np

from blindopt.arrays import Matrix
from blindopt.errors import NumericalFailure
from blindopt.gp.kernels import Kernel

_JITTERS = tuple(10.0**-power for power in range(10, 3, -1))


def draw_functions(points: Matrix, kernel: Kernel, count: int, rng: np.random.Generator) -> Matrix:
    """Draw ``count`` independent functions f ~ GP(0, kernel) at ``points`` (n, d), as a (count, n) matrix.

    Exact up to a jitter on the diagonal, of at most 1e-4 and mostly 1e-10 of the variance: points that
    coincide make the covariance singular. O(n^3) time, n^2 numbers twice over. NumericalFailure where
    even the largest jitter does not make it positive definite. Source: Rasmussen & Williams (2006), A.2.
    """
    from scipy.linalg import cholesky

    covariance, diagonal = kernel(points, points), np.arange(len(points))
    for jitter in _JITTERS:
        covariance[diagonal, diagonal] = kernel.variance * (1 + jitter)
        try:
            factor = cholesky(covariance, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            continue
        drawn: Matrix = (factor @ rng.standard_normal((len(points), count))).T
        return np.ascontiguousarray(drawn)
    raise NumericalFailure("the kernel matrix of the records cannot be factorized: check the kernel's lengthscale")
