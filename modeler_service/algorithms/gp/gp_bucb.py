"""GP-BUCB: batches of rows by hallucinated outcomes, Algorithm 1 of Desautels et al. (2014)."""

from typing import Any

from modeler_service.algorithms.gp.gp_ucb import GpUcb


class GpBucb(GpUcb):
    """Chooses the rows of a batch one after another: mean of the answers so far, variance as if all were answered.

    A row of a batch maximizes mean + sqrt(beta_t) sd, where sd knows the rows chosen before it (an outcome as large as
    the posterior mean changes the variance and not the mean) and t counts all rows chosen by the algorithm. The
    factor exp(C) of Theorem 2 on the width is left out, as in the article's experiments: the regret bound holds
    with it only. Before an answer came, what is pending counts with the kernel's noise variance, and afterwards with
    that of the last answer.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._pending = 0

    def suppose(self, row: int) -> None:
        """A row of the batch was chosen: its outcome is pending."""
        self._posterior.suppose(row, self.surrogate.pending_variance)
        self._pending += 1

    def retract(self) -> None:
        """Nothing is pending any more."""
        self._posterior.retract(self._posterior.count - self._pending)
        self._pending = 0
