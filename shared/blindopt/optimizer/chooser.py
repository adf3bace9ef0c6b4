"""Chooses the rows of a run's next query: a pure function of settings, study, candidates and the answers so far.

It uses no clock, no database and no network: anyone who has a run's record can derive every choice again.
"""

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix, Rows, Vector
from blindopt.errors import Invalid, NumericalFailure, ProtocolViolated
from blindopt.gp.acquisition import Choice, Estimate
from blindopt.gp.candidates import column_scales
from blindopt.gp.parts import Executor
from blindopt.gp.progress import NO_TICK, Tick
from blindopt.optimizer.algorithms.bandits.few_arms import FewArms
from blindopt.optimizer.algorithms.factory import BatchAlgorithm, Learner, build_algorithm, memory_of
from blindopt.optimizer.algorithms.gp.rules import GpRule, GpUcb, probability_above, sample_of, threshold_of
from blindopt.optimizer.algorithms.gp.surrogate import Averaged, OutcomeUnit
from blindopt.optimizer.algorithms.random_rows import RandomRows
from blindopt.optimizer.algorithms.settings import AlgorithmSettings
from blindopt.optimizer.defaults import INITIAL_ROWS, Study, exact_answers, group_answers, own_residual, plan_of_run
from blindopt.optimizer.run_warnings import LAST, RunWarning, failure_warnings, model_warnings, repeat_warnings

_BLOCK = 1 << 17  # numbers read at a time
_FOUND_DIGITS = 6
_FAR = 1_000  # standard deviations of the difference of two draws, which no pair of them reaches
Over = Literal["asked", "all"]


def random_rows(n: int, count: int, seed: int, taken: Rows) -> Rows:
    """Uniform random rows without repetition, none of ``taken``; fewer than ``count`` if no more remain."""
    order = np.random.default_rng([seed, 0]).permutation(n)
    return (order[~np.isin(order, taken)] if len(taken) else order)[:count]


