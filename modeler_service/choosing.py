"""What a run asks next: a pure function of its settings, its study, the candidates and the answers so far.

No clock, no database, no network: who has a run's record can derive every choice again.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from modeler_service.algorithms.algorithm import algorithm_of, warnings_of
from modeler_service.algorithms.random_rows import RandomRows
from modeler_service.algorithms.thompson import Thompson
from shared import wire
from shared.acquisition import Choice
from shared.matrix import Matrix

Phase = Literal["initial", "algorithm"]
Because = Literal["budget", "exhausted"]


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
    def seed(self) -> int: ...
    @property
    def kernel(self) -> wire.Kernel | None: ...


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

    ``next`` tells the rows of the next query and changes nothing; ``observe`` takes one answer into account. After the
    answers to trials 1 .. k were observed, in order, ``next`` tells what follows them, however often it was asked
    before. An empty answer ends the run; ``ended_because`` then says why. ``skipped``: so many steps came before, of
    which it is not shown the answers.
    """

    def __init__(self, spec: Plan, study: Problem, candidates: Matrix, *, skipped: int = 0) -> None:
        self._skipped = skipped
        self._sign = 1 if study.direction == "maximize" else -1
        self._initial = np.random.default_rng([spec.seed, 0]).permutation(study.n)[: spec.initial_rows]
        self.last = len(self._initial) + spec.iterations
        """The most trials."""
        self._algorithm = algorithm_of(
            spec.algorithm,
            candidates,
            spec.kernel or study.kernel,
            sign=self._sign,
            seed=spec.seed,
            capacity=self.last,
            answers=study.answers,
            initial=len(self._initial),
            people=study.privacy_unit == "row",
            noise=study.noise,
        )
        self.warnings = warnings_of(self._algorithm)
        self.seen = 0
        """How many answers it has observed."""
        self.ended_because: Because | None = None

    def next(self) -> list[Proposal]:
        """The rows of the next query, in order; none when the run has come to its end."""
        if self.seen >= self.last:
            self.ended_because = "budget"
            return []
        if self.seen < len(self._initial):
            return [self._told("initial", Choice(int(self._initial[self.seen]), None, None, None, 1))]
        choice = self._algorithm.choose(self._skipped + self.seen - len(self._initial) + 1)
        if choice is None:
            self.ended_because = "exhausted"
            return []
        return [self._told("algorithm", choice)]

    def observe(self, row: int, y: float, passport: wire.NoisePassport | None = None) -> None:
        """Take the answer of the next trial into account; y in units of the measurement."""
        self._algorithm.observe(row, self._sign * y, passport)
        self.seen += 1

    def pend(self, proposal: Proposal, passport: wire.NoisePassport | None = None) -> None:
        """Go on as if a proposed row had been answered with its posterior mean, under the noise of ``passport``.

        The mean stays and the variance falls: GP-BUCB, Desautels, Krause & Burdick (2014). Thompson's draws
        differ by themselves, from one posterior; an initial row has no mean, and stays unknown.
        """
        if proposal.mean is None:
            if isinstance(self._algorithm, RandomRows):
                self._algorithm.observe(proposal.row, 0.0)
        elif not isinstance(self._algorithm, Thompson):
            self._algorithm.observe(proposal.row, self._sign * proposal.mean, passport)
        self.seen += 1

    def _told(self, phase: Phase, choice: Choice) -> Proposal:
        mean = None if choice.mean is None else self._sign * choice.mean
        return Proposal(phase, choice.row, mean, choice.sd, choice.acquisition, choice.ties)
