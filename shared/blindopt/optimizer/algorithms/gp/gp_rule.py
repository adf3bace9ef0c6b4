"""What algorithms over the posterior of a Gaussian process share: all but the choice."""

from collections.abc import Callable
from math import sqrt

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix, Rows, Vector
from blindopt.gp.acquisition import Estimate
from blindopt.gp.posterior import Posterior
from blindopt.optimizer.algorithms.gp.surrogate import GpSettings, Surrogate


class GpRule:
    """Learns from outcomes, and estimates f. A subclass chooses rows.

    ``candidates`` (n, r). A row may be chosen again. Ties are broken by a draw that depends on the seed and the step
    alone. ``Surrogate`` says how outcomes are weighed, and how hyper-parameters are fitted to them. A pending outcome
    is as large as the posterior mean, with the noise variance of the last outcome, or of the kernel before the first.
    """

    def __init__(self, candidates: Matrix, settings: GpSettings) -> None:
        self._settings, self._pending = settings, 0
        self.surrogate = Surrogate(candidates, settings)

    @property
    def fitted(self) -> wire.Fitted | None:
        """The last fit that a row was chosen with."""
        return self.surrogate.fitted

    @property
    def _posterior(self) -> Posterior:
        return self.surrogate.posterior

    def _ties(self, step: int) -> Callable[[], np.random.Generator]:
        return lambda: np.random.default_rng([self._settings.seed, step])

    def observe(self, row: int, outcome: float, passport: wire.NoisePassport | None = None) -> None:
        """Condition the posterior on an outcome, with the noise of its passport."""
        self.surrogate.observe(row, outcome, passport)

    def decline(self, row: int) -> None:
        """Leave the posterior as it is."""

    def hide(self, rows: Rows) -> None:
        """Exclude these rows, and no others, from the next choices."""
        self._posterior.hide(rows)

    def suppose(self, row: int) -> None:
        """Add ``row`` to the batch, with a pending outcome."""
        self._posterior.suppose(row, self.surrogate.pending_variance)
        self._pending += 1

    def retract(self) -> None:
        """Drop all pending outcomes."""
        self._posterior.retract(self._posterior.count - self._pending)
        self._pending = 0

    def moments(self, rows: Rows) -> tuple[Vector, Vector]:
        """Posterior means and variances of f at ``rows``."""
        return self._posterior.moments(rows)

    def best(self, rows: Rows) -> Estimate:
        """Return the first of ``rows`` with the largest posterior mean."""
        row, mean, variance = self._posterior.best(rows)
        return Estimate(row, mean, sqrt(variance))
