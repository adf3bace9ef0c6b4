"""Forecasts of the quality at several privacy levels: simulated by the curator, for the owner only."""

from datetime import datetime
from typing import Literal, Self

from pydantic import Field, model_validator

from blindopt.wire.base import Epsilon, Name, Page, Reply, Request

ForecastMechanism = Literal["identity", "auto", "gaussian", "planar_laplace", "gaussian_projection", "po_gp_ucb"]


class ForecastCreate(Request):
    """Simulate runs over public rows, or over the records, on functions drawn from a Gaussian process."""

    epsilons: list[Epsilon] = Field(
        ["0.5", "1", "2", "4", "8"], min_length=1, max_length=20, description="Privacy levels to try."
    )
    mechanisms: list[ForecastMechanism] = Field(
        ["auto"],
        min_length=1,
        max_length=6,
        description=(
            "Mechanisms to try at each level, with the study's Delta, delta and r. If it has none: Delta 1, delta 1e-6 "
            "if one is needed, r 10 for gaussian_projection and by the paper's rule for po_gp_ucb. The baselines "
            "identity and random_rows are always included."
        ),
    )
    functions: int = Field(20, ge=2, le=200, description="Functions to draw.")
    queries: int = Field(50, ge=2, le=500, description="Queries of each simulated run.")
    rows: Literal["public", "records"] = Field(
        "public",
        description=(
            "public: uniform rows in the declared box, as many as the dataset has, or those of sample_dataset_id; no "
            "record is read. records: the private records; choosing epsilon or another public input by that leaks "
            "what is not counted."
        ),
    )
    rows_max: int = Field(
        1_000, ge=10, le=5_000, description="Rows to simulate on: a random subset of the records, or sample, if more."
    )
    sample_dataset_id: Name | None = Field(
        None,
        description=(
            "A dataset that is declared public and has columns of the same names: its rows in place of uniform ones."
        ),
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.rows == "records" and self.sample_dataset_id is not None:
            raise ValueError("rows is either records, or public with a sample_dataset_id")
        return self


class LengthscaleRegret(Reply):
    """Simulated regret on functions of one length-scale."""

    lengthscale: float = Field(description="Length-scale of the drawn functions, in scaled units.")
    regret: float = Field(description="Mean simple regret after the last query, in standard deviations of f.")
    low: float = Field(description="Lower end of the mean's 95 % interval.")
    high: float = Field(description="Upper end of the mean's 95 % interval.")


class ForecastPoint(Reply):
    """Simulated quality of a mechanism at a privacy level."""

    mechanism: str = Field(description="Name of the mechanism; random_rows and identity are the baselines.")
    runs_as: str = Field(description="The mechanism that auto chooses; otherwise the same as mechanism.")
    epsilon: str | None = Field(
        description="epsilon of the release, for groups of a record in all; null for a baseline."
    )
    noise_sd: float | None = Field(description="Standard deviation of the noise per coordinate of Z, in scaled units.")
    distance_error: float | None = Field(
        description="Median relative error of distances between candidates, as estimated from Z and its noise law."
    )
    regret: float = Field(
        description="Mean simple regret after the last query, at the middle length-scale, in standard deviations of f."
    )
    low: float = Field(description="Lower end of the mean's 95 % interval.")
    high: float = Field(description="Upper end of the mean's 95 % interval.")
    better_than_chance: bool | None = Field(
        None,
        description=(
            "Whether it is better than random records on the same functions, at the middle length-scale, by the 95 % "
            "interval of the mean difference; null for random records, and in earlier forecasts."
        ),
    )
    by_lengthscale: list[LengthscaleRegret] = Field(
        [],
        description=(
            "The same for each length-scale, by increasing length-scale: three on public rows, which span a band, and "
            "the study's own on the records."
        ),
    )


class ForecastView(Reply):
    """A running or finished forecast. It depends on the data: never shown to a modeler."""

    id: str = Field(description="fct_...")
    study_id: str = Field(description="The study that it is about.")
    state: Literal["running", "completed", "failed", "cancelled"] = Field(
        description="running: in progress, or queued. A crash or a shutdown makes it failed."
    )
    progress: float = Field(ge=0, le=1, description="Fraction of the work that is done.")
    created_at: datetime = Field(description="When it was requested.")
    ended_at: datetime | None = Field(description="When it ended; null while running.")
    problem: str | None = Field(description="Why it failed, and what to do.")
    spec: ForecastCreate = Field(description="The request.")
    points: list[ForecastPoint] = Field(description="Results by mechanism and level; empty before the end.")
    choosing: str | None = Field(
        description="Why public inputs must not be chosen by it, in words; null if no private record was read."
    )


class ForecastPage(Page):
    """A page of forecasts."""

    forecasts: list[ForecastView] = Field(description="Forecasts, in the order of creation.")


class PublicForecast(Reply):
    """A forecast of a draft on public rows alone, in memory: a restart of the service computes it again."""

    state: Literal["running", "completed", "failed"] = Field(description="running: in progress, or waiting.")
    progress: float = Field(0.0, ge=0, le=1, description="Fraction of the work that is done.")
    problem: str | None = Field(None, description="Why it failed.")
    points: list[ForecastPoint] = Field([], description="Results by privacy level; empty before the end.")
