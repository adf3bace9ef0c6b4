"""How a tuning's budget is split between lambda~ and v~, in exact decimals."""

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from blindopt.errors import TuningImpossible
from blindopt.wire.base import amount
from blindopt.wire.tuning import TuningBudget

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
