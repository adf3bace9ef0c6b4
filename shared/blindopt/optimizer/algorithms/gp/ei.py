"""Expected improvement over finite candidates, where some of the variance can be learned and some is luck."""

from math import exp

from blindopt.arrays import Matrix
from blindopt.gp.acquisition import Choice
from blindopt.optimizer.algorithms.gp.gp_rule import GpRule
from blindopt.optimizer.algorithms.gp.surrogate import GpSettings


class Ei(GpRule):
    """Chooses the row of largest expected improvement on the best queried row, with optimism about what can be learned.

    With posterior mean m and variance v of f at a row, of which the nugget nu is the row's own, r = max(v - nu, 0) and
    y+ the largest posterior mean of the queried rows, the expected improvement is sqrt(v) h((m + xi sqrt(r) - y+) /
    sqrt(v)), h(t) = phi(t) + t Phi(t). ``optimism`` is xi.
    Plain expected improvement (xi = 0) spends a run on neighbours of the best row, because each of them may be better
    by its own nugget. A queried row remains a candidate with the variance that is left of it. No bound on the
    regret is known. In a batch, pending rows count as answered with their posterior mean (the Kriging believer of
    Ginsbourger et al., 2010).
    """

    def __init__(self, candidates: Matrix, settings: GpSettings, optimism: float) -> None:
        super().__init__(candidates, settings)
        self._optimism = optimism

    def choose(self, step: int) -> Choice:
        """The row of the largest expected improvement; the acquisition of the choice is its logarithm."""
        posterior = self._posterior
        return posterior.maximize(posterior.improvement(self._optimism), self._ties(step))

    def expected_improvement(self, choice: Choice, step: int) -> float:
        """Expected improvement of a choice, optimism included, in units of the outcome."""
        assert choice.acquisition is not None, "a choice of the largest improvement has one"
        return exp(choice.acquisition)
