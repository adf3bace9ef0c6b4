"""Expected improvement of f at the places where candidates may truly be, averaged over the release's noise."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, sqrt

import numpy as np

from blindopt.arrays import Matrix, Rows, Vector
from blindopt.errors import Invalid
from blindopt.gp.acquisition import (
    Choice,
    ExpectedImprovement,
    Reach,
    UpperConfidenceBound,
    beta,
    choose_maximum,
)
from blindopt.gp.deblurred import Deblurred
from blindopt.gp.input_noise import declared_noise
from blindopt.gp.noise_means import Cells, NoiseMeans, noise_means
from blindopt.optimizer.algorithms.gp.reach import log_probability
from blindopt.optimizer.algorithms.gp.rules import GpRule
from blindopt.optimizer.algorithms.gp.surrogate import Prior
from blindopt.optimizer.algorithms.settings import AlgorithmSettings
from blindopt.wire.run import Engine

Values = Callable[[Vector, Vector], Vector]
"""An acquisition of means and variances."""
Rule = Callable[[float], Values]
"""An acquisition, given the part of the variance that cannot be learned."""

OUTCOMES_MAX = 500
SHORTLIST: dict[Engine, int] = {1: 256, 2: 256, 3: 64}
"""Candidates whose averages are computed by draws: those that are best without them."""
_DELTA_PRIME = 0.025
_LEAST = 1e-16  # share of the prior variance
_REACH_WEIGHT = 0.25  # of what can be learned: half a standard deviation of optimism
_SCALE = 0.5  # of beta_t
_ROUNDS = 3  # of adaptation to outcomes that come together
_DIGITS = 11  # of an average: Fourier transforms of equal candidates differ by rounding


class EiDeblurred(GpRule):
    """Chooses the row of the largest average acquisition over the places that its noisy coordinates stand for.

    ``Deblurred`` gives the mean m and variance v of f at any place x, instead of those of its average over the noise
    about a candidate. In the first share ``explored`` of the ``horizon`` (the number of steps T) the acquisition at x
    is m + sqrt(v beta_t / 2), then the expected improvement sqrt(v + e) h((m + sqrt(v) - y+) / sqrt(v + e)), h(t) =
    phi(t) + t Phi(t), where e is the variance that an exact answer has beyond f. y+ is the best outcome where answers
    are exact, and the largest posterior mean of f at a queried candidate otherwise; such a candidate has one place,
    which its outcomes are about, and its own acquisition there. A run that looks for many candidates averages the
    probability Phi((m + sqrt(v) / 2 - tau) / sqrt(v + e)) of reaching the threshold tau instead (as ``Reach``: from the
    first step on where it is stated, after the first 40 % where it is estimated). Where queried candidates come again,
    less blurred, places on cells count by a density of the records that the whole release tells of. Once a query
    failed, the acquisition (in this first share, its excess over the least one) is multiplied by the probability of
    success. On cells all candidates are compared; by draws, the ``SHORTLIST`` that are best by the same rule for the
    posterior at candidates.

    The variance N of each outcome is adapted once after each outcome, and three times to those that come before the
    first step or before a fit. Estimates are those of the posterior at candidates. No bound on the regret is known.
    Raises Invalid without a declared noise, and for more than 500 outcomes: a step takes time that grows with their
    square.
    """

    expects_failures = True

    def __init__(self, candidates: Matrix, settings: AlgorithmSettings, horizon: int, explored: float = 0.5) -> None:
        noise = declared_noise(settings.noise)
        if noise is None:
            raise Invalid("ei_deblurred needs a release with Gaussian or Laplace noise: choose ei")
        if settings.capacity > OUTCOMES_MAX:
            raise Invalid(f"ei_deblurred takes at most {OUTCOMES_MAX:,} outcomes: choose ei")
        super().__init__(np.asarray(candidates), settings)
        self._noise, self._explored = noise, explored * horizon
        self._learned_from = self._surrogate
        self._prior: Prior | None = None
        self.belief: Deblurred
        self.means: NoiseMeans
        self._positions: dict[int, int] = {}  # of candidates with an outcome, in the belief
        self._learned = 0  # outcomes that the belief knows

    def choose(self, step: int) -> Choice:
        """The row of the largest average; the acquisition of the choice, in the second half its logarithm."""
        prior = self._learn()
        least, reaching = _LEAST * (prior.kernel.variance + prior.residual), self.reaches_at(step)
        if exploring := not reaching and step <= self._explored:
            level = _SCALE * beta(len(self._candidates), step, _DELTA_PRIME)
        else:
            level = self._inner_threshold if reaching else self._best_outcome(prior)

        def rule(nugget: float) -> Values:
            if exploring:
                return UpperConfidenceBound(level, nugget)
            if not reaching:
                return ExpectedImprovement(level, 1.0, nugget, least)
            reach = Reach(level, _REACH_WEIGHT, nugget, least)
            return lambda mean, variance: log_probability(reach(mean, variance))

        fresh, queried = self._visible()
        fresh = self._shortlist(fresh, rule, exploring)
        values = np.concatenate([self._averages(fresh, rule, prior, exploring), self._own_values(queried, rule, prior)])
        values = self._weighed(np.concatenate([fresh, queried]), values, exploring)
        unit = max(float(np.abs(values).max()), np.finfo(np.float64).tiny) if exploring else 1.0
        values = np.round(values / unit, _DIGITS) * unit
        choice = choose_maximum(values, values, np.zeros_like(values), self._ties(step))
        row = int(np.concatenate([fresh, queried])[choice.row])
        solution = self._posterior.solve(np.array([row]))
        choice = replace(choice, row=row, mean=float(solution.mean[0]), sd=sqrt(solution.variance[0]))
        if reaching:
            return self._in_units(choice, choice.acquisition)
        return self._of_bound(choice) if exploring else self._of_improvement(choice)

    def refine(self, row: int, z: Vector) -> None:
        super().refine(row, z)
        if row in self._positions:
            self._prior = None  # its outcome lies elsewhere: the belief begins anew

    def expected_improvement(self, choice: Choice, step: int) -> float:
        """As that of ``GpRule``; infinite while it explores, and compares bounds."""
        return inf if step <= self._explored else super().expected_improvement(choice, step)

    def _visible(self) -> tuple[Rows, Rows]:
        """Rows that are not hidden: those without an outcome, and those with one."""
        is_visible = np.ones(len(self._candidates), dtype=np.bool_)
        is_visible[self._hidden] = False
        queried = np.array(sorted(self._positions), dtype=np.intp)
        queried = queried[is_visible[queried]]
        is_visible[queried] = False
        return np.flatnonzero(is_visible), queried

    def _averages(self, rows: Rows, rule: Rule, prior: Prior, exploring: bool) -> Vector:
        """The acquisition of candidates without an outcome."""
        if not len(rows):
            return np.empty(0)
        mean, variance = self.means.moments(rows)
        values = rule(prior.residual)(prior.mean + mean, variance + prior.residual)
        average = self.means.mean_at if exploring else self.means.log_mean_at
        return average(rows, values)

    def _own_values(self, rows: Rows, rule: Rule, prior: Prior) -> Vector:
        """The acquisition of candidates with an outcome, at the places that their outcomes are about."""
        if not len(rows):
            return np.empty(0)
        mean, variance = self.belief.own_moments()
        positions = [self._positions[row] for row in rows.tolist()]
        return rule(0.0)(prior.mean + mean[positions], variance[positions])

    def _weighed(self, rows: Rows, values: Vector, exploring: bool) -> Vector:
        """Values times the probability of success: of bounds what they exceed the least of them by."""
        success = self._log_success(rows)
        if success is None or not len(rows):
            return values
        if not exploring:
            return values + success
        least = float(values.min())
        return least + (values - least) * np.exp(success)

    def _shortlist(self, rows: Rows, rule: Rule, exploring: bool) -> Rows:
        """Rows whose averages are compared: all on cells, the best by the posterior at candidates for draws.

        Twice as many are solved for exactly, so that the rounding of the others does not matter.
        """
        if isinstance(self.means, Cells):
            return rows
        posterior = self._posterior
        acquisition, size = rule(posterior.nugget), SHORTLIST[self._settings.engine]
        for count, moments in ((2 * size, posterior.moments), (size, lambda rows: posterior.solve(rows)[2:])):
            if len(rows) > count:
                values = self._weighed(rows, acquisition(*moments(rows)), exploring)
                rows = np.sort(rows[np.argsort(-values, kind="stable")[:count]])
        return rows

    def _best_outcome(self, prior: Prior) -> float:
        """The outcome to be improved on; the prior mean before the first."""
        if not self.belief.count:
            return prior.mean
        means = self.belief.outcomes if self._settings.exact else self.belief.own_moments()[0]
        return prior.mean + float(means.max())

    def _learn(self) -> Prior:
        """Bring the belief up to date; return the prior that it stands on.

        It depends on prior and outcomes alone, and not on when a row was chosen.
        """
        prior, outcomes = self.surrogate.prior, self.surrogate.outcomes
        if prior != self._prior or self._learned < prior.since or self._learned_from is not self.surrogate:
            self._prior, self._positions, self._learned, self._learned_from = prior, {}, 0, self.surrogate
            sharper = self.surrogate.sharper
            self.belief = Deblurred(prior.kernel, *self._noise, self._candidates.shape[1], sharper)
            self.means = noise_means(self._candidates, self.belief, self._settings.tick)
            for outcome in outcomes[: prior.since]:
                self._observe(*outcome)
            for _ in range(_ROUNDS if self._learned else 0):
                self.means.adapt()
        for outcome in outcomes[self._learned :]:
            self._settings.tick()
            self._observe(*outcome)
            self.means.adapt()
        return prior

    def _observe(self, row: int, value: float, noise: float) -> None:
        """Give the belief an outcome. Several of one candidate count as their mean, weighted by precision."""
        assert self._prior is not None
        belief, self._learned = self.belief, self._learned + 1
        value, noise = value - self._prior.mean, noise + self._prior.residual
        if (index := self._positions.get(row)) is None:
            self._positions[row] = belief.count
            places = self.surrogate.places
            centre = places.get(row, self._candidates[row])
            belief.observe(centre, value, noise, is_refined=row in places)
        else:
            before, now = 1.0 / belief.noise[index], 1.0 / noise
            mean = (before * belief.outcomes[index] + now * value) / (before + now)
            belief.replace(index, float(mean), float(1.0 / (before + now)))
