"""GP-UCB over finite candidates: Algorithm 2 of Kharkovskii et al. (2020)."""

from math import sqrt
from typing import Literal

from blindopt.arrays import Matrix, Rows
from blindopt.gp.acquisition import Choice, UpperConfidenceBound, beta
from blindopt.optimizer.algorithms.gp.gp_rule import GpRule
from blindopt.optimizer.algorithms.gp.surrogate import GpSettings


class GpUcb(GpRule):
    """Chooses the row of largest mean + sqrt(scale beta_t) sd, with delta' = delta_ucb / 2 (Theorem 3; scale 1).

    With ``nugget`` out the sd is that of the part of f that can be learned at a row: sqrt(max(variance - nugget, 0)).
    """

    def __init__(
        self,
        candidates: Matrix,
        settings: GpSettings,
        delta_ucb: float,
        *,
        scale: float = 1.0,
        nugget: Literal["in", "out"] = "in",
    ) -> None:
        super().__init__(candidates, settings)
        self._delta_prime, self._scale, self._leaves_out = delta_ucb / 2, scale, nugget == "out"

    def choose(self, step: int) -> Choice:
        """The row of the largest upper confidence bound."""
        posterior = self._posterior
        weight = self._scale * beta(posterior.n, step, self._delta_prime)
        bound = UpperConfidenceBound(weight, posterior.nugget if self._leaves_out else 0.0)
        return posterior.maximize(bound, self._ties(step))

    def regret(self, choice: Choice, step: int, rows: Rows) -> float:
        """Bound by how much any row that may be chosen is better than the best of ``rows``; not with ``nugget`` out.

        It is max (mean + sqrt(beta_t) sd) over the rows that may be chosen, which is the bound of the ``choice``, minus
        the largest mean - sqrt(beta_t) sd over ``rows``, and holds with probability 1 - delta_ucb: by Lemma 5.1 of
        Srinivas et al. (2010) f lies between its bounds at every row and step with that probability, if f is a draw of
        the process with this kernel and ``scale`` is 1.
        """
        assert not self._leaves_out, "the settings were checked"
        weight = self._scale * beta(self._posterior.n, step, self._delta_prime)
        _, mean, variance = self._posterior.best(rows, weight)
        assert choice.acquisition is not None, "a choice of the largest bound has one"
        return choice.acquisition - (mean - sqrt(weight * variance))
