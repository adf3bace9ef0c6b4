"""GP-UCB over finite candidates: Algorithm 2 of Kharkovskii et al. (2020)."""

from math import sqrt

import numpy as np

from shared import wire
from shared.acquisition import Choice, Estimate, beta
from shared.averaging import noise_aware
from shared.kernels import kernel_of
from shared.matrix import Matrix, Vector
from shared.posterior import Posterior, Rows

NO_NOISE = wire.NoiseLaw(family="none")


class GpUcb:
    """Asks the row of largest mean + sqrt(beta_t) sd, with delta' = delta_ucb / 2 (Theorem 3).

    ``candidates`` (n, r), ``capacity`` the most outcomes it will be shown. A row may be asked again.
    Ties are broken by a draw that depends on the seed and the step alone. Where ``noise`` tells the law of the
    release's noise, the kernel is averaged over it. An outcome counts with the noise variance of the kernel, or of the
    measurement as its passport tells it where that is larger, plus the variance of what protects it.
    """

    def __init__(
        self,
        candidates: Matrix,
        kernel: wire.Kernel,
        delta_ucb: float,
        *,
        sign: int,
        seed: int,
        capacity: int,
        noise: wire.NoiseLaw = NO_NOISE,
    ) -> None:
        plain = kernel_of(kernel.kind, kernel.lengthscale, kernel.signal_variance)
        model, nugget = noise_aware(plain, noise, candidates.shape[1])
        self._noise_variance = kernel.noise_variance
        self._delta_prime = delta_ucb / 2
        self._seed = seed
        self._posterior = Posterior(
            np.asarray(candidates),
            model,
            nugget=nugget,
            noise_variance=kernel.noise_variance,
            prior_mean=sign * kernel.mean,
            capacity=capacity,
        )

    def choose(self, step: int) -> Choice:
        """The row of the largest upper confidence bound."""
        weight = beta(self._posterior.n, step, self._delta_prime)
        return self._posterior.choose(weight, lambda: np.random.default_rng([self._seed, step]))

    def observe(self, row: int, outcome: float, passport: wire.NoisePassport | None = None) -> None:
        """Update the posterior."""
        self._posterior.observe(row, outcome, self._variance_of(passport))

    def _variance_of(self, passport: wire.NoisePassport | None) -> float:
        """With what noise variance an outcome counts."""
        if passport is None:
            return self._noise_variance
        return max(self._noise_variance, passport.measurement_variance) + (passport.privacy.variance or 0.0)

    def hide(self, rows: Rows) -> None:
        """Choose none of these rows from now on, and any other."""
        self._posterior.hide(rows)

    def moments(self, rows: Rows) -> tuple[Vector, Vector]:
        """Posterior means and variances of f at ``rows``."""
        return self._posterior.moments(rows)

    def best(self, rows: Rows) -> Estimate:
        """Which of ``rows`` has the largest posterior mean."""
        row, mean, variance = self._posterior.best(rows)
        return Estimate(row, mean, sqrt(variance))

    def regret(self, choice: Choice, step: int, rows: Rows) -> float:
        """How much better than the best of ``rows`` any row can be that may be asked, with probability 1 - delta_ucb.

        max (mean + sqrt(beta_t) sd) over those rows, which is the bound of the ``choice``, minus the largest
        mean - sqrt(beta_t) sd over ``rows``: by Lemma 5.1 of Srinivas et al. (2010) every f lies between its bounds at
        every step with that probability, if f is drawn from the process that the kernel says.
        """
        weight = beta(self._posterior.n, step, self._delta_prime)
        _, mean, variance = self._posterior.best(rows, weight)
        assert choice.acquisition is not None, "a choice of the largest bound has one"
        return choice.acquisition - (mean - sqrt(weight * variance))
