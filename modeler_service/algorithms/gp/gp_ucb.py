"""GP-UCB over finite candidates: Algorithm 2 of Kharkovskii et al. (2020)."""

from math import sqrt

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix, Rows, Vector
from blindopt.gp.acquisition import Choice, Estimate, beta
from blindopt.gp.posterior import Posterior
from modeler_service.algorithms.gp.surrogate import GpSettings, Surrogate


class GpUcb:
    """Chooses the row of largest mean + sqrt(scale beta_t) sd, with delta' = delta_ucb / 2 (Theorem 3; scale 1).

    ``candidates`` (n, r). A row may be chosen again. Ties are broken by a draw that depends on the seed and the step
    alone. ``Surrogate`` says how outcomes are weighed, and how hyper-parameters are fitted to them.
    """

    def __init__(self, candidates: Matrix, settings: GpSettings, delta_ucb: float, *, scale: float = 1.0) -> None:
        self._delta_prime, self._scale, self._seed = delta_ucb / 2, scale, settings.seed
        self.surrogate = Surrogate(candidates, settings)

    @property
    def fitted(self) -> wire.Fitted | None:
        """The last fit that a row was chosen with."""
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
        """Condition the posterior on an outcome, with the noise of its passport."""
        self.surrogate.observe(row, outcome, passport)

    def decline(self, row: int) -> None:
        """Leave the posterior as it is."""

    def hide(self, rows: Rows) -> None:
        """Exclude these rows, and no others, from the next choices."""
        self._posterior.hide(rows)

    def moments(self, rows: Rows) -> tuple[Vector, Vector]:
        """Posterior means and variances of f at ``rows``."""
        return self._posterior.moments(rows)

    def best(self, rows: Rows) -> Estimate:
        """Return the first of ``rows`` with the largest posterior mean."""
        row, mean, variance = self._posterior.best(rows)
        return Estimate(row, mean, sqrt(variance))

    def regret(self, choice: Choice, step: int, rows: Rows) -> float:
        """Bound by how much any row that may be chosen is better than the best of ``rows``.

        It is max (mean + sqrt(beta_t) sd) over the rows that may be chosen, which is the bound of the ``choice``, minus
        the largest mean - sqrt(beta_t) sd over ``rows``, and holds with probability 1 - delta_ucb: by Lemma 5.1 of
        Srinivas et al. (2010) f lies between its bounds at every row and step with that probability, if f is a draw of
        the process with this kernel and ``scale`` is 1.
        """
        weight = self._scale * beta(self._posterior.n, step, self._delta_prime)
        _, mean, variance = self._posterior.best(rows, weight)
        assert choice.acquisition is not None, "a choice of the largest bound has one"
        return choice.acquisition - (mean - sqrt(weight * variance))
