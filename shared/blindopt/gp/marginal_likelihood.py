"""The marginal likelihood of a Gaussian process with its analytic gradient, and its check of each answer by others."""

from dataclasses import dataclass
from math import log, pi

import numpy as np

from blindopt.arrays import Mask, Matrix, Rows, Vector
from blindopt.errors import NumericalFailure
from blindopt.gp.input_noise import correlations, declared_noise
from blindopt.gp.kernels import KERNELS, Kernel, Kind
from blindopt.gp.observations import LeaveOneOut, leave_one_out
from blindopt.gp.single_thread_blas import gram_of_lower, inverse_factor, left_product, right_product, whiten
from blindopt.wire.release import NoiseLaw


@dataclass(frozen=True, slots=True)
class Hyper:
    """Length-scale in units of the candidates, variances in squared units of the outcome, mean in its units.

    ``lengthscales`` are those of the coordinates, of which ``lengthscale`` is then the geometric mean; empty if they
    are all the same.
    """

    lengthscale: float
    signal_variance: float
    noise_variance: float
    mean: float = 0.0
    lengthscales: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """t outcomes at candidates ``points`` (t, r), which are ``rows`` (t,) of the release.

    The noise variance of outcome i is ``declared_noise[i]``, plus the fitted one where ``has_fitted_noise[i]``. Where
    outcomes are ``exact``, the fitted one is instead the variance of a part of f that each row has for itself.
    ``sharper`` is the standard deviation of the noise of points that are refined, those where ``is_refined`` (t,).
    """

    points: Matrix
    rows: Rows
    outcomes: Vector
    declared_noise: Vector
    has_fitted_noise: Mask
    exact: bool = False
    is_refined: Mask | None = None
    sharper: float | None = None

    def first(self, count: int) -> "Evidence":
        return Evidence(
            self.points[:count],
            self.rows[:count],
            self.outcomes[:count],
            self.declared_noise[:count],
            self.has_fitted_noise[:count],
            self.exact,
            None if self.is_refined is None else self.is_refined[:count],
            self.sharper,
        )

    @property
    def needs_noise(self) -> bool:
        """Whether the fitted noise variance is that of any outcome."""
        return self.exact or bool(self.has_fitted_noise.any())


