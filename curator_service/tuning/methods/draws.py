"""The two draws that a tuning releases, and how its budget is split between them, in exact decimals."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from blindopt.arrays import Vector
from blindopt.errors import TuningImpossible
from blindopt.wire.base import amount
from blindopt.wire.tuning import Selection, TuningBudget, ValueAt
from curator_service.privacy.noise import add_laplace_to_number, select, selection_scale, sensitivity_scale

_UNIT = Decimal("1e-12")
"""The unit of the ledger."""
DELTA_MIN = 1e-30
"""Bounds divide by delta: smaller ones leave the range of doubles."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one release, or of both: exact decimals, for replacing one record."""

    epsilon: Decimal
    delta: Decimal = Decimal(0)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.epsilon + other.epsilon, self.delta + other.delta)


@dataclass(frozen=True, slots=True)
class Shares:
    """The cost of each release, None for one that is not made, and of both together."""

    index: Cost | None
    value: Cost | None
    total: Cost

    def pure(self, factor: float) -> "Shares":
        """Shares without a delta, of ``factor`` times the epsilon; rounded up."""
        exact = Decimal(factor).quantize(Decimal("1e-6"), rounding=ROUND_CEILING)  # alike where it is computed again
        index, value = (
            None if cost is None else Cost((cost.epsilon * exact).quantize(_UNIT, rounding=ROUND_CEILING))
            for cost in (self.index, self.value)
        )
        return Shares(index, value, (index or Cost(Decimal(0))) + (value or Cost(Decimal(0))))


def pure_shares(budget: TuningBudget) -> Shares:
    index, value = _epsilons(budget, budget.index_share or "0.5")
    return Shares(_cost(index), _cost(value), Cost(amount(budget.epsilon)))


def value_alone(budget: TuningBudget, *, needs_delta: bool) -> Shares:
    """The whole budget for v~, for a method that cannot release lambda~."""
    if amount(budget.index_share or "0") != 0:
        raise TuningImpossible(
            "this method releases v~ alone: leave index_share out, or set it to 0", "budget.index_share"
        )
    cost = Cost(amount(budget.epsilon), _delta(budget) if needs_delta else Decimal(0))
    return Shares(None, cost, cost)


def shared_event(budget: TuningBudget) -> Shares:
    """Shares of releases that rest on one event, a bound on every posterior mean: both get all of delta."""
    delta = _delta(budget)
    index, value = _epsilons(budget, budget.index_share or "0.5")
    return Shares(_cost(index, delta), _cost(value, delta), Cost(amount(budget.epsilon), delta))


def split_events(budget: TuningBudget) -> Shares:
    """Shares of releases that rest on events of their own: delta is split like epsilon."""
    delta, share = _delta(budget), budget.index_share or "0.5"
    index, value = _epsilons(budget, share)
    first = delta * amount(share)
    return Shares(_cost(index, first), _cost(value, delta - first), Cost(amount(budget.epsilon), delta))


def _delta(budget: TuningBudget) -> Decimal:
    if budget.delta < DELTA_MIN:
        raise TuningImpossible(
            f"this method is private but for a delta: set budget.delta to {DELTA_MIN:g} or more", "budget.delta"
        )
    return Decimal(repr(budget.delta))


def _epsilons(budget: TuningBudget, share: str) -> tuple[Decimal, Decimal]:
    epsilon = amount(budget.epsilon)
    index = (epsilon * amount(share)).quantize(_UNIT, rounding=ROUND_FLOOR)
    return index, epsilon - index


def _cost(epsilon: Decimal, delta: Decimal = Decimal(0)) -> Cost | None:
    return Cost(epsilon, delta) if epsilon > 0 else None


# --- draws ----------------------------------------------------------------------------------------------

SLACK = 1e-9
"""Relative increase of sensitivities, for the rounding of doubles."""
SENSITIVITY_MIN, SENSITIVITY_MAX = 1e-290, 1e290
"""Noise is drawn on a lattice of doubles, with a step of 2^-40 of its scale."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Sensitivities and scales in units of the score; None for what is not released.

    lambda~ is drawn with weights exp(score / index_scale), or by permute-and-flip of that scale; v~ has Laplace noise
    of density exp(-|x| / value_scale). A scale is slightly more than sensitivity / epsilon, for the lattice.
    """

    index_sensitivity: float | None
    index_scale: float | None
    value_sensitivity: float | None
    value_scale: float | None
    constants: Mapping[str, float]
    """What they were computed from, by the paper's names, in scaled units: beta, c, q, gamma, omega_over_t, ..."""


@dataclass(frozen=True, slots=True)
class IndexDraw:
    """The draw of lambda~, from scores that move by ``sensitivity`` at most."""

    sensitivity: float
    cost: Cost
    law: Selection

    @property
    def scale(self) -> float:
        return selection_scale(self.sensitivity, self.cost.epsilon)

    def draw(self, scores: Vector) -> int:
        return select(scores, self.sensitivity, self.cost.epsilon, self.law)


@dataclass(frozen=True, slots=True)
class ValueDraw:
    """The draw of v~, from a number that moves by ``sensitivity`` at most."""

    sensitivity: float
    cost: Cost

    @property
    def scale(self) -> float:
        return sensitivity_scale(self.sensitivity, self.cost.epsilon)

    def draw(self, value: float) -> float:
        return add_laplace_to_number(value, self.sensitivity, self.cost.epsilon)


@dataclass(frozen=True, slots=True)
class Draws:
    """The draws of the releases, None for one that is not made, and what is charged for them.

    One unit of the scores that are drawn from is ``unit`` of the score; the sensitivities were computed from
    ``constants``.
    """

    shares: Shares
    index: IndexDraw | None
    value: ValueDraw | None
    unit: float
    constants: Mapping[str, float]

    @classmethod
    def of(
        cls,
        shares: Shares,
        *,
        index: float | None = None,
        law: Selection = "exponential",
        value: float | None = None,
        unit: float = 1.0,
        constants: Mapping[str, float] | None = None,
    ) -> "Draws":
        """Draws from sensitivities, which grow by SLACK.

        Raises TuningImpossible for a sensitivity that is too small or too large for doubles.
        """
        for moved in (index, value):
            if moved is not None and not SENSITIVITY_MIN <= moved <= SENSITIVITY_MAX:  # NaN too
                raise TuningImpossible(
                    f"its sensitivity would be {moved:.3g}, and noise is drawn for {SENSITIVITY_MIN:g} to "
                    f"{SENSITIVITY_MAX:g} alone: state the score in other units"
                )
        return cls(
            shares,
            IndexDraw(index * (1 + SLACK), shares.index, law) if index is not None and shares.index else None,
            ValueDraw(value * (1 + SLACK), shares.value) if value is not None and shares.value else None,
            unit,
            constants or {},
        )

    @property
    def noise(self) -> Noise:
        return Noise(
            index_sensitivity=self.index.sensitivity * self.unit if self.index else None,
            index_scale=self.index.scale * self.unit if self.index else None,
            value_sensitivity=self.value.sensitivity * self.unit if self.value else None,
            value_scale=self.value.scale * self.unit if self.value else None,
            constants=self.constants,
        )

    def on(self, scores: Vector, *, value_at: ValueAt = "chosen") -> tuple[int | None, float | None]:
        """Draw lambda~ from ``scores`` (n,), and v~ from the score at lambda~, or the largest one without lambda~."""
        index = self.index.draw(scores) if self.index else None
        value = float(scores.max() if index is None or value_at == "maximum" else scores[index])
        return index, self.value.draw(value) if self.value else None
