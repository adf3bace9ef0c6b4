"""A tuning before it is run: what it costs, promises and is expected to achieve; all of it public."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from blindopt.wire.tuning_methods import TuningSpec
from curator_service.tuning.problem import Evaluate, Problem, Progress


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one release, or of both: exact decimals, for replacing one record."""

    epsilon: Decimal
    delta: Decimal = Decimal(0)

    def __add__(self, other: "Cost") -> "Cost":
        """Basic composition."""
        return Cost(self.epsilon + other.epsilon, self.delta + other.delta)


def text(number: Decimal) -> str:
    """Without an exponent or trailing zeros.

    >>> text(Decimal("0.500")), text(Decimal("1E+1")), text(Decimal("1e-9"))
    ('0.5', '10', '0.000000001')
    """
    return f"{number.normalize():f}"


@dataclass(frozen=True, slots=True)
class Noise:
    """Sensitivities and scales in units of the score; None for what is not released.

    lambda~ is drawn with weights exp(score / index_scale), or by permute-and-flip of that scale; v~ has Laplace noise
    of density exp(-|x| / value_scale). A scale holds a little more than sensitivity / epsilon, for the lattice.
    """

    index_sensitivity: float | None
    index_scale: float | None
    value_sensitivity: float | None
    value_scale: float | None
    constants: Mapping[str, float] = field(default_factory=dict)
    """What they were made of, by the paper's names, in scaled units: beta, c, q, gamma, omega_over_t, ..."""


@dataclass(frozen=True, slots=True)
class ExpectedError:
    """Before anything is spent, in units of the score; None for what is not released."""

    index_gap: float | None
    """Of the best score over that of lambda~."""
    value: float | None
    """Mean absolute error of v~, as a report of the score that it is said to be."""
    how: str
    """What the numbers are, in words."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that leaves a tuning: index and value may be released. The rest depends on the data: for the owner alone."""

    index: int | None
    """Of lambda~ in the grid."""
    value: float | None
    """v~, in units of the score."""
    clipped: int = field(repr=False)
    """Scores outside the declared range, of records where they are scored one by one: for the owner alone."""
    evaluations: int
    """How many scores were asked for: public."""


@dataclass(frozen=True, slots=True)
class Plan(ABC):
    """A method with everything that it draws from public values: charge ``cost``, then ``run`` it once."""

    spec: TuningSpec
    problem: Problem
    index_cost: Cost | None
    value_cost: Cost | None
    cost: Cost
    """Of both releases together: what the ledger is charged."""
    noise: Noise
    guarantee: str
    warnings: list[str]
    expected_error: ExpectedError

    @abstractmethod
    def run(self, evaluate: Evaluate, progress: Progress = lambda share: None) -> Outcome:
        """Ask for scores, and draw lambda~ and v~. The scores stay inside.

        Raises TuningFailed, with nothing private in its text, for a score that is not a finite number; the cost is
        spent all the same. What ``evaluate`` raises goes through.
        """
