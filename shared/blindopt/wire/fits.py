"""Hyper-parameters that a modeler fits to answers."""

from typing import Literal, Self

from pydantic import Field, model_validator

from blindopt.wire.base import PositiveFloat, Reply, Request

Parameter = Literal["lengthscale", "signal_variance", "noise_variance"]


class Interval(Request):
    """Bounds of a parameter; equal bounds fix it."""

    lower: PositiveFloat = Field(description="Smallest value.")
    upper: PositiveFloat = Field(description="Largest value.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.lower <= self.upper:
            raise ValueError("lower must not be larger than upper")
        return self


class LogNormal(Request):
    """A prior: the natural logarithm of the parameter is normal."""

    median: PositiveFloat = Field(description="Median of the parameter, in its units.")
    spread: float = Field(ge=1e-3, le=100, description="Standard deviation of the logarithm.")


class FitBounds(Request):
    """Bounds of the fitted parameters. Null: a range around what candidates and answers suggest."""

    lengthscale: Interval | None = Field(None, description="Null: 1/100 to 20 times the candidates' typical distance.")
    signal_variance: Interval | None = Field(None, description="Null: 1/1000 to 1000 times the answers' variance.")
    noise_variance: Interval | None = Field(None, description="Null: 1e-8 to 1 times the answers' variance.")


class FitPriors(Request):
    """Priors of the fitted parameters. Null: a flat prior on the logarithm."""

    lengthscale: LogNormal | None = Field(None, description="Prior of the length-scale, in scaled units.")
    signal_variance: LogNormal | None = Field(None, description="Prior of the signal variance, in squared units of y.")
    noise_variance: LogNormal | None = Field(None, description="Prior of the noise variance, in squared units of y.")


class Fit(Request):
    """Fit hyper-parameters by marginal likelihood, after the initial rows and then at regular intervals.

    Noise that an answer's noise description declares is not fitted, only the noise of other answers.
    """

    every: int = Field(10, ge=1, le=100_000, description="Number of answers between two fits.")
    starts: int = Field(8, ge=1, le=64, description="Number of starting points of the optimizer.")
    mean: Literal["fitted", "kernel"] = Field(
        "fitted", description="fitted: the most likely constant mean; kernel: the kernel's mean, or 0."
    )
    bounds: FitBounds = Field(FitBounds(), description="Bounds of the parameters.")
    priors: FitPriors | None = Field(
        None,
        description=(
            "Null: wide priors of spread 1. The median of the length-scale is 0.4 of the candidates' typical distance, "
            "the medians of the variances are those of the kernel, if there is one. An empty object: no priors."
        ),
    )


class Fitted(Reply):
    """Hyper-parameters of a fit, used for the choices after it."""

    answers: int = Field(ge=0, description="Number of answers that were fitted.")
    lengthscale: float = Field(description="Length-scale, in scaled units.")
    signal_variance: float = Field(description="Signal variance, in squared units of y.")
    noise_variance: float = Field(
        description="Noise variance of an answer whose noise description declares none, in squared units of y."
    )
    mean: float = Field(description="Prior mean, in units of y.")
    log_likelihood: float | None = Field(description="Log marginal likelihood in nats; null if the fit failed.")
    at_bounds: list[Parameter] = Field(description="Parameters that lie at a bound.")
    problem: str | None = Field(description="Why the fit failed and earlier values were kept; null if it succeeded.")
