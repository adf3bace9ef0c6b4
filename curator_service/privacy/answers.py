"""The mechanisms of answers: clip y, then randomize it in one of three ways, each epsilon-DP for one release."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from blindopt import wire
from blindopt.arrays import Vector
from blindopt.wire.answer import BOUNDED_EPSILON_MAX
from curator_service.privacy.noise import bounded
from curator_service.privacy.noise.laplace import add_laplace, laplace_scale, mean_reach
from curator_service.privacy.noise.lattice import check_finite


@dataclass(frozen=True, slots=True)
class AnswerMechanism:
    """Randomizes numbers within ``bound`` of ``centre``.

    Claims epsilon-DP for replacing a number by any other, because numbers are clipped first. ``centre`` is public, so
    subtracting and adding it costs no privacy.
    """

    noise: wire.PrivacyNoise
    centre: float
    bound: float
    draw: Callable[[Vector], Vector]
    """Randomizes offsets within ``bound`` of 0."""
    variance_at: Callable[[Vector], Vector]
    """The variance of the answer about each of such offsets: affine in their squares."""

    @property
    def clip(self) -> tuple[float, float]:
        """The bounds that y is clipped to, in units of y."""
        return self.centre - self.bound, self.centre + self.bound

    def clipped(self, values: Vector) -> Vector:
        """Clip ``values`` (m,) to offsets within ``bound`` of the centre. Raises NumericalFailure."""
        check_finite(values)
        offsets: Vector = np.clip(values - self.centre, -self.bound, self.bound)
        return offsets

    def release(self, offsets: Vector) -> Vector:
        return self.centre + self.draw(offsets)


@lru_cache(maxsize=1024)
def mechanism_of(answers: wire.Answers, persons: int = 1) -> AnswerMechanism | None:
    """The mechanism for the answers of a study; None where y is released as it was measured.

    ``persons``: how many different persons' numbers an answer is the mean of. It is then epsilon-DP for replacing one
    of these numbers, which needs less noise with laplace and one_bit; piecewise has the noise of one number.
    """
    match wire.concrete_answers(answers):
        case wire.NoAnswerNoise():
            return None
        case wire.LaplaceAnswers() as spec:
            bound, epsilon = spec.bound, wire.amount(spec.epsilon)
            scale = laplace_scale(mean_reach(bound, persons), epsilon)
            noise = wire.PrivacyNoise(family="laplace", scale=scale, bound=bound, variance=2 * scale**2)
            return AnswerMechanism(
                noise,
                spec.centre,
                bound,
                draw=lambda values: add_laplace(values, bound, epsilon, persons),
                variance_at=lambda values: np.full(len(values), 2 * scale**2),
            )
        case spec:
            law = _bounded_law(spec, persons)
            noise = wire.PrivacyNoise(family=spec.mechanism, scale=law.size, bound=spec.bound, variance=law.variance)
            return AnswerMechanism(noise, spec.centre, spec.bound, law.draw, law.variance_at)


def faults(answers: wire.Answers) -> list[dict[str, object]]:
    """Errors for answers of a draft that no mechanism can give."""
    if (
        isinstance(answers, wire.OneBitAnswers | wire.PiecewiseAnswers)
        and wire.amount(answers.epsilon) > BOUNDED_EPSILON_MAX
    ):
        message = (
            f"{answers.mechanism} answers take an epsilon of {BOUNDED_EPSILON_MAX} at most: choose laplace or auto"
        )
        return [{"field": "answers.epsilon", "message": message}]
    return []


def _bounded_law(
    answers: wire.OneBitAnswers | wire.PiecewiseAnswers, persons: int = 1
) -> bounded.OneBit | bounded.Piecewise:
    bound, epsilon = answers.bound, wire.amount(answers.epsilon)
    one_bit = isinstance(answers, wire.OneBitAnswers)
    return bounded.one_bit(bound, epsilon, persons) if one_bit else bounded.piecewise(bound, epsilon)
