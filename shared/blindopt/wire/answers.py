"""What is done to y before it leaves."""

from typing import Annotated, Literal

from pydantic import Field

from blindopt.wire.base import Epsilon, PositiveFloat, Request


class NoAnswerNoise(Request):
    """y leaves as it was measured."""

    mechanism: Literal["none"] = Field(description="Names what is done to y.")


class PrivateAnswers(Request):
    """Each y is clipped to [centre - C, centre + C], C = value_bound + noise_bound, then randomized.

    Each released y is epsilon-DP for replacing the measurements behind it by any others.
    """

    epsilon: Epsilon
    value_bound: PositiveFloat = Field(description="B: the mean outcome lies within B of the centre; public.")
    noise_bound: float = Field(0.0, ge=0, le=1e50, description="R: the measurement noise lies in [-R, R]; public.")
    centre: float = Field(0.0, ge=-1e50, le=1e50, description="Middle of the outcomes' range; public, in units of y.")
    plays: Literal["each", "mean"] = Field(
        "each",
        description=(
            "Several plays of a row in one query: each is released and charged, or their mean is released once, "
            "for one charge."
        ),
    )

    @property
    def bound(self) -> float:
        """C: y is clipped to at most this far from the centre."""
        return self.value_bound + self.noise_bound


class LaplaceAnswers(PrivateAnswers):
    """Laplace noise of scale 2C / epsilon: CTL of Zhou & Tan (2021), with the clip that makes its claim hold."""

    mechanism: Literal["laplace"] = Field(description="Names what is done to y.")


class OneBitAnswers(PrivateAnswers):
    """One of two values, centre +- C (e^epsilon + 1) / (e^epsilon - 1), without bias: Duchi et al. (2018)."""

    mechanism: Literal["one_bit"] = Field(description="Names what is done to y.")


class PiecewiseAnswers(PrivateAnswers):
    """A value of a bounded interval, likelier near y, without bias: Wang et al. (2019), Algorithm 2."""

    mechanism: Literal["piecewise"] = Field(description="Names what is done to y.")


class AutoAnswers(PrivateAnswers):
    """Of laplace, one_bit and piecewise the one with the smallest worst-case variance at this epsilon."""

    mechanism: Literal["auto"] = Field(description="Names what is done to y.")


Answers = Annotated[
    NoAnswerNoise | LaplaceAnswers | OneBitAnswers | PiecewiseAnswers | AutoAnswers, Field(discriminator="mechanism")
]
NONE = NoAnswerNoise(mechanism="none")
