"""A tuning before it runs: its cost, guarantee and expected errors, all of them public."""

from collections.abc import Callable
from dataclasses import dataclass, field

from blindopt.wire.base import Caution, GuaranteeKind
from curator_service.privacy.noise import OnProgress, ignore_progress
from curator_service.tuning.methods import cautions, guarantees
from curator_service.tuning.methods.draws import Draws
from curator_service.tuning.methods.problem import Evaluate, Objective, Problem


@dataclass(frozen=True, slots=True)
class ExpectedError:
    """Expected errors in units of the score, before anything is spent; None for what is not released."""

    index_gap: float | None
    """The mean gap between the best score and that of lambda~."""
    value: float | None
    """The mean absolute error of v~, as an estimate of the score that ``how`` names."""
    how: str
    """A sentence about how the errors were computed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a run. ``index`` and ``value`` may be released; the rest is private, for the owner alone."""

    index: int | None
    """Of lambda~ in the grid."""
    value: float | None
    """v~, in units of the score."""
    clipped: int = field(repr=False)
    """The number of scores outside the declared range: private. Counted by record where these are scored one by one."""
    evaluations: int
    """The number of evaluations: public."""


Released = tuple[int | None, float | None]
"""lambda~, as an index of the grid, and v~, in units of the score."""


@dataclass(frozen=True, slots=True)
class Search:
    """The part of a method that uses private scores: ``release`` evaluates so many, then draws lambda~ and v~."""

    evaluations: int
    release: Callable[[Objective, Draws], Released]


@dataclass(frozen=True, slots=True)
class Plan:
    """A method with all parameters, from public values alone. Charge ``draws.shares.total``, then ``run`` it once."""

    problem: Problem
    draws: Draws
    kind: GuaranteeKind
    guarantee: str
    """In words."""
    cautions: list[Caution]
    expected_error: ExpectedError
    search: Search
    repeated: bool = False
    """Whether each evaluation of a hyper-parameter needs a new score, because scores have noise of their own."""

    def run(self, evaluate: Evaluate, on_progress: OnProgress = ignore_progress) -> Outcome:
        """Evaluate scores, and draw lambda~ and v~. The scores do not leave.

        v~ is clipped to the range of the score after its noise was drawn. The range is public, so the clip changes
        neither charge nor promise: it is post-processing (Dwork & Roth 2014, Proposition 2.1).

        Raises TuningFailed, without private numbers in its text, for a score that is not a finite number; the cost is
        spent all the same. Errors of ``evaluate`` pass through.
        """
        evaluations = self.search.evaluations
        objective = Objective(self.problem, evaluate, on_progress, evaluations, self.repeated)
        index, value = self.search.release(objective, self.draws)
        if value is not None:
            value = min(max(value, self.problem.lower), self.problem.upper)
        return Outcome(index, value, objective.clipped, evaluations)


def worst_case_plan(
    problem: Problem,
    draws: Draws,
    search: Search,
    expected: ExpectedError,
    *,
    condition: str = "",
    warnings: tuple[Caution, ...] = (),
    repeated: bool = False,
) -> Plan:
    """The plan of a method with pure differential privacy, under a ``condition`` where it needs one."""
    return Plan(
        problem,
        draws,
        *guarantees.worst_case(draws, problem.records, condition),
        [*cautions.of_noise(draws.noise, problem.width), *cautions.of_cost(draws), *warnings],
        expected,
        search,
        repeated,
    )
