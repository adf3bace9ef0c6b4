"""What is done to y before it leaves: clip, then one of three mechanisms, each epsilon-DP for one release."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from blindopt.arrays import Vector
from blindopt.wire import (
    Answers,
    AutoAnswers,
    LaplaceAnswers,
    NoAnswerNoise,
    OneBitAnswers,
    PiecewiseAnswers,
    PrivacyNoise,
    amount,
)
from curator_service.privacy.noise import bounded
from curator_service.privacy.noise.laplace import add_laplace, laplace_scale
from curator_service.privacy.noise.lattice import check_finite

_Private = LaplaceAnswers | OneBitAnswers | PiecewiseAnswers
ConcreteAnswers = NoAnswerNoise | _Private


@dataclass(frozen=True, slots=True)
class AnswerMechanism:
    """One release: a number within ``bound`` of ``centre`` goes in, a randomized one comes out.

    Claims epsilon-DP for replacing the number by any other, whatever it was: it is clipped first. ``centre``
    is public, so that taking it off and putting it back costs nothing.
    """

    noise: PrivacyNoise
    centre: float
    bound: float
    draw: Callable[[Vector], Vector]
    """From offsets within ``bound`` of 0 to released offsets."""

    @property
    def clip(self) -> tuple[float, float]:
        """The bounds that y is clipped to, in units of y."""
        return self.centre - self.bound, self.centre + self.bound

    def clipped(self, values: Vector) -> Vector:
        """``values`` (m,) as offsets within ``bound`` of the centre. NumericalFailure for one that is not finite."""
        check_finite(values)
        offsets: Vector = np.clip(values - self.centre, -self.bound, self.bound)
        return offsets

    def release(self, offsets: Vector) -> Vector:
        """One release for each offset, with randomness of its own."""
        return self.centre + self.draw(offsets)


@lru_cache(maxsize=256)
def mechanism_of(answers: Answers) -> AnswerMechanism | None:
    """What releases the answers of a study; None where y leaves as it was measured."""
    match concrete_answers(answers):
        case NoAnswerNoise():
            return None
        case LaplaceAnswers() as said:
            bound, epsilon = said.bound, amount(said.epsilon)
            scale = laplace_scale(bound, epsilon)
            noise = PrivacyNoise(family="laplace", scale=scale, bound=bound, variance=2 * scale**2)
            return AnswerMechanism(noise, said.centre, bound, lambda values: add_laplace(values, bound, epsilon))
        case said:
            law = _bounded_law(said)
            noise = PrivacyNoise(family=said.mechanism, scale=law.size, bound=said.bound, variance=law.variance)
            return AnswerMechanism(noise, said.centre, said.bound, law.draw)


def concrete_answers(answers: Answers) -> ConcreteAnswers:
    """The answers of a study with ``auto`` resolved: the smallest variance for the y that makes it largest.

    That is one_bit up to an epsilon of about 1.29, piecewise above, and laplace past what the two are for.
    It depends on epsilon alone: bound and centre scale all three alike.
    """
    if not isinstance(answers, AutoAnswers):
        return answers
    said = answers.model_dump(exclude={"mechanism"})
    laplace = LaplaceAnswers(mechanism="laplace", **said)
    if amount(answers.epsilon) > bounded.BOUNDED_EPSILON_MAX:
        return laplace
    choices: tuple[_Private, ...] = (
        laplace,
        OneBitAnswers(mechanism="one_bit", **said),
        PiecewiseAnswers(mechanism="piecewise", **said),
    )
    return min(choices, key=_variance)


def faults(answers: Answers) -> list[dict[str, object]]:
    """Answers of a draft that no mechanism can give."""
    if isinstance(answers, OneBitAnswers | PiecewiseAnswers) and amount(answers.epsilon) > bounded.BOUNDED_EPSILON_MAX:
        message = (
            f"{answers.mechanism} answers take an epsilon of {bounded.BOUNDED_EPSILON_MAX} at most: "
            "choose laplace or auto"
        )
        return [{"field": "answers.epsilon", "message": message}]
    return []


def _bounded_law(answers: OneBitAnswers | PiecewiseAnswers) -> bounded.OneBit | bounded.Piecewise:
    make = bounded.one_bit if isinstance(answers, OneBitAnswers) else bounded.piecewise
    return make(answers.bound, amount(answers.epsilon))


def _variance(answers: _Private) -> float:
    if isinstance(answers, LaplaceAnswers):
        return 2 * laplace_scale(answers.bound, amount(answers.epsilon)) ** 2
    return _bounded_law(answers).variance
