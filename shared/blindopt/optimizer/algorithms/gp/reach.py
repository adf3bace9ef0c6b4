"""As many good candidates as possible: the rule that asks where an outcome most surely reaches the threshold."""

from blindopt.arrays import Vector
from blindopt.gp.acquisition import Choice
from blindopt.optimizer.algorithms.gp.rules import Ei


class Reach(Ei):
    """Chooses the row that most surely reaches a threshold, with optimism about what can be learned.

    With posterior mean m and variance v of f at a row, of which the nugget nu is the row's own, r = max(v - nu, 0) and
    the threshold tau of the goal, it is the row of the largest (m + xi sqrt(r) - tau) / sqrt(v); ``optimism`` is xi.
    Where a share of all candidates is good, tau is estimated before each choice, and the first 40 % of the queries look
    for the best candidate as ``Ei`` does. Once a query failed, the logarithm of the normal probability of that value is
    added to that of success. Pending rows of a batch count as answered with their posterior mean. No bound on the
    number of good rows is known.
    """

    def choose(self, step: int) -> Choice:
        """The row that most surely reaches the threshold; the acquisition is its distance in standard deviations."""
        if not self.reaches_at(step):
            return super().choose(step)
        rule = self._posterior.reaching(self._inner_threshold, self._optimism)
        choice = self._largest(rule, step, log_probability)
        return self._in_units(choice, choice.acquisition)


def log_probability(values: Vector) -> Vector:
    """Logarithms of normal probabilities."""
    from scipy.special import log_ndtr  # late, for a fast start of the services

    logs: Vector = log_ndtr(values)
    return logs
