"""GP-BUCB: batches of rows by hallucinated outcomes, Algorithm 1 of Desautels et al. (2014)."""

from blindopt.arrays import Matrix
from modeler_service.algorithms.gp.gp_ucb import GpUcb
from modeler_service.algorithms.gp.surrogate import GpSettings


class GpBucb(GpUcb):
    """Chooses the rows of a batch one after another: mean of the answers so far, variance as if all were answered.

    A row of a batch maximizes mean + sqrt(beta_t) sd, where sd knows the rows chosen before it (an outcome as large as
    the posterior mean changes the variance and not the mean) and t counts all rows chosen by the algorithm. The
    factor exp(C) of Theorem 2 on the width is left out, as in the article's experiments: the regret bound holds
    with it only. A pending outcome has the noise variance of the last outcome, or of the kernel before the first.
    """

    def __init__(self, candidates: Matrix, settings: GpSettings, delta_ucb: float, *, scale: float = 1.0) -> None:
        super().__init__(candidates, settings, delta_ucb, scale=scale)
        self._pending = 0

    def suppose(self, row: int) -> None:
        """Add ``row`` to the batch, with a pending outcome."""
        self._posterior.suppose(row, self.surrogate.pending_variance)
        self._pending += 1

    def retract(self) -> None:
        """Drop all pending outcomes."""
        self._posterior.retract(self._posterior.count - self._pending)
        self._pending = 0