def maximin(
    candidates: Matrix,
    count: int,
    seed: int,
    taken: Rows,
    tick: Tick = NO_TICK,
    *,
    scales: Vector | None = None,
    keeps_away: bool = False,
    block: int = _BLOCK,
) -> Rows:
    """Rows far from each other: a random first row, then each time the row farthest from those chosen.

    Greedy farthest points: the smallest distance within the design is at least half the largest that any design of
    that size has (Gonzalez 1985). Of equals the first row is taken. None of ``taken``; a design that ``keeps_away``
    from these begins as far from them as it goes on. Columns are multiplied by ``scales`` (r,) first. O(n r) a row,
    with a ``tick`` for each, in parts of ``block`` numbers.
    """
    n, r = candidates.shape
    first = random_rows(n, 1, seed, taken)
    count = min(count, n - len(np.unique(taken)))
    if not count:
        return first[:0]
    seen = len(np.unique(taken)) if keeps_away else 0
    rows: list[int] = np.unique(taken).tolist() if seen else first.tolist()
    size = max(1, block // max(1, r))
    nearest = np.full(n, np.inf)  # squared distance to the nearest chosen row; -1 for rows that may not be chosen
    nearest[taken] = -1.0
    for number in itertools.count(1):
        tick()
        newest = rows[number - 1]
        nearest[newest] = -1.0
        if number == seen + count:
            break
        for start in range(0, n, size):
            with np.errstate(over="ignore", invalid="ignore"):
                difference = np.asarray(candidates[start : start + size]) - candidates[newest]
                if scales is not None:
                    difference *= scales
                squared = np.einsum("ij,ij->i", difference, difference)
            if not np.isfinite(squared).all():
                raise NumericalFailure("the candidates hold a number that is not finite, or lie too far apart")
            block_nearest = nearest[start : start + size]
            np.minimum(block_nearest, squared, out=block_nearest)
        if number == len(rows):
            rows.append(int(nearest.argmax()))
    return np.array(rows[seen:], dtype=np.intp)


Phase = Literal["initial", "algorithm"]
EndReason = Literal["budget", "exhausted", "target", "improvement", "found", "least_probability"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A row to query, and the values that led to its choice. Mean and sd are in units of the measurement.

    >>> Proposal(phase="initial", row=3, mean=None, sd=None, acquisition=None, ties=1).row
    3
    """

    phase: Phase
    row: int
    mean: float | None
    sd: float | None
    acquisition: float | None
    ties: int
    probability: float | None = None
    """That the row is good, which people who measure see: where they do, and study and run look for the same."""


_PUBLISHED = wire.GpUcb | wire.GpBucb | wire.RandomRows | wire.FewArmsSpec
"""Algorithms that may ask for a candidate again although its answer would be the same, as their authors wrote them."""


class RowChooser:
    """Chooses the rows of one run.

    ``next`` returns the rows of the next query and changes nothing; ``observe`` takes an answer into account, and
    ``decline`` notes that a row has none. After trials 1 .. k were observed or declined, in order, ``next`` returns the
    same rows however often it was called before; after a correction, another chooser is shown all answers again. An
    empty list ends the run; ``ended_because`` then says why. ``observations`` are measurements from before the run,
    and ``declined`` are rows that had none.
    ``outcomes`` is the number of outcomes it will be shown, where that is fewer than the run may ask for.
    ``tick`` is called after each part of a long computation, and may raise to end it. ``plan`` is that of the run;
    None: ``plan_for`` makes it. ``executor`` holds the candidates, where the algorithm can divide them;
    no choice depends on it.
    """

    def __init__(
        self,
        spec: wire.RunSpec,
        study: Study,
        candidates: Matrix,
        observations: Sequence[wire.Observation] = (),
        *,
        declined: Sequence[int] = (),
        plan: wire.Plan | None = None,
        outcomes: int | None = None,
        tick: Tick = NO_TICK,
        executor: Executor | None = None,
    ) -> None:
        self._tick = tick
        self._spec, self.sign, self._n = spec, 1 if study.direction == "maximize" else -1, study.n
        self.study = study
        self.plan = plan = plan or plan_of_run(spec, study, observations)
        self._declined = np.empty(0, dtype=np.intp)
        self._left_out = _rows(study.left_out if isinstance(study, wire.StudyView) else ())
        declined = [*self._left_out, *declined]
        self._answered = np.zeros(study.n if plan.answers_per_row else 0, dtype=np.intp)
        """Answers about each row, where a cap counts them."""
        self._sums: dict[int, tuple[float, int]] = {}  # of the outcomes of each row, in the run's direction
        self._exact_values: dict[int, float] = {}  # exact outcomes, in units of the measurement
        self._exact_rows: Rows = np.empty(0, dtype=np.intp)  # rows whose outcome the caller reported as exact
        self._outcomes: list[float] = []  # in the run's direction
        self._candidates, self._second_draws = candidates, dict[int, Vector]()
        _check(observations, study.n)
        observed = _rows([observation.row for observation in observations])
        self._initial = self._design(study, candidates, observed, _rows(declined))
        iterations = spec.iterations_after(len(self._initial))
        self.last = len(self._initial) + iterations
        """The largest number of trials."""
        outcomes_max = len(observations) + self.last
        if outcomes is not None and not isinstance(plan.algorithm, wire.FewArmsSpec):
            # To an algorithm over few arms it is the horizon, part of what it computes; to others only memory.
            outcomes_max = max(outcomes, 1)
        may_repeat = plan.repeats == "algorithm" or (plan.repeats == "after_all" and self.last > study.n)
        self._algorithm = build_algorithm(
            plan.algorithm,
            candidates,
            AlgorithmSettings(
                spec.kernel or study.kernel,
                sign=self.sign,
                seed=spec.seed or 0,
                capacity=outcomes_max,
                horizon=iterations,
                answers=study.answers,
                initial=self._first_outcomes(len(observations)),
                # Answers about a row add up only if there is more than one.
                unit_is_row=study.privacy_unit == "row" and may_repeat,
                noise=study.noise,
                refine_sd=None if study.refine is None else study.refine.sd,
                fit=plan.fit,
                tick=tick,
                repeats=plan.repeats == "after_all",
                exact=own_residual(study),
                engine=plan.engine,
                executor=executor,
                goal=plan.goal,
            ),
        )
        self._asks_once = exact_answers(study) and not isinstance(plan.algorithm, _PUBLISHED)
        self._is_exact = exact_answers(study)
        self._answers_least = 1 if isinstance(study.answers, wire.NoAnswerNoise) or group_answers(study) else 2
        self._repeated: deque[bool] = deque(maxlen=LAST)  # of the last trials
        self.seen = 0
        """The number of trials so far, answered and declined."""
        self.outcomes = 0
        """The number of outcomes so far: answers and past observations."""
        self.ended_because: EndReason | None = None
        for past in observations:
            tick()
            self.remember(past)
        for row in declined:
            self.rule_out(row)

    def _design(self, study: Study, candidates: Matrix, observed: Rows, declined: Rows) -> Rows:
        plan, seed = self.plan, self._spec.seed or 0
        taken = np.union1d(observed, declined) if plan.repeats != "algorithm" else declined
        if plan.initial_design == "random" or not plan.initial_rows:
            return random_rows(self._n, plan.initial_rows, seed, taken)
        if plan.engine < 3:
            return maximin(candidates, plan.initial_rows, seed, taken, self._tick)
        # Noise is as large in each column, so that those of noisy candidates keep their common unit.
        scales = column_scales(candidates) if study.noise.family == "none" else None
        past, count = np.union1d(observed, declined), plan.initial_rows
        spread = count - count // 2 if plan.initial_design == "mixed" else count
        rows = maximin(candidates, spread, seed, past, self._tick, scales=scales, keeps_away=True)
        return np.concatenate([rows, random_rows(self._n, count - spread, seed, np.union1d(past, rows))])

    def _first_outcomes(self, past: int) -> int:
        """How many outcomes belong to rows that the algorithm did not choose.

        From version 3 on a rule counts past outcomes as initial ones up to the number that it would query itself: a
        search that goes on from its history fits when it would have fitted.
        """
        initial = len(self._initial)
        if self.plan.engine < 3 or isinstance(self.plan.algorithm, wire.FewArmsSpec):
            return past + initial
        return initial + min(past, max(INITIAL_ROWS - initial, 0))

    # --- choices ----------------------------------------------------------------------------------

    def next(self) -> list[Proposal]:
        """Return the rows of the next query, in order; none when the run ends."""
        if self._at_target():
            return self._ends("target")
        if (good := self._spec.stop.found) is not None and self.outcomes > 0 and self.count_good() >= good:
            return self._ends("found")
        if self.seen >= self.last:
            return self._ends("budget")
        if rows := self._initial_rows():
            return [self._proposal("initial", Choice(row, None, None, None, 1)) for row in rows]
        step, pending = max(self.seen - len(self._initial), 0) + 1, np.empty(0, dtype=np.intp)
        size = min(self._spec.batch_size, self.last - self.seen)
        choices: list[Choice] = []
        try:
            for index in range(size):
                self._tick()
                if not self._hide(pending) or (choice := self._algorithm.choose(step + index)) is None:
                    break
                if not index and self._is_good_enough(choice, step):
                    return self._ends("improvement")
                if not index and self._is_hopeless(choice, step):
                    return self._ends("least_probability")
                choices.append(choice)
                pending = np.append(pending, choice.row)
                if self._spec.batch_size > 1:
                    assert isinstance(self._algorithm, BatchAlgorithm), "the settings were checked"
                    if index + 1 < size:
                        self._algorithm.suppose(choice.row)
        finally:
            if isinstance(self._algorithm, BatchAlgorithm):
                self._algorithm.retract()
        return [self._proposal("algorithm", choice) for choice in choices] or self._ends("exhausted")

    def _initial_rows(self) -> list[int]:
        """The next rows of the initial design, without those that others than a run have observed already."""
        rows = map(int, self._initial[self.seen : self.seen + self._spec.batch_size])
        if self.plan.repeats == "algorithm":
            most = self.plan.answers_per_row
            return [row for row in rows if most is None or self._answered[row] < most]
        return [row for row in rows if row not in self._sums and row not in self._declined]

    def observe(self, row: int, y: float, passport: wire.NoisePassport | None = None) -> None:
        """Take the answer of the next trial into account; y in units of the measurement."""
        self._repeated.append(row in self._sums)
        self._learn(row, y, passport)
        self._note(row, y, passport)
        self.seen += 1

    def decline(self, row: int) -> None:
        """Count the next trial as one without an answer: its row is not chosen again."""
        self.rule_out(row)
        self.seen += 1

    def remember(self, past: wire.Observation) -> None:
        """Take a measurement into account that is no trial: one from before the run, or beside it."""
        self._learn(past.row, past.y, passport_of(past))
        if past.passport is not None:  # an earlier run of the study has it from the curator
            self._note(past.row, past.y, past.passport)

    def rule_out(self, row: int) -> None:
        """Note that a row has no outcome: it is not chosen again."""
        self._algorithm.decline(row)
        self._declined = np.union1d(self._declined, row)

    def show(self, row: int, answer: wire.Answer | None) -> None:
        """Take the answer of the next trial into account; None: it was declined.

        Raises ProtocolViolated where the curator has not sent the second draw that the study has, or another one.
        """
        if answer is None:
            self.decline(row)
        else:
            if self.study.refine is not None and answer.passport.z is None:
                raise ProtocolViolated(f"the curator sent no second draw of candidate {row}")
            self.observe(row, answer.y, answer.passport)

    def _learn(self, row: int, y: float, passport: wire.NoisePassport | None) -> None:
        outcome = self.sign * y
        if self.study.refine is not None and passport is not None and passport.z is not None:
            self._refine(row, np.array(passport.z), self.study.refine.sd)
        self._algorithm.observe(row, outcome, passport)
        total, count = self._sums.get(row, (0.0, 0))
        self._sums[row] = total + outcome, count + 1
        self._outcomes.append(outcome)
        self.outcomes += 1
        is_exact = passport is not None and not (passport.measurement_variance or passport.privacy.variance)
        if is_exact and not isinstance(self.study, wire.StudyView):
            self._exact_rows = np.union1d(self._exact_rows, row)

    def _refine(self, row: int, z: Vector, sd: float) -> None:
        """Take the second draw of a candidate into account. Raises ProtocolViolated for one that is none of it."""
        first = np.asarray(self._candidates[row])
        if z.shape != first.shape or not np.abs(z - first).max() <= _FAR * np.hypot(sd, self.study.noise.sd or 0.0):
            raise ProtocolViolated(f"the curator sent a second draw of candidate {row} that is none of it")
        if not np.array_equal(self._second_draws.setdefault(row, z), z):
            raise ProtocolViolated(f"the curator sent two different second draws of candidate {row}")
        if isinstance(self._algorithm, GpRule):
            self._algorithm.refine(row, z)

    def _note(self, row: int, y: float, passport: wire.NoisePassport | None) -> None:
        """Note what an answer of the curator says beyond its outcome."""
        if self._asks_once and (passport is None or not (passport.measurement_variance or passport.privacy.variance)):
            self._exact_values[row] = y
        self._count(row)

    def _count(self, row: int) -> None:
        if (most := self.plan.answers_per_row) is None:
            return
        self._answered[row] += 1
        if isinstance(self._algorithm, RandomRows) and self._answered[row] >= most:
            self._algorithm.decline(row)  # it hides no rows, and chooses none again that was declined

    @property
    def _observed(self) -> Rows:
        return _rows(list(self._sums))

    def _hide(self, pending: Rows) -> bool:
        """Hide from the algorithm the rows that it may not choose; False if no row remains."""
        repeats = "never" if self._asks_once else self.plan.repeats
        declined = self._declined
        if len(self._answered):  # another query of a row whose answers and pending queries reach its cap is refused
            queried = self._answered + np.bincount(pending, minlength=self._n)
            declined = np.union1d(declined, np.flatnonzero(queried >= (self.plan.answers_per_row or 1)))
        if len(declined) == self._n:
            return False
        if repeats == "algorithm":
            if self._spec.repeats == "algorithm" or isinstance(self._algorithm, FewArms):
                hidden = declined
            elif len(hidden := np.union1d(declined, pending)) == self._n:
                return False  # the same candidate twice in a query is for runs that ask for it
            if len(hidden) or self._spec.batch_size > 1:
                self._algorithm.hide(hidden)
            return True
        hidden = np.union1d(np.union1d(self._observed, declined) if len(declined) else self._observed, pending)
        if len(hidden) == self._n:
            again = np.union1d(np.union1d(declined, pending), self._exact_rows)
            if repeats == "never" or len(again) == self._n:
                return False
            hidden = again
        self._algorithm.hide(hidden)
        return True

    def _ends(self, because: EndReason) -> list[Proposal]:
        self.ended_because = because
        return []

    def _proposal(self, phase: Phase, choice: Choice) -> Proposal:
        mean = None if choice.mean is None else self.sign * choice.mean
        study, probability = self.study, None
        if isinstance(study, wire.StudyView) and study.measurement_source != "column" and study.goal == self.plan.goal:
            probability = self._probability(choice)
        return Proposal(phase, choice.row, mean, choice.sd, choice.acquisition, choice.ties, probability)

    # --- stop rules -------------------------------------------------------------------------------

    def _at_target(self) -> bool:
        rules = self._spec.stop
        if rules.target is None or not self._outcomes:
            return False
        if rules.target_by == "observed":
            reached = max(self._outcomes)
        else:
            assert isinstance(self._algorithm, Learner), "the settings were checked"
            reached = self._algorithm.best(self._observed).mean
        return reached >= self.sign * rules.target

    def _is_good_enough(self, choice: Choice, step: int) -> bool:
        rules = self._spec.stop
        if not self._outcomes:
            return False
        if rules.improvement is not None:
            assert isinstance(self._algorithm, GpUcb), "the settings were checked"
            return self._algorithm.regret(choice, step, self._observed) <= rules.improvement
        if rules.expected_improvement is not None:
            assert isinstance(self._algorithm, GpRule), "the settings were checked"
            spread = OutcomeUnit.of(np.array(self._outcomes)).sd if np.ptp(self._outcomes) > 0 else 0.0
            return self._algorithm.expected_improvement(choice, step) < rules.expected_improvement * spread
        return False

    def _is_hopeless(self, choice: Choice, step: int) -> bool:
        least = self._spec.stop.least_probability
        if least is None or not isinstance(self._algorithm, GpRule) or not self._algorithm.reaches_at(step):
            return False
        probability = self._probability(choice)
        return probability is not None and probability < least

    def _probability(self, choice: Choice) -> float | None:
        """Probability that a choice is good, without optimism; None for another goal, and without a posterior."""
        if (
            choice.sd is None
            or not isinstance(self.plan.goal, wire.FindMany)
            or not isinstance(self._algorithm, GpRule)
        ):
            return None
        mean, sd = np.array([choice.mean]), np.array([choice.sd])
        return round(float(probability_above(mean, sd, self._algorithm.threshold)[0]), _FOUND_DIGITS)

    # --- warnings ---------------------------------------------------------------------------------

    @property
    def run_warnings(self) -> list[RunWarning]:
        if not isinstance(self._algorithm, GpRule):
            return []
        warnings = model_warnings(self._algorithm.surrogate, self.study.answers)
        warnings += failure_warnings([self.sign * y for y in self._algorithm.far_below], self.sign)
        if len(self._sums) < self._n:
            warnings += repeat_warnings(self._repeated, exact=self._is_exact)
        return warnings

    @property
    def warnings(self) -> list[str]:
        """Warnings about the algorithm for this study, and those that follow from the answers so far, in words."""
        of_algorithm = self._algorithm.warnings if isinstance(self._algorithm, FewArms) else []
        return [*of_algorithm, *(warning.text for warning in self.run_warnings)]

    # --- estimates --------------------------------------------------------------------------------

    @property
    def fitted(self) -> wire.Fitted | None:
        """The last fit of hyper-parameters that a choice was made with, if there is one."""
        return self._algorithm.fitted if isinstance(self._algorithm, GpRule) else None

    @property
    def learner(self) -> Learner | None:
        """The algorithm, if it estimates f (in the direction of maximization); None otherwise."""
        return self._algorithm if isinstance(self._algorithm, Learner) else None

    def _best_observed(self) -> Estimate | None:
        """The best mean of a candidate's answers; where they are single randomized values, of two: one says little."""
        least, sums = self._answers_least, sorted(self._sums.items())
        means = {row: total / count for row, (total, count) in sums if count >= least}
        if not means:
            return None
        row = max(means, key=means.__getitem__)
        return Estimate(row, self.sign * means[row], None)

    @property
    def few_arms(self) -> bool:
        """Whether the learner is an algorithm over few arms, whose estimates are its own."""
        return isinstance(self._algorithm, FewArms)

    def averaged(self) -> Averaged | None:
        """The best queried row and its outcomes, averaged over hyper-parameters; None where they are not fitted."""
        return self._algorithm.surrogate.averaged() if isinstance(self._algorithm, GpRule) else None

    def known_value(self, row: int) -> float | None:
        """The exact outcome of a queried row, in units of the measurement; None without one, and by older rules."""
        return self._exact_values.get(row) if self.plan.engine > 2 else None

    @property
    def threshold(self) -> float:
        """What a run that looks for many counts as good, in its own direction; estimated where a share is good."""
        goal, algorithm = self.plan.goal, self._algorithm
        assert isinstance(goal, wire.FindMany), "only such a goal has a threshold"
        if goal.share is None:
            assert goal.threshold is not None, "a goal has one of them"
            return self.sign * goal.threshold
        if isinstance(algorithm, GpRule):
            return algorithm.threshold
        if isinstance(algorithm, Learner):
            return threshold_of(*algorithm.moments(sample_of(self._n, self._spec.seed or 0)), goal.share)
        return float(np.quantile(self._outcomes, 1.0 - goal.share))

    def chances(self, rows: Rows, threshold: float) -> tuple[Vector, Vector]:
        """Means of outcomes of rows (m,), in the run's direction, and probabilities that they reach a threshold.

        Of a row whose outcome is known exactly it is 0 or 1; so it is of the mean answer where nothing is estimated.
        """
        if isinstance(self._algorithm, Learner):
            mean, sd = self._algorithm.moments(rows)
        else:
            mean, sd = np.array([self._sums[row][0] / self._sums[row][1] for row in rows.tolist()]), np.zeros(len(rows))
        exact = {row: self._sums[row][0] / self._sums[row][1] for row in self._exact_rows.tolist()}
        exact |= {row: self.sign * value for row, value in self._exact_values.items()}
        _, at, which = np.intersect1d(rows, _rows(list(exact)), assume_unique=True, return_indices=True)
        mean[at], sd[at] = np.array([exact[row] for row in sorted(exact)])[which], 0.0
        return mean, probability_above(mean, sd, threshold)

    def candidates_over(self, over: Over) -> Rows:
        """The queried candidates, or all; not those without an outcome, and those that the owner withheld."""
        rows = np.arange(self._n) if over == "all" else self._observed
        rows = np.setdiff1d(rows, self._left_out) if len(self._left_out) else rows
        if self.plan.engine >= 3 and isinstance(self._algorithm, GpRule):
            rows = np.setdiff1d(rows, self._algorithm.failed)
        return rows

    def count_good(self) -> float:
        """Number of good candidates among the queried ones: the expected one where outcomes are not exact."""
        return round(float(self.chances(self.candidates_over("asked"), self.threshold)[1].sum()), _FOUND_DIGITS)

    def best(self, over: Over) -> Estimate | None:
        """Return the row of the best mean among those observed, or among all; None without an estimate.

        In units of the measurement. Without a learner it is the best mean of the outcomes of a row.
        """
        if not self.outcomes:
            return None
        if self.learner is None:
            return self._best_observed() if over == "asked" else None
        estimate = self.learner.best(self.candidates_over(over))
        return Estimate(estimate.row, self.sign * estimate.mean, estimate.sd)


def memory_needed(plan: wire.Plan, iterations: int, study: wire.StudyView, observations: int) -> int:
    """Estimate the most bytes that the choices of a run need."""
    outcomes = iterations + min(plan.initial_rows, study.n) + observations
    return memory_of(plan.algorithm, study.n, study.r, outcomes)


def memory_problem(plan: wire.Plan, iterations: int, study: wire.StudyView, observations: int, most: int) -> str | None:
    """Say why a run needs more than ``most`` bytes, and how many queries it may make; None if it does not."""
    if (needed := memory_needed(plan, iterations, study, observations)) <= most:
        return None
    low, high = 0, iterations
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if memory_needed(plan, middle, study, observations) <= most else (low, middle)
    hint = f"ask for {low:,} at most" if low else "they do not fit with any number of queries"
    size = f"{study.n:,} candidates and {iterations:,} queries need {needed / 1e9:.2g} GB"
    return f"{size}; the limit is {most / 1e9:.2g} GB: {hint}"


def passport_of(past: wire.Observation) -> wire.NoisePassport | None:
    """Return the noise description of a past measurement; None if nothing is said of its noise."""
    variance = past.noise_variance
    return past.passport if variance is None else wire.NoisePassport(measurement_variance=variance)


def _rows(numbers: Sequence[int]) -> Rows:
    return np.unique(np.array(numbers, dtype=np.intp))


def _check(observations: Sequence[wire.Observation], n: int) -> None:
    for number, past in enumerate(observations, start=1):
        if past.row >= n:
            raise Invalid(f"past observation {number}: its row is not in the release, which has rows 0 to {n - 1}")


QUANTILE = 1.959963984540054  # of a normal, for 95 %


def recommendation_of(chooser: RowChooser, over: Over) -> wire.Recommendation | None:
    """Return the row of the best mean; None before the first outcome, and if the algorithm has no estimate.

    Of queried rows, mean and intervals are averaged over hyper-parameters where these are fitted.
    """
    if (best := chooser.best(over)) is None:
        return None
    by: Literal["posterior", "estimate", "observed"] = "posterior"
    if chooser.learner is None:
        by = "observed"
    elif chooser.few_arms:
        by = "estimate"
    row, mean, sd, sign = best.row, best.mean, best.sd, chooser.sign
    kind: wire.IntervalKind = "model"
    interval: list[float] | None = None
    following: list[float] | None = None
    if over == "asked" and (averaged := chooser.averaged()) is not None:
        row, mean, sd = averaged.row, sign * averaged.mean, averaged.outcome.sd
        interval = sorted(sign * end for end in averaged.outcome.interval())
        following = sorted(sign * end for end in averaged.next_outcome.interval())
    elif sd is not None and np.isfinite(mean - QUANTILE * sd) and np.isfinite(mean + QUANTILE * sd):
        interval = [mean - QUANTILE * sd, mean + QUANTILE * sd]
    if (value := chooser.known_value(row)) is not None:
        mean, sd, kind, interval, following = value, 0.0, "known", [value, value], [value, value]
    if not np.isfinite([mean, *(interval or ()), *(following or ())]).all():
        raise NumericalFailure("the recommended outcome is beyond the largest number")
    recommendation = wire.Recommendation(
        row=row,
        over=over,
        by=by,
        mean=mean,
        sd=sd,
        interval=interval,
        next_interval=following,
        interval_kind=kind,
        outcomes=chooser.outcomes,
        good=good_candidates_of(chooser),
    )
    return _in_public_range(recommendation, chooser.study.answers)


def _in_public_range(recommendation: wire.Recommendation, answers: wire.Answers) -> wire.Recommendation:
    """Clip mean and limits to the ranges of mean outcomes and measurements that a study of private answers states."""
    if isinstance(answers, wire.NoAnswerNoise):
        return recommendation

    def clipped(numbers: list[float], reach: float) -> list[float]:
        return [min(max(number, answers.centre - reach), answers.centre + reach) for number in numbers]

    changes: dict[str, Any] = {
        "mean": clipped([recommendation.mean], answers.value_bound)[0],
        "interval": recommendation.interval and clipped(recommendation.interval, answers.value_bound),
        "next_interval": recommendation.next_interval and clipped(recommendation.next_interval, answers.bound),
    }
    if (good := recommendation.good) is not None:
        means = clipped([candidate.mean for candidate in good.candidates], answers.value_bound)
        pairs = zip(good.candidates, means, strict=True)
        listed = [candidate.model_copy(update={"mean": mean}) for candidate, mean in pairs]
        changes["good"] = good.model_copy(update={"candidates": listed})
    return recommendation.model_copy(update=changes)


def learner_of(chooser: RowChooser) -> Learner:
    """Return the algorithm of a run, which estimates f. Raises Invalid if it does not."""
    if chooser.learner is None:
        raise Invalid("the algorithm of this run estimates nothing")
    return chooser.learner


def points_of(chooser: RowChooser, rows: Rows) -> list[wire.PosteriorPoint]:
    """Return posterior moments of f at some rows, in units of the measurement. Raises Invalid without estimates."""
    mean, sd = learner_of(chooser).moments(rows)
    return [
        wire.PosteriorPoint(row=int(row), mean=float(chooser.sign * m), sd=float(s))
        for row, m, s in zip(rows, mean, sd, strict=True)
    ]


def good_candidates_of(chooser: RowChooser) -> wire.GoodCandidates | None:
    """Return the good candidates of a run that looks for many; None before the first outcome, and for another goal.

    Others than queried ones are listed where the algorithm estimates outcomes. Equal ones are in order of their
    numbers.
    """
    if not chooser.outcomes or not isinstance(chooser.plan.goal, wire.FindMany):
        return None
    threshold, queried = chooser.threshold, chooser.candidates_over("asked")
    others = np.empty(0, dtype=np.intp)
    if chooser.learner is not None:
        others = np.setdiff1d(chooser.candidates_over("all"), queried)
    good: list[wire.GoodCandidate] = []
    expected = 0.0
    for rows, most in ((queried, wire.GOOD_MAX), (others, wire.PREDICTED_MAX)):
        mean, probability = chooser.chances(rows, threshold)
        if rows is queried:
            expected = round(float(probability.sum()), _FOUND_DIGITS)
        probability = np.round(probability, _FOUND_DIGITS)
        order = np.argsort(-probability, kind="stable")
        good += [
            wire.GoodCandidate(
                row=int(rows[index]),
                mean=chooser.sign * float(mean[index]),
                probability=float(probability[index]),
                queried=rows is queried,
            )
            for index in order[: min(most, int(np.count_nonzero(probability >= 0.5)))].tolist()
        ]
    share, by_chance = chooser.plan.goal.share, None
    if share is None and chooser.learner is not None:
        share = float(chooser.chances(sample_of(chooser.study.n, 0), threshold)[1].mean())
    if share is not None:
        by_chance = round(share * len(queried), _FOUND_DIGITS)
    return wire.GoodCandidates(
        threshold=chooser.sign * threshold, found=expected, queries=len(queried), by_chance=by_chance, candidates=good
    )
