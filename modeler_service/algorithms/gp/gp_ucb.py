"""GP-UCB over finite candidates: Algorithm 2 of Kharkovskii et al. (2020)."""

from math import sqrt

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix, Rows, Vector
from blindopt.gp.acquisition import Choice, Estimate, beta
from blindopt.gp.posterior import Posterior
from blindopt.gp.progress import NO_TICK, Tick
from modeler_service.algorithms.gp.surrogate import NO_NOISE, Surrogate


class GpUcb:
    """Asks the row of largest mean + sqrt(scale beta_t) sd, with delta' = delta_ucb / 2 (Theorem 3; scale 1).

    ``candidates`` (n, r), ``capacity`` the most outcomes it will be shown, the first ``initial`` of them of rows that
    it did not choose. A row may be asked again. Ties are broken by a draw that depends on the seed and the step alone.
    What outcomes are worth, and how hyper-parameters are fitted to them: see ``Surrogate``.
    """

    def __init__(
        self,
        candidates: Matrix,
        kernel: wire.Kernel | None,
        delta_ucb: float,
        *,
        sign: int,
        seed: int,
        capacity: int,
        noise: wire.NoiseLaw = NO_NOISE,
        scale: float = 1.0,
        fit: wire.Fit | None = None,
        initial: int = 0,
        precision: wire.Precision = "double",
        tick: Tick = NO_TICK,
    ) -> None:
        self._delta_prime, self._scale, self._seed = delta_ucb / 2, scale, seed
        self.surrogate = Surrogate(
            candidates,
            kernel,
            sign=sign,
            seed=seed,
            capacity=capacity,
            noise=noise,
            fit=fit,
            initial=initial,
            precision=precision,
            tick=tick,
        )

    @property
    def fitted(self) -> wire.Fitted | None:
        """The last fit, once a row was chosen with it."""
        return self.surrogate.fitted

    @property
    def _posterior(self) -> Posterior:
        return self.surrogate.posterior

    def choose(self, step: int) -> Choice:
        """The row of the largest upper confidence bound."""
        posterior = self._posterior
        weight = self._scale * beta(posterior.n, step, self._delta_prime)
        return posterior.choose(weight, lambda: np.random.default_rng([self._seed, step]))

    def observe(self, row: int, outcome: float, passport: wire.NoisePassport | None = None) -> None:
        """Update the posterior."""
        self.surrogate.observe(row, outcome, passport)

    def decline(self, row: int) -> None:
        """Nothing is learnt: the posterior is as before."""

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
        every step with that probability, if f is drawn from the process that the kernel says and ``scale`` is 1.
        """
        weight = self._scale * beta(self._posterior.n, step, self._delta_prime)
        _, mean, variance = self._posterior.best(rows, weight)
        assert choice.acquisition is not None, "a choice of the largest bound has one"
        return choice.acquisition - (mean - sqrt(weight * variance))
