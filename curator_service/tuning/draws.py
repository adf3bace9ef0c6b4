"""The two draws that a tuning releases."""

from dataclasses import dataclass

from blindopt.arrays import Vector
from blindopt.errors import TuningImpossible
from blindopt.wire.tuning_methods import Selection, ValueAt
from curator_service.privacy.noise import add_laplace_to_one, select, selection_scale, sensitivity_scale
from curator_service.tuning.plan import Cost, Noise

SLACK = 1e-9
"""Of sensitivities, for what doubles round."""
SENSITIVITY_MIN, SENSITIVITY_MAX = 1e-290, 1e290
"""Noise is drawn on a lattice of doubles, of which a step is 2^-40 of it."""


@dataclass(frozen=True, slots=True)
class IndexDraw:
    """lambda~: its scores move by ``sensitivity`` at most."""

    sensitivity: float
    cost: Cost
    law: Selection

    @property
    def scale(self) -> float:
        return selection_scale(self.sensitivity, self.cost.epsilon)

    def draw(self, scores: Vector) -> int:
        """A place in ``scores`` (n,)."""
        return select(scores, self.sensitivity, self.cost.epsilon, self.law)


@dataclass(frozen=True, slots=True)
class ValueDraw:
    """v~: what it is made of moves by ``sensitivity`` at most."""

    sensitivity: float
    cost: Cost

    @property
    def scale(self) -> float:
        return sensitivity_scale(self.sensitivity, self.cost.epsilon)

    def draw(self, value: float) -> float:
        """``value`` with Laplace noise."""
        return add_laplace_to_one(value, self.sensitivity, self.cost.epsilon)


@dataclass(frozen=True, slots=True)
class Draws:
    """What is released; None is not."""

    index: IndexDraw | None
    value: ValueDraw | None

    @classmethod
    def of(
        cls, index: tuple[float, Cost | None] | None, law: Selection, value: tuple[float, Cost | None] | None
    ) -> "Draws":
        """From sensitivities, to which a slack is added, and costs.

        Raises TuningImpossible for a sensitivity that is too small or too large for doubles.
        """
        for moved, _ in filter(None, (index, value)):
            if not SENSITIVITY_MIN <= moved <= SENSITIVITY_MAX:  # NaN too
                raise TuningImpossible(
                    f"its sensitivity would be {moved:.3g}, and noise is drawn for {SENSITIVITY_MIN:g} to "
                    f"{SENSITIVITY_MAX:g} alone: tell the score in other units"
                )
        return cls(
            IndexDraw(index[0] * (1 + SLACK), index[1], law) if index and index[1] else None,
            ValueDraw(value[0] * (1 + SLACK), value[1]) if value and value[1] else None,
        )

    def noise(self, unit: float, **constants: float) -> Noise:
        """As it is told, where one unit of what is drawn on is ``unit`` of the score."""
        return Noise(
            index_sensitivity=self.index.sensitivity * unit if self.index else None,
            index_scale=self.index.scale * unit if self.index else None,
            value_sensitivity=self.value.sensitivity * unit if self.value else None,
            value_scale=self.value.scale * unit if self.value else None,
            constants=constants,
        )

    def on(self, scores: Vector, *, value_at: ValueAt = "chosen") -> tuple[int | None, float | None]:
        """lambda~ by ``scores`` (n,), and v~ as the score at lambda~, or the largest: so too without lambda~."""
        chosen = self.index.draw(scores) if self.index else None
        told = float(scores.max() if chosen is None or value_at == "maximum" else scores[chosen])
        return chosen, self.value.draw(told) if self.value else None
