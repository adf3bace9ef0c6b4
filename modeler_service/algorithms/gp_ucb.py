"""GP-UCB over finite candidates: Algorithm 2 of Kharkovskii et al. (2020)."""

import numpy as np

from shared import wire
from shared.acquisition import Choice, beta
from shared.averaging import noise_aware
from shared.kernels import kernel_of
from shared.matrix import Matrix
from shared.posterior import Posterior

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
        variance = self._noise_variance
        if passport is not None:
            variance = max(variance, passport.measurement_variance) + (passport.privacy.variance or 0.0)
        self._posterior.observe(row, outcome, variance)
