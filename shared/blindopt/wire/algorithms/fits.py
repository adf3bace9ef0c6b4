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

    lengthscale: Interval | None = Field(
        None,
        description=(
            "Null: up to 20 times the candidates' typical distance, and at least 1/100 of it and a quarter of the "
            "median distance of a queried candidate to the nearest other one (not where priors are given)."
        ),
    )
    signal_variance: Interval | None = Field(None, description="Null: 1/1000 to 1000 times the answers' variance.")
    noise_variance: Interval | None = Field(None, description="Null: 1e-8 to 1 times the answers' variance.")


class FitPriors(Request):
    """Priors of the fitted parameters. Null: a flat prior on the logarithm."""

    lengthscale: LogNormal | None = Field(None, description="Prior of the length-scale, in scaled units.")
    signal_variance: LogNormal | None = Field(None, description="Prior of the signal variance, in squared units of y.")
    noise_variance: LogNormal | None = Field(None, description="Prior of the noise variance, in squared units of y.")


class Fit(Request):
    """Fit hyper-parameters by marginal likelihood, after the initial rows and again as answers come in.

    Noise that an answer's noise description declares is not fitted, only the noise of other answers. Where answers are
    exact values of a column, the variance fitted in its place is that of the part of a value that is a record's own.
    """

    every: int = Field(
        10,
        ge=1,
        le=100_000,
        description=(
            "Largest number of answers between two fits: one comes after each quarter more answers (in runs before "
            "version 0.3.0 after exactly so many)."
        ),
    )
    starts: int = Field(3, ge=1, le=64, description="Number of starting points of the search.")
    mean: Literal["fitted", "kernel"] = Field(
        "fitted", description="fitted: the most likely constant mean; kernel: the kernel's mean, or 0."
    )
    bounds: FitBounds = Field(FitBounds(), description="Bounds of the parameters.")
    priors: FitPriors | None = Field(
        None,
        description=(
            "Null: weak priors. The median of the length-scale is 0.4 of the candidates' typical distance (spread 1). "
            "Where coordinates have their own, that is the prior of their geometric mean, and each varies about it "
            "(spread 0.5; in runs before version 0.3.0 each varied by itself, with spread 1). "
            "The medians of the variances are those of the kernel (spread 1). Without a kernel, the signal variance is "
            "near that of the answers (spread 2), and the noise variance near 1/100 of the signal's (spread 1 below, 3 "
            "above): it keeps that ratio until there are 2 r answers. An empty object: no priors."
        ),
    )
    ard: Literal["auto", "off"] = Field(
        "auto",
        description=(
            "auto: each coordinate has its own length-scale where the candidates carry no noise and have 2 to 20 "
            "coordinates; off: all share one."
        ),
    )


class FitCheck(Reply):
    """How well the fitted model predicts each answer from the others (leave-one-out)."""

    log_density: float = Field(description="Mean log predictive density of an answer in nats, in units of y.")
    baseline: float = Field(
        description="The same for a model without candidates: mean and variance of the other answers. Larger is better."
    )
    largest_residual: float = Field(
        description="Largest distance of an answer from its prediction, in standard deviations of the prediction."
    )
    row: int = Field(description="Candidate of that answer.")


class Fitted(Reply):
    """Hyper-parameters of a fit, used for the choices after it."""

    answers: int = Field(ge=0, description="Number of answers that were fitted.")
    lengthscale: float = Field(
        description="Length-scale, in scaled units; the geometric mean if coordinates have their own."
    )
    lengthscales: list[float] | None = Field(
        None,
        description="Length-scale of each coordinate: the shorter, the more y depends on it. Null: all are the same.",
    )
    signal_variance: float = Field(description="Signal variance, in squared units of y.")
    noise_variance: float = Field(
        description=(
            "Noise variance of an answer whose noise description declares none, in squared units of y; where answers "
            "are exact values, variance of the part of a value that is the record's own."
        )
    )
    mean: float = Field(description="Prior mean, in units of y.")
    log_likelihood: float | None = Field(description="Log marginal likelihood in nats; null if the fit failed.")
    at_bounds: list[Parameter] = Field(description="Parameters that lie at a bound.")
    problem: str | None = Field(description="Why the fit failed and earlier values were kept; null if it succeeded.")
    check: FitCheck | None = Field(None, description="Check of the fit; null if the fit failed.")
    reason: str | None = Field(
        None, description="Why hyper-parameters are fitted although a kernel was given; null if the run requests it."
    )
