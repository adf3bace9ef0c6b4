"""Answer mechanisms: how the curator randomizes y before an answer is released."""

from math import acosh, sqrt
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from blindopt.wire.base import BoundedFloat, Epsilon, NonNegativeFloat, PositiveFloat, Request, amount


class NoAnswerNoise(Request):
    """y is released as it was measured."""

    mechanism: Literal["none"] = Field(description="Name of the answer mechanism.")


class PrivateAnswers(Request):
    """Each y is clipped to [centre - C, centre + C], C = value_bound + noise_bound, then randomized.

    Each released y is epsilon-DP for replacing the measurements behind it by any others.
    """

    epsilon: Epsilon
    value_bound: PositiveFloat = Field(description="B: the mean outcome lies within B of the centre; public.")
    noise_bound: NonNegativeFloat = Field(0.0, description="R: the measurement noise lies in [-R, R]; public.")
    centre: BoundedFloat = Field(0.0, description="Middle of the range of outcomes; public, in units of the outcome.")
    plays: Literal["each", "mean"] = "each"
    """Several measurements of a record in one query. each: every one is released and charged; mean: their mean is
    released once, for one charge. With privacy_unit answer each measurement is another person's, who moves the mean of
    k by 2C / k at most: laplace and one_bit then have less noise, as the passport says."""

    @property
    def bound(self) -> float:
        """C, the largest distance of a clipped y from the centre."""
        return self.value_bound + self.noise_bound


class LaplaceAnswers(PrivateAnswers):
    """Laplace noise of scale 2C / epsilon: CTL of Zhou & Tan (2021), with the clip that makes its claim hold."""

    mechanism: Literal["laplace"] = Field(description="Name of the answer mechanism.")


class OneBitAnswers(PrivateAnswers):
    """One of the two values centre +- C (e^epsilon + 1) / (e^epsilon - 1), unbiased: Duchi et al. (2018)."""

    mechanism: Literal["one_bit"] = Field(description="Name of the answer mechanism.")


class PiecewiseAnswers(PrivateAnswers):
    """A value of a bounded interval, more likely near y, unbiased: Wang et al. (2019), Algorithm 2."""

    mechanism: Literal["piecewise"] = Field(description="Name of the answer mechanism.")


class AutoAnswers(PrivateAnswers):
    """Whichever of laplace, one_bit and piecewise has the smallest worst-case variance at this epsilon."""

    mechanism: Literal["auto"] = Field("auto", description="Name of the answer mechanism.")


def _with_mechanism(value: Any) -> Any:
    """The body with its mechanism: ``auto`` unless it names one."""
    return {"mechanism": "auto", **value} if isinstance(value, dict) else value


Answers = Annotated[
    NoAnswerNoise | LaplaceAnswers | OneBitAnswers | PiecewiseAnswers | AutoAnswers,
    Field(discriminator="mechanism"),
    BeforeValidator(_with_mechanism),
]
ConcreteAnswers = NoAnswerNoise | LaplaceAnswers | OneBitAnswers | PiecewiseAnswers
ONE_BIT_EPSILON_MAX = 2 * acosh((1 + sqrt(7)) / 3)
"""About 1.29. With c = cosh(epsilon / 2) the worst variances of one_bit, c^2 / (c^2 - 1) C^2, and of piecewise,
2 / (3 (c - 1)) C^2, are equal at 3 c^2 = 2 c + 2."""
BOUNDED_EPSILON_MAX = 20
"""The largest epsilon of one_bit and piecewise: above, the probability of a coin is too close to 1 for doubles."""


def concrete_answers(answers: Answers) -> ConcreteAnswers:
    """Replace ``auto`` by the mechanism with the smallest worst-case variance; return other answers unchanged.

    That depends on epsilon alone, because bound and centre scale all mechanisms alike. Below BOUNDED_EPSILON_MAX
    laplace always has a larger variance.
    """
    if not isinstance(answers, AutoAnswers):
        return answers
    epsilon, fields = amount(answers.epsilon), answers.model_dump(exclude={"mechanism"})
    if epsilon > BOUNDED_EPSILON_MAX:
        return LaplaceAnswers(mechanism="laplace", **fields)
    if epsilon <= ONE_BIT_EPSILON_MAX:
        return OneBitAnswers(mechanism="one_bit", **fields)
    return PiecewiseAnswers(mechanism="piecewise", **fields)


NONE = NoAnswerNoise(mechanism="none")
