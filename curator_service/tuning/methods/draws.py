"""The two draws that a tuning releases."""

from collections.abc import Mapping
from dataclasses import dataclass

from blindopt.arrays import Vector
from blindopt.errors import TuningImpossible
from blindopt.wire.tuning import Selection, ValueAt
from curator_service.privacy.noise import add_laplace_to_number, select, selection_scale, sensitivity_scale
from curator_service.tuning.methods.budget import Cost, Shares

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
