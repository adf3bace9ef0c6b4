"""The posterior of f itself where outcomes belong to places that are known up to noise."""

from dataclasses import dataclass, field

import numpy as np

from blindopt.arrays import Mask, Matrix, Vector
from blindopt.gp.input_noise import Law, averaged, refined
from blindopt.gp.kernels import Kernel
from blindopt.gp.single_thread_blas import gram_of_lower, inverse_factor, product, right_product

SPREAD_MIN = 1e-3
"""Smallest variance of f about its mean over the noise of a place, as a share of the signal variance."""


@dataclass(slots=True)
class Deblurred:
    """f ~ GP(0, ``kernel``), given t outcomes of different candidates z_i = x_i - u_i with noise u of a known law.

    With g_i = E_u f(z_i + u), an outcome is y_i = g_i + rho_i + its own noise; rho_i is what f at the true place x_i
    has beyond the mean, of variance N_i. The g have covariances Q, the kernel averaged over the noise of two
    candidates (at distance 0 too, without the nugget), and f(x) has covariances K1 with them, the mean over one:

        C = Q + diag(N + noise),  mean(x) = K1 C^-1 y,  variance(x) = k(0) - K1 C^-1 K1^T.

    Inputs are (t, r), variances in squared units of the outcome, outcomes relative to the prior mean. ``observe``
    starts N_i at k(0) - Q_ii, with which E_u mean(z + u) is the prediction of ``Posterior``; ``adapt`` replaces it by
    the variance of f(z_i + u) under the present posterior, so that outcomes of steep places count less than those of
    flat ones: an input-noise GP (McHutchon & Rasmussen, 2011) with exact moments in place of a gradient. The noise of
    refined candidates has the standard deviation ``sharper``.
    Sums do not depend on the number of threads.
    """

    kernel: Kernel
    law: Law
    sd: float
    r: int
    sharper: float | None = None
    single: Kernel = field(init=False)
    """K1: the covariance of f(x) with the mean over the noise of one candidate."""
    double: Kernel = field(init=False)
    """Q: that of the means over the noise of two different candidates."""
    sharp_single: Kernel = field(init=False)
    """K1 of a refined candidate."""
    refined: tuple[Kernel, Kernel] = field(init=False)
    """Q of two candidates of which one is refined, or both."""
    nugget: float = field(init=False)
    """k(0) - Q_ii."""
    inputs: Matrix = field(init=False)
    outcomes: Vector = field(init=False)
    noise: Vector = field(init=False)
    spread: Vector = field(init=False)
    """N (t,)."""
    is_refined: Mask = field(init=False)
    _gram: Matrix = field(init=False)
    _solved: tuple[Matrix, Vector] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.double, self.nugget = averaged(self.kernel, self.law, self.sd, self.r)
        self.single = averaged(self.kernel, self.law, self.sd, self.r, draws=1)[0]
        self.sharp_single, self.refined = self.single, (self.double, self.double)
        if self.sharper is not None:
            self.sharp_single = averaged(self.kernel, self.law, self.sharper, self.r, draws=1)[0]
            self.refined = refined(self.kernel, self.law, self.sd, self.sharper, self.r)
        self.is_refined = np.empty(0, dtype=np.bool_)
        self.inputs, self._gram = np.empty((0, self.r)), np.empty((0, 0))
        self.outcomes = self.noise = self.spread = np.empty(0)

    @property
    def count(self) -> int:
        """t: candidates with an outcome."""
        return len(self.inputs)

    def observe(self, centre: Vector, outcome: float, noise: float, *, is_refined: bool = False) -> None:
        """Take the outcome of another candidate at ``centre`` (r,) into account, with the variance of its noise."""
        t, kernels = self.count, (self.double, *self.refined)
        gram = np.empty((t + 1, t + 1))
        gram[:t, :t], gram[t, t] = self._gram, kernels[2 * is_refined].variance
        refined_of_pair = self.is_refined.astype(np.intp) + is_refined
        for number in np.unique(refined_of_pair).tolist():
            others = np.flatnonzero(refined_of_pair == number)
            gram[t, others] = gram[others, t] = kernels[number](centre[None], self.inputs[others])[0]
        self._gram, self.inputs = gram, np.vstack([self.inputs, centre])
        self.outcomes, self.noise = np.append(self.outcomes, outcome), np.append(self.noise, noise)
        self.is_refined, nugget = np.append(self.is_refined, is_refined), self.kernel.variance - gram[t, t]
        self.spread, self._solved = np.append(self.spread, max(nugget, self._spread_min)), None

    def covariances(self, places: Matrix, since: int = 0) -> Matrix:
        """K1 (t - since, m): covariances of f at ``places`` (m, r) with the means at candidates ``since`` .. t - 1."""
        cross: Matrix = np.empty((self.count - since, len(places)))
        for kernel, is_its in ((self.single, ~self.is_refined), (self.sharp_single, self.is_refined)):
            own = np.flatnonzero(is_its[since:])
            cross[own] = kernel(self.inputs[since:][own], places)
        return cross

    def replace(self, index: int, outcome: float, noise: float) -> None:
        """Replace the outcome of candidate ``index`` of those with one: by the mean of its outcomes, for example."""
        self.outcomes[index], self.noise[index], self._solved = outcome, noise, None

    def adapt(self, of_mean: Vector, mean_of_variance: Vector) -> None:
        """Set N from the variance of mean(z_i + u) and the mean of variance(z_i + u) over u (t,), each.

        By the law of total variance, Var f(z_i + u) given the outcomes is the variance of the mean, plus the mean of
        the variance, minus the variance of g_i, which all u share.
        """
        inverse, _ = self._solution()
        variance = self._gram.diagonal() - np.einsum("ij,ij->i", product(self._gram, inverse), self._gram)
        spread = of_mean + np.maximum(mean_of_variance - variance, 0.0)
        self.spread, self._solved = np.maximum(spread, self._spread_min), None

    def moments(self, cross: Matrix) -> tuple[Vector, Vector]:
        """Means and variances (m,) of f at the places that have covariances ``cross`` (t, m)."""
        if not self.count:
            return np.zeros(cross.shape[1]), np.full(cross.shape[1], self.kernel.variance)
        inverse, dual = self._solution()
        variance = self.kernel.variance - np.einsum("ij,ij->j", product(inverse, cross), cross)
        return np.einsum("i,ij->j", dual, cross), np.maximum(variance, 0.0)

    def own_moments(self) -> tuple[Vector, Vector]:
        """Means and variances (t,) of f(x_i) = g_i + rho_i at the true places of the candidates with an outcome."""
        inverse, dual = self._solution()
        cross = self._gram + np.diag(self.spread)
        variance = cross.diagonal() - np.einsum("ij,ij->i", product(cross, inverse), cross)
        return right_product(cross, dual), np.maximum(variance, 0.0)

    @property
    def _spread_min(self) -> float:
        return SPREAD_MIN * self.kernel.variance

    def _solution(self) -> tuple[Matrix, Vector]:
        """C^-1 (t, t) and C^-1 y (t,). Raises NumericalFailure if C cannot be factored."""
        if self._solved is None:
            inverse = gram_of_lower(inverse_factor(self._gram + np.diag(self.spread + self.noise)))
            self._solved = inverse, right_product(inverse, self.outcomes)
        return self._solved
