"""Hyper-parameters that a modeler fits to the answers."""

from typing import Literal, Self

from pydantic import Field, model_validator

from blindopt.wire.base import PositiveFloat, Reply, Request

Parameter = Literal["lengthscale", "signal_variance", "noise_variance"]


class Interval(Request):
    """Where a parameter may lie; equal ends keep it where it is."""

    lower: PositiveFloat = Field(description="Smallest value.")
    upper: PositiveFloat = Field(description="Largest value.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.lower <= self.upper:
            raise ValueError("lower must not be larger than upper")
        return self


class LogNormal(Request):
    """A normal law of a parameter's natural logarithm."""

    median: PositiveFloat = Field(description="Of the parameter, in its units.")
    spread: float = Field(ge=1e-3, le=100, description="Standard deviation of the logarithm.")


class FitBounds(Request):
    """Null: a range about what candidates and answers suggest."""

    lengthscale: Interval | None = Field(None, description="Null: 1/100 to 20 times the candidates' typical distance.")
    signal_variance: Interval | None = Field(None, description="Null: 1/1000 to 1000 times the answers' variance.")
    noise_variance: Interval | None = Field(None, description="Null: 1e-8 to 1 times the answers' variance.")


class FitPriors(Request):
    """What is known before the answers. Null: nothing, all logarithms are alike."""

    lengthscale: LogNormal | None = Field(None, description="In scaled units.")
    signal_variance: LogNormal | None = Field(None, description="In squared units of y.")
    noise_variance: LogNormal | None = Field(None, description="In squared units of y.")


class Fit(Request):
    """Hyper-parameters by marginal likelihood: after the initial rows, and again and again.

    Noise that the passport of an answer declares stays as it is; only that of other answers is fitted.
    """

    every: int = Field(10, ge=1, le=100_000, description="Answers from one fit to the next.")
    starts: int = Field(8, ge=1, le=64, description="Points from which the optimum is looked for.")
    mean: Literal["fitted", "kernel"] = Field(
        "fitted", description="fitted: the constant mean that is likeliest; kernel: that of the kernel, or 0."
    )
    bounds: FitBounds = Field(FitBounds(), description="Where parameters may lie.")
    priors: FitPriors | None = Field(
        None,
        description=(
            "Null: wide ones, of spread 1: of the length-scale about 0.4 of the candidates' typical distance, of the "
            "variances about those of the kernel, where there is one. An empty object: none."
        ),
    )


class Fitted(Reply):
    """Hyper-parameters that choices were made with, from some answers on."""

    answers: int = Field(ge=0, description="How many answers there were.")
    lengthscale: float = Field(description="In scaled units.")
    signal_variance: float = Field(description="In squared units of y.")
    noise_variance: float = Field(description="Of an answer whose passport declares none, in squared units of y.")
    mean: float = Field(description="Prior mean, in units of y.")
    log_likelihood: float | None = Field(description="In nats; null where the fit failed.")
    at_bounds: list[Parameter] = Field(description="What a bound kept from going further.")
    problem: str | None = Field(description="Why the fit failed and values of before were kept; null: it did not.")
