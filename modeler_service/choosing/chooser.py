"""What a run asks next: a pure function of its settings, its study, the candidates and the answers so far.

No clock, no database, no network: who has a run's record can derive every choice again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix, Rows
from blindopt.errors import Invalid
from blindopt.gp.acquisition import Choice, Estimate
from blindopt.gp.progress import NO_TICK, Tick
from modeler_service.algorithms.bandits.few_arms import FewArms
from modeler_service.algorithms.factory import Batching, Learner, algorithm_of, fitted_of, memory_of, warnings_of
from modeler_service.algorithms.gp.gp_ucb import GpUcb
from modeler_service.choosing import initial_design

Phase = Literal["initial", "algorithm"]
Because = Literal["budget", "exhausted", "target", "improvement"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A row to ask, and what made it the choice. Mean and sd are in units of the measurement."""

    phase: Phase
    row: int
    mean: float | None
    sd: float | None
    acquisition: float | None
    ties: int


class Plan(Protocol):
    """How rows are to be chosen: what a run's settings tell."""

    @property
    def algorithm(self) -> wire.AlgorithmSpec: ...
    @property
    def iterations(self) -> int: ...
    @property
    def initial_rows(self) -> int: ...
    @property
    def initial_design(self) -> Literal["random", "maximin"]: ...
    @property
    def seed(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def repeats(self) -> Literal["algorithm", "never", "after_all"]: ...
    @property
    def stop(self) -> wire.StopRules: ...
    @property
    def kernel(self) -> wire.Kernel | None: ...
    @property
    def fit(self) -> wire.Fit | None: ...


class Problem(Protocol):
    """What they are chosen among: what a study tells of its candidates and answers."""

    @property
    def n(self) -> int: ...
    @property
    def direction(self) -> Literal["maximize", "minimize"]: ...
    @property
    def kernel(self) -> wire.Kernel | None: ...
    @property
    def noise(self) -> wire.NoiseLaw: ...
    @property
    def answers(self) -> wire.Answers: ...
    @property
    def privacy_unit(self) -> Literal["row", "answer"]: ...


class Choosing:
    """Chooses the rows of one run.

    ``next`` tells the rows of the next query and changes nothing; ``observe`` takes an answer into account, ``decline``
    that there is none. After trials 1 .. k were observed or declined, in order, ``next`` tells what follows them,
    however often it was asked before; where an answer is corrected, another of its kind is shown all of them again. An
    empty answer ends the run; ``ended_because`` then says why. ``observations`` are known from the start.
    ``outcomes``: how many it will be shown, where that is known to be fewer than the run may ask.
    ``skipped``: so many steps came before, of which it is not shown the answers. ``tick`` is called after each part of
    what takes long, and may raise to end it.
    """

    def __init__(
        self,
        spec: Plan,
        study: Problem,
        candidates: Matrix,
        observations: Sequence[wire.Observation] = (),
        *,
        outcomes: int | None = None,
        skipped: int = 0,
        tick: Tick = NO_TICK,
    ) -> None:
        self._skipped, self._tick = skipped, tick
        self._spec, self._sign, self._n = spec, 1 if study.direction == "maximize" else -1, study.n
        self._asked = np.zeros(study.n, dtype=np.bool_)
        self._declined = np.empty(0, dtype=np.intp)
        self._sums: dict[int, tuple[float, int]] = {}
        self._best: float | None = None  # the best outcome, in the run's direction
        _check(observations, study.n)
        self._initial = self._design(candidates, np.unique([o.row for o in observations]).astype(np.intp))
        self.last = len(self._initial) + spec.iterations
        """The most trials."""
        most = len(observations) + self.last
        self._algorithm = algorithm_of(
            spec.algorithm,
            candidates,
            spec.kernel or study.kernel,
            sign=self._sign,
            seed=spec.seed,
            # To an algorithm over few arms it is the horizon, part of what it does; to others no more than room.
            capacity=most if outcomes is None or isinstance(spec.algorithm, wire.FewArmsSpec) else max(outcomes, 1),
            answers=study.answers,
            initial=len(observations) + len(self._initial),
            people=study.privacy_unit == "row",
            noise=study.noise,
            fit=spec.fit,
            tick=tick,
            again=spec.repeats == "after_all",
        )
        self.warnings = warnings_of(self._algorithm)
        self.seen = 0
        """How many trials it was told of: answers and declines."""
        self.outcomes = 0
        """How many outcomes it knows: answers and past observations."""
        self.ended_because: Because | None = None
        for past in observations:
            tick()
            own = past.noise_variance
            self._learn(past.row, past.y, None if own is None else wire.NoisePassport(measurement_variance=own))

    def _design(self, candidates: Matrix, known: Rows) -> Rows:
        spec, taken = self._spec, known if self._spec.repeats != "algorithm" else known[:0]
        if spec.initial_design == "random" or not spec.initial_rows:
            return initial_design.random_rows(self._n, spec.initial_rows, spec.seed, taken)
        return initial_design.maximin(candidates, spec.initial_rows, spec.seed, taken, self._tick)

    # --- choices ----------------------------------------------------------------------------------

    def next(self) -> list[Proposal]:
        """The rows of the next query, in order; none when the run has come to its end."""
        if self._at_target():
            return self._ends("target")
        if self.seen >= self.last:
            return self._ends("budget")
        if self.seen < len(self._initial):
            rows = self._initial[self.seen : self.seen + self._spec.batch_size]
            return [self._told("initial", Choice(int(row), None, None, None, 1)) for row in rows]
        step, pending = self._skipped + self.seen - len(self._initial) + 1, np.empty(0, dtype=np.intp)
        chosen: list[Choice] = []
        try:
            for place in range(min(self._spec.batch_size, self.last - self.seen)):
                self._tick()
                if not self._hide(pending) or (choice := self._algorithm.choose(step + place)) is None:
                    break
                if not place and self._is_good_enough(choice, step):
                    return self._ends("improvement")
                chosen.append(choice)
                pending = np.append(pending, choice.row)
                if self._spec.batch_size > 1:
                    assert isinstance(self._algorithm, Batching), "the settings were checked"
                    if place + 1 < min(self._spec.batch_size, self.last - self.seen):
                        self._algorithm.suppose(choice.row)
        finally:
            if isinstance(self._algorithm, Batching):
                self._algorithm.retract()
        return [self._told("algorithm", choice) for choice in chosen] or self._ends("exhausted")

    def observe(self, row: int, y: float, passport: wire.NoisePassport | None = None) -> None:
        """Take the answer of the next trial into account; y in units of the measurement."""
        self._learn(row, y, passport)
        self.seen += 1

    def decline(self, row: int) -> None:
        """The next trial has no answer: it counts as one, nothing is learnt of it, and its row is not asked again."""
        self._algorithm.decline(row)
        self._declined = np.union1d(self._declined, row)
        self.seen += 1

    def _learn(self, row: int, y: float, passport: wire.NoisePassport | None) -> None:
        outcome = self._sign * y
        self._algorithm.observe(row, outcome, passport)
        self._asked[row] = True
        total, count = self._sums.get(row, (0.0, 0))
        self._sums[row] = total + outcome, count + 1
        self._best = outcome if self._best is None else max(self._best, outcome)
        self.outcomes += 1

    def _hide(self, pending: Rows) -> bool:
        """Take from the algorithm what it may not ask; False where nothing is left."""
        repeats, declined = self._spec.repeats, self._declined
        if len(declined) == self._n:
            return False
        if repeats == "algorithm":
            if len(declined):
                self._algorithm.hide(declined)
            return True
        asked = np.flatnonzero(self._asked)
        hidden = np.union1d(np.union1d(asked, declined) if len(declined) else asked, pending)
        if len(hidden) == self._n:
            if repeats == "never":
                return False
            hidden = declined
        self._algorithm.hide(hidden)
        return True

    def _ends(self, because: Because) -> list[Proposal]:
        self.ended_because = because
        return []

    def _told(self, phase: Phase, choice: Choice) -> Proposal:
        mean = None if choice.mean is None else self._sign * choice.mean
        return Proposal(phase, choice.row, mean, choice.sd, choice.acquisition, choice.ties)

    # --- ends -------------------------------------------------------------------------------------

    def _at_target(self) -> bool:
        rules = self._spec.stop
        if rules.target is None or self._best is None:
            return False
        if rules.target_by == "observed":
            reached = self._best
        else:
            assert isinstance(self._algorithm, Learner), "the settings were checked"
            reached = self._algorithm.best(np.flatnonzero(self._asked)).mean
        return reached >= self._sign * rules.target

    def _is_good_enough(self, choice: Choice, step: int) -> bool:
        enough = self._spec.stop.improvement
        if enough is None or self._best is None:
            return False
        assert isinstance(self._algorithm, GpUcb), "the settings were checked"
        return self._algorithm.regret(choice, step, np.flatnonzero(self._asked)) <= enough

    # --- what is believed -------------------------------------------------------------------------

    @property
    def fitted(self) -> wire.Fitted | None:
        """The last fit of hyper-parameters that a choice was made with, if there is one."""
        return fitted_of(self._algorithm)

    @property
    def learner(self) -> Learner | None:
        """What the algorithm believes, in the direction of maximization; None for one that believes nothing."""
        return self._algorithm if isinstance(self._algorithm, Learner) else None

    def _best_observed(self) -> Estimate:
        means = {row: total / count for row, (total, count) in sorted(self._sums.items())}
        row = max(means, key=means.__getitem__)
        return Estimate(row, self._sign * means[row], None)

    @property
    def few_arms(self) -> bool:
        """Whether the learner is an algorithm over few arms, whose estimates are its own."""
        return isinstance(self._algorithm, FewArms)

    @property
    def sign(self) -> int:
        """-1 where y is minimized."""
        return self._sign

    def best(self, over: Literal["asked", "all"]) -> Estimate | None:
        """The row of the best mean among those asked, or all; None before an outcome, and where nothing is known.

        In units of the measurement. Without a learner, that of the best mean of its outcomes.
        """
        if not self.outcomes:
            return None
        if self.learner is None:
            return self._best_observed() if over == "asked" else None
        found = self.learner.best(np.arange(self._n) if over == "all" else np.flatnonzero(self._asked))
        return Estimate(found.row, self._sign * found.mean, found.sd)


def memory_needed(spec: wire.RunSpec, study: wire.StudyView, observations: int) -> int:
    """Bytes that the choices of a run need at most, about."""
    most = spec.iterations + min(spec.initial_rows, study.n) + observations
    return memory_of(spec.algorithm, study.n, study.r, most)


def _check(observations: Sequence[wire.Observation], n: int) -> None:
    for place, past in enumerate(observations, start=1):
        if past.row >= n:
            raise Invalid(f"past observation {place}: its row is not in the release, which has rows 0 to {n - 1}")
