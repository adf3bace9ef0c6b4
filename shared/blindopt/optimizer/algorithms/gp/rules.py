"""Algorithms over the posterior of a Gaussian process: what they share, GP-UCB, GP-BUCB and expected improvement."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, log, sqrt
from typing import Literal

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix, Rows, Vector
from blindopt.gp.acquisition import Acquisition, Choice, Estimate, UpperConfidenceBound, beta, choose_maximum
from blindopt.gp.posterior import Posterior
from blindopt.optimizer.algorithms.gp.surrogate import Surrogate
from blindopt.optimizer.algorithms.settings import AlgorithmSettings

_FAR_BELOW = 10.0  # robust standard deviations
_OUTCOMES_MIN = 5  # before fewer, no outcome is far from the others
_SHORTLIST, _DIGITS, _TOGETHER = 256, 10, 1 << 14
_BEST_FIRST = 0.4
SAMPLE = 2_000
"""Candidates that a threshold is estimated from."""
_SAMPLE_STREAM = 5  # apart from those of initial rows, ties, normals and fits
_HALVINGS = 60


class GpRule(ABC):
    """Learns from outcomes, and estimates f. A subclass chooses rows.

    ``candidates`` (n, r). A row may be chosen again. Ties are broken by a draw that depends on the seed and the step
    alone. ``Surrogate`` says how outcomes are weighed, and how hyper-parameters are fitted to them. A pending outcome
    is as large as the posterior mean, with the noise variance of the last outcome, or of the kernel before the first.

    From version 3 of the engine on, a rule that ``expects_failures`` and fits its kernel takes outcomes far below the
    others for failures: decided anew from all outcomes, they count as declined, and the surrogate has the others alone.
    """

    expects_failures = False

    def __init__(self, candidates: Matrix, settings: AlgorithmSettings) -> None:
        self._settings, self._pending = settings, 0
        self._hidden: Rows = np.empty(0, dtype=np.intp)
        self._candidates, self._surrogate = candidates, Surrogate(candidates, settings)
        self._reports: list[tuple[int, float, wire.NoisePassport | None]] = []
        self._declined: list[int] = []
        self._far_below: list[int] = []  # positions of reports that the surrogate does not have
        self._judged = 0  # how many reports there were
        self._second_draws: dict[int, Vector] = {}

    @property
    def surrogate(self) -> Surrogate:
        """What is learned from the outcomes that are no failures."""
        settings, count = self._settings, len(self._reports)
        if self._judged < count and settings.engine >= 3 and self.expects_failures and settings.fit is not None:
            self._judged, far = count, far_below(self._reports)
            if far != self._far_below:
                initial = settings.initial - sum(position < settings.initial for position in far)
                self._far_below = far
                self._surrogate = Surrogate(self._candidates, replace(settings, initial=initial))
                for row, z in self._second_draws.items():
                    self._surrogate.refine(row, z)
                for position, report in enumerate(self._reports):
                    if position not in far:
                        self._surrogate.observe(*report)
        return self._surrogate

    @property
    def far_below(self) -> list[float]:
        """Outcomes that count as declined, in the direction of maximization."""
        _ = self.surrogate
        return [self._reports[position][1] for position in self._far_below]

    @property
    def failed(self) -> Rows:
        """Rows without an outcome: declined ones, and those whose outcomes all count as declined."""
        good = {row for row, _, _ in self.surrogate.outcomes}
        return np.array(sorted({*self._failures()} - good), dtype=np.intp)

    def _failures(self) -> list[int]:
        _ = self.surrogate
        return [*self._declined, *(self._reports[position][0] for position in self._far_below)]

    def _log_success(self, rows: Rows) -> Vector | None:
        """The logarithm of the probability that each row succeeds; None if no query failed.

        It is (p0 + sum of k s) / (1 + sum of k) over the queries: k is the correlation of the row with a queried one, s
        is 1 for an outcome and 0 for a failure, and p0 = (successes + 1) / (queries + 1).
        """
        failures = self._failures() if self._settings.engine >= 3 else []
        if not failures:
            return None
        good = [row for row, _, _ in self.surrogate.outcomes]
        queried = np.array(good + failures, dtype=np.intp)
        first, values = (len(good) + 1) / (len(queried) + 1), np.empty(len(rows))
        for start in range(0, len(rows), _TOGETHER):
            part = slice(start, start + _TOGETHER)
            near = self._posterior.correlations(rows[part], queried)
            values[part] = np.log((first + np.einsum("ij->i", near[:, : len(good)])) / (1.0 + np.einsum("ij->i", near)))
        return values

    @property
    def fitted(self) -> wire.Fitted | None:
        """The last fit that a row was chosen with."""
        return self.surrogate.fitted

    @property
    def _posterior(self) -> Posterior:
        return self.surrogate.posterior

    @property
    def threshold(self) -> float:
        """What a run that looks for many counts as good, in units of the outcome and the direction of maximization.

        Where a share of the candidates is good, it is estimated from the posterior at a sample of them.
        """
        goal, settings = self._settings.goal, self._settings
        assert isinstance(goal, wire.FindMany), "only such a goal has a threshold"
        if goal.threshold is not None:
            return settings.sign * goal.threshold
        return self.surrogate.unit.outer(self._inner_threshold)

    @property
    def _inner_threshold(self) -> float:
        """The threshold in the unit of the posterior."""
        goal, posterior = self._settings.goal, self._posterior
        assert isinstance(goal, wire.FindMany), "only such a goal has a threshold"
        if goal.share is None:
            return self.surrogate.unit.inner(self.threshold)
        solution = posterior.solve(sample_of(posterior.n, self._settings.seed))
        return threshold_of(solution.mean, np.sqrt(solution.variance), goal.share)

    def reaches_at(self, step: int) -> bool:
        """Whether a step looks for a good candidate: the first 40 % look for the best where none is stated as good."""
        goal, settings = self._settings.goal, self._settings
        if not isinstance(goal, wire.FindMany):
            return False
        return goal.share is None or step > _BEST_FIRST * (settings.horizon or settings.capacity)

    @abstractmethod
    def choose(self, step: int) -> Choice:
        """The row of the largest acquisition at a ``step``, from 1 on."""

    def expected_improvement(self, choice: Choice, step: int) -> float:
        """Expected improvement of a choice of the largest one, optimism included, in units of the outcome."""
        assert choice.acquisition is not None, "such a choice has one"
        return exp(choice.acquisition)

    def _ties(self, step: int) -> Callable[[], np.random.Generator]:
        return lambda: np.random.default_rng([self._settings.seed, step])

    def observe(self, row: int, outcome: float, passport: wire.NoisePassport | None = None) -> None:
        """Take an outcome into account, in the direction of maximization, with the noise that its passport describes.

        Without a passport the noise is that of the kernel.
        """
        self._surrogate.observe(row, outcome, passport)
        self._reports.append((row, outcome, passport))

    def refine(self, row: int, z: Vector) -> None:
        """Take the second draw ``z`` (r,) of a queried candidate into account, before its outcome."""
        self._second_draws[row] = z
        self._surrogate.refine(row, z)

    def decline(self, row: int) -> None:
        """Count a failure; the posterior stays as it is."""
        self._declined.append(row)

    def hide(self, rows: Rows) -> None:
        """Exclude these rows, and no others, from the next choices; at least one must remain."""
        self._hidden = np.unique(rows)

    def suppose(self, row: int) -> None:
        """Add ``row`` to the batch, with a pending outcome."""
        self._posterior.suppose(row, self.surrogate.pending_variance)
        self._pending += 1

    def retract(self) -> None:
        """Drop all pending outcomes: the state is that before the batch."""
        self._posterior.retract(self._posterior.count - self._pending)
        self._pending = 0

    def moments(self, rows: Rows) -> tuple[Vector, Vector]:
        (mean, variance), unit = self._posterior.moments(rows), self.surrogate.unit
        return unit.outer_all(mean), unit.sd * np.sqrt(variance)

    def best(self, rows: Rows) -> Estimate:
        row, mean, variance = self._posterior.best(rows)
        unit = self.surrogate.unit
        return Estimate(row, unit.outer(mean), unit.sd * sqrt(variance))

    def _of_bound(self, choice: Choice) -> Choice:
        """A choice whose acquisition is a bound, in units of the outcome."""
        unit = self.surrogate.unit
        return self._in_units(choice, None if choice.acquisition is None else unit.outer(choice.acquisition))

    def _of_improvement(self, choice: Choice) -> Choice:
        """A choice whose acquisition is the logarithm of an improvement, in units of the outcome."""
        shift = log(self.surrogate.unit.sd)
        return self._in_units(choice, None if choice.acquisition is None else choice.acquisition + shift)

    def _in_units(self, choice: Choice, acquisition: float | None) -> Choice:
        unit = self.surrogate.unit
        mean = None if choice.mean is None else unit.outer(choice.mean)
        return replace(
            choice, mean=mean, sd=None if choice.sd is None else unit.sd * choice.sd, acquisition=acquisition
        )


def far_below(reports: Sequence[tuple[int, float, wire.NoisePassport | None]]) -> list[int]:
    """Return positions of outcomes more than 10 robust standard deviations below the median.

    A robust standard deviation is 1.4826 times the median distance to the median, of all outcomes or of the first ones,
    which no search has drawn together: the larger one. Declared noise adds to it.
    """
    if len(reports) < _OUTCOMES_MIN:
        return []
    outcomes = np.array([outcome for _, outcome, _ in reports])
    unit = float(np.abs(outcomes).max()) or 1.0  # its square may be no double
    below = float(np.median(outcomes / unit)) - outcomes / unit
    first = below[:_OUTCOMES_MIN]
    robust = 1.4826 * max(float(np.median(np.abs(values - np.median(values)))) for values in (below, first))
    noises = [
        0.0 if passport is None else passport.measurement_variance + (passport.privacy.variance or 0.0)
        for _, _, passport in reports
    ]
    far = below > _FAR_BELOW * np.hypot(robust, np.sqrt(noises) / unit)
    return np.flatnonzero(far).tolist() if robust > 0 else []


def probability_above(mean: Vector, sd: Vector, threshold: float) -> Vector:
    """Probabilities (m,) that normal outcomes reach a threshold; 0 or 1 for one without spread."""
    from scipy.special import ndtr  # late, for a fast start of the services

    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        standardized = (mean - threshold) / sd
    return np.where(sd > 0, ndtr(standardized), (mean >= threshold).astype(np.float64))


def sample_of(n: int, seed: int) -> Rows:
    """Return the candidates (m,), rising, that a threshold is estimated from: all of them up to 2,000."""
    if n <= SAMPLE:
        return np.arange(n)
    return np.sort(np.random.default_rng([seed, 0, _SAMPLE_STREAM]).choice(n, SAMPLE, replace=False))


def threshold_of(mean: Vector, sd: Vector, share: float) -> float:
    """Return the threshold that the expected ``share`` of candidates with these moments (m,) is above.

    It solves mean of Phi((mean_j - threshold) / sd_j) = share. A candidate without spread is above or not.

    >>> round(threshold_of(np.zeros(3), np.ones(3), 0.025), 2)
    1.96
    """
    low, high = float((mean - 40 * sd).min()), float((mean + 40 * sd).max())
    for _ in range(_HALVINGS):
        middle = low + (high - low) / 2
        is_above = float(probability_above(mean, sd, middle).mean()) > share
        low, high = (middle, high) if is_above else (low, middle)
    return low + (high - low) / 2


class GpUcb(GpRule):
    """Chooses the row of largest mean + sqrt(scale beta_t) sd, with delta' = delta_ucb / 2 (Theorem 3; scale 1).

    With ``nugget`` out the sd is that of the part of f that can be learned at a row: sqrt(max(variance - nugget, 0)).
    """

    def __init__(
        self,
        candidates: Matrix,
        settings: AlgorithmSettings,
        delta_ucb: float,
        *,
        scale: float = 1.0,
        nugget: Literal["in", "out"] = "in",
    ) -> None:
        super().__init__(candidates, settings)
        self._delta_prime, self._scale, self._leaves_out = delta_ucb / 2, scale, nugget == "out"

    def choose(self, step: int) -> Choice:
        posterior = self._posterior
        weight = self._scale * beta(posterior.n, step, self._delta_prime)
        bound = UpperConfidenceBound(weight, posterior.nugget if self._leaves_out else 0.0)
        return self._of_bound(posterior.argmax(bound, self._ties(step), self._hidden))

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
        return choice.acquisition - self.surrogate.unit.outer(mean - sqrt(weight * variance))


class GpBucb(GpUcb):
    """Chooses the rows of a batch one after another: mean of the answers so far, variance as if all were answered.

    A row of a batch maximizes mean + sqrt(beta_t) sd, where sd knows the rows chosen before it (an outcome as large as
    the posterior mean changes the variance and not the mean) and t counts all rows chosen by the algorithm. The
    factor exp(C) of Theorem 2 on the width is left out, as in the article's experiments: the regret bound holds
    with it only.
    """


class Ei(GpRule):
    """Chooses the row of largest expected improvement on the best queried row, with optimism about what can be learned.

    With posterior mean m and variance v of f at a row, of which the nugget nu is the row's own, r = max(v - nu, 0) and
    y+ the largest posterior mean of the queried rows, the expected improvement is sqrt(v) h((m + xi sqrt(r) - y+) /
    sqrt(v)), h(t) = phi(t) + t Phi(t). ``optimism`` is xi.
    Plain expected improvement (xi = 0) spends a run on neighbours of the best row, because each of them may be better
    by its own nugget. A queried row remains a candidate with the variance that is left of it. No bound on the
    regret is known. In a batch, pending rows count as answered with their posterior mean (the Kriging believer of
    Ginsbourger et al., 2010). Once a query failed, the improvement is multiplied by the probability of success.
    """

    expects_failures = True

    def __init__(self, candidates: Matrix, settings: AlgorithmSettings, optimism: float) -> None:
        super().__init__(candidates, settings)
        self._optimism = optimism

    def choose(self, step: int) -> Choice:
        """The row of the largest expected improvement; the acquisition of the choice is its logarithm."""
        return self._of_improvement(self._largest(self._posterior.improvement(self._optimism), step))

    def _largest(
        self, rule: Acquisition, step: int, log_of: Callable[[Vector], Vector] = lambda values: values
    ) -> Choice:
        """The row of the largest value of a ``rule``, in the unit of the posterior.

        ``log_of`` makes of values the logarithms that those of the probability of success are added to.
        """
        posterior = self._posterior
        is_visible = np.ones(posterior.n, dtype=np.bool_)
        is_visible[self._hidden] = False
        rows = np.flatnonzero(is_visible)
        if (success := self._log_success(rows)) is None:
            return posterior.argmax(rule, self._ties(step), self._hidden)
        best = np.sort(np.argsort(-(log_of(rule(*posterior.moments(rows))) + success), kind="stable")[:_SHORTLIST])
        solution = posterior.solve(rows[best])
        values = np.round(log_of(rule(solution.mean, solution.variance)) + success[best], _DIGITS)
        choice = choose_maximum(values, solution.mean, solution.variance, self._ties(step))
        return replace(choice, row=int(solution.rows[choice.row]))