class MarginalLikelihood:
    """log p(outcomes | log length-scales, log signal variance, log noise variance), and its gradient.

    With K = s R + diag(declared + fitted noise), m the mean and a = K^-1 (y - m):
    -1/2 (y - m)^T a - 1/2 log det K - t/2 log 2 pi, with derivatives 1/2 tr((a a^T - K^-1) dK)
    (Rasmussen & Williams 2006, eqs. 5.8 and 5.9). R holds the kernel's correlations, averaged over the release's
    noise if it declares any; a row then has 1 with itself, the nugget included. If ``mean`` is None, it is the constant
    of largest likelihood, 1^T K^-1 y / 1^T K^-1 1, where the likelihood is stationary: the gradient has no term for it.
    ``scales``: the number of length-scales, 1 or r; several only without noise of the release. The correlation is then
    one of s = sum_j d_j^2 / l_j^2, and its derivative in log l_j that in the logarithm of a common length-scale, times
    the share of d_j^2 / l_j^2 in s.
    """

    def __init__(self, evidence: Evidence, kind: Kind, law: NoiseLaw, mean: float | None, scales: int = 1) -> None:
        self._evidence, self._kind, self._mean = evidence, kind, mean
        self._noise, self._r = declared_noise(law), evidence.points.shape[1]
        self._above = np.triu_indices(len(evidence.rows), 1)
        self._squares: Matrix
        if scales > 1:
            self._squares = np.ascontiguousarray((evidence.points[self._above[0]] - evidence.points[self._above[1]]).T)
            self._squares **= 2
        else:
            from scipy.spatial.distance import pdist  # late, for a fast start of the services

            self._squares = pdist(evidence.points, "sqeuclidean")[None]
        self.outcomes = len(evidence.rows)
        """t."""
        self._parts: Matrix = np.empty_like(self._squares)  # room for parts of a gradient, which takes time to clear
        self._same: Rows = np.flatnonzero(evidence.rows[self._above[0]] == evidence.rows[self._above[1]])
        self._refined: Rows | None = None  # how many of each pair
        if evidence.is_refined is not None:
            self._refined = np.sum([evidence.is_refined[side] for side in self._above], axis=0)
        self._free: Matrix = np.diag(evidence.has_fitted_noise.astype(np.float64))
        if evidence.exact:
            self._free = (evidence.rows[:, None] == evidence.rows).astype(np.float64)

    def value(self, logs: Vector) -> float:
        """The value alone. Raises NumericalFailure where K cannot be factored."""
        columns = np.column_stack([np.ones(self.outcomes), self._evidence.outcomes])
        logdet, columns = whiten(self._covariance_at(logs), columns)
        ones, white = columns.T
        white = white - self._mean_of(ones, white) * ones
        return -0.5 * (float(white @ white) + logdet + self.outcomes * log(2 * pi))

    def moments(self, logs: Vector, own: float = 0.0) -> tuple[Vector, Vector, Vector]:
        """Posterior mean and variance of f at each outcome's candidate, and the noise variance of the outcome: (t,).

        With N the noise of the outcomes, f has the covariances K - N with them: mean = y - N a, and
        variance = N - N K^-1 N. A share ``own`` of the fitted noise is the candidate's own, and part of f, where
        candidates differ. Raises NumericalFailure where K cannot be factored.
        """
        root, solved, _, _ = self._solve(self._covariance_at(logs))
        noise = self._evidence.declared_noise.copy()
        if not self._evidence.exact:
            noise[self._evidence.has_fitted_noise] += (1.0 - own) * np.exp(logs[-1])
        precision = np.einsum("ij,ij->j", root, root)
        return self._evidence.outcomes - noise * solved, np.maximum(noise - noise**2 * precision, 0.0), noise

    def _covariance_at(self, logs: Vector) -> Matrix:
        from scipy.spatial.distance import pdist

        sizes = np.exp(logs[:-2])
        total = pdist(self._evidence.points / sizes, "sqeuclidean") if len(sizes) > 1 else None
        return self._covariance(self._correlations(sizes, total)[0], *np.exp(logs[-2:]))

    def at(self, logs: Vector) -> tuple[float, Vector, float]:
        """Value, gradient (scales + 2,) and mean. Raises NumericalFailure where K cannot be factored."""
        signal, noise = np.exp(logs[-2:])
        sizes, shares = np.exp(logs[:-2]), np.ones((1, 1))
        if len(sizes) == 1:
            between, slopes = self._correlations(sizes)
        else:
            parts = np.divide(self._squares, sizes[:, None] ** 2, out=self._parts)
            total = parts.sum(axis=0)
            between, slopes = self._correlations(sizes, total)
            shares = np.divide(parts, np.where(total > 0, total, 1.0), out=self._parts)
        root, solved, mean, white = self._solve(self._covariance(between, signal, noise))
        t = len(white)
        logdet = -2.0 * float(np.log(np.einsum("ii->i", root)).sum())
        value = -0.5 * (float(white @ white) + logdet + t * log(2 * pi))
        inner = solved[:, None] * solved - gram_of_lower(root)
        slopes *= inner[self._above]
        weighted = np.multiply(shares, slopes, out=None if len(sizes) == 1 else self._parts)
        gradient = np.array([
            *(signal * weighted.sum(axis=1)),
            0.5 * signal * float((inner * self._square(between)).sum()),
            0.5 * noise * float((inner * self._free).sum()),
        ])  # fmt: skip
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            raise NumericalFailure("the marginal likelihood of the answers is not a number")
        return value, gradient, mean

    def check(self, logs: Vector) -> LeaveOneOut:
        """Predict each outcome from the others, with the mean of all. Raises NumericalFailure like ``at``."""
        root, solved, _, _ = self._solve(self._covariance_at(logs))
        return leave_one_out(root, solved, self._evidence.outcomes)

    def _correlations(self, sizes: Vector, total: Vector | None = None) -> tuple[Vector, Vector]:
        """Correlations of pairs, and derivatives in a common log length-scale.

        ``total``: the squared distances of pairs in units of several length-scales.
        """
        if len(sizes) == 1:
            kernel = KERNELS[self._kind](float(sizes[0]))
            between, slopes = self._averaged(kernel)
        else:
            assert total is not None
            between, slopes = correlations(KERNELS[self._kind](1.0), None, self._r, total)
        between[self._same], slopes[self._same] = 1.0, 0.0
        return between, slopes

    def _averaged(self, kernel: Kernel) -> tuple[Vector, Vector]:
        """Correlations of pairs with a common length-scale, and derivatives in its logarithm."""
        squared, sharper = self._squares[0], self._evidence.sharper or 0.0
        if self._noise is None or self._refined is None:
            return correlations(kernel, self._noise, self._r, squared)
        between, slopes = np.empty_like(squared), np.empty_like(squared)
        law, sd = self._noise
        for number, (own, other) in enumerate(((sd, None), (sd, sharper), (sharper, None))):
            if (pairs := self._refined == number).any():
                averages = correlations(kernel, (law, own), self._r, squared[pairs], other)
                between[pairs], slopes[pairs] = averages
        return between, slopes

    def _square(self, between: Vector) -> Matrix:
        from scipy.spatial.distance import squareform

        correlation: Matrix = squareform(between, checks=False)
        np.einsum("ii->i", correlation)[:] = 1.0
        return correlation

    def _covariance(self, between: Vector, signal: float, noise: float) -> Matrix:
        covariance: Matrix = signal * self._square(between) + noise * self._free
        np.einsum("ii->i", covariance)[:] += self._evidence.declared_noise
        return covariance

    def _solve(self, covariance: Matrix) -> tuple[Matrix, Vector, float, Vector]:
        """W with W K W^T = I, K^-1 (y - m), m, and W (y - m)."""
        root = inverse_factor(covariance)
        ones, white = root.sum(axis=1), right_product(root, self._evidence.outcomes)
        mean = self._mean_of(ones, white)
        white -= mean * ones
        return root, left_product(white, root), mean, white

    def _mean_of(self, ones: Vector, white: Vector) -> float:
        return self._mean if self._mean is not None else float(ones @ white / (ones @ ones))
