"""What a privacy level costs in quality: simulated by the curator, for the owner alone."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from blindopt.wire.base import Epsilon, Page, Reply, Request

ForecastMechanism = Literal["identity", "auto", "gaussian", "planar_laplace", "gaussian_projection", "po_gp_ucb"]


class ForecastCreate(Request):
    """A simulation over the real records, of functions drawn from the study's kernel."""

    epsilons: list[Epsilon] = Field(
        ["0.5", "1", "2", "4", "8"], min_length=1, max_length=20, description="Privacy levels to try."
    )
    mechanisms: list[ForecastMechanism] = Field(
        ["auto"],
        min_length=1,
        max_length=6,
        description=(
            "Mechanisms to try at each level, with the study's Delta, delta and r. Where it has none: Delta 1, "
            "delta 1e-6 if one is needed, r 10 for gaussian_projection and by the paper's rule for po_gp_ucb. "
            "The yardsticks identity and random_rows are always there."
        ),
    )
    functions: int = Field(20, ge=2, le=200, description="Functions to draw.")
    queries: int = Field(50, ge=2, le=500, description="Queries of each simulated run.")
    rows: int = Field(1_000, ge=10, le=5_000, description="Records to simulate on: a random part where there are more.")


class ForecastPoint(Reply):
    """How one mechanism does at one privacy level."""

    mechanism: str = Field(description="Which one; random_rows and identity are the yardsticks.")
    runs_as: str = Field(description="The mechanism that auto takes; else the same.")
    epsilon: str | None = Field(description="Of the release; null for a yardstick.")
    noise_sd: float | None = Field(description="Per coordinate of Z, in scaled units.")
    distance_error: float | None = Field(
        description="Median relative error of distances between rows, read from Z with its noise law."
    )
    regret: float = Field(description="Mean simple regret after the last query, in standard deviations of f.")
    low: float = Field(description="Lower end of the mean's 95 % interval.")
    high: float = Field(description="Upper end of the mean's 95 % interval.")


class ForecastView(Reply):
    """A forecast under way or done. It depends on the data: never shown to a modeler."""

    id: str = Field(description="fct_...")
    study_id: str = Field(description="The study whose records and kernel it is about.")
    state: Literal["running", "completed", "failed", "cancelled"] = Field(
        description="running: under way, or waiting for its turn. A crash or a shutdown makes it failed."
    )
    progress: float = Field(ge=0, le=1, description="Share of the work that is done.")
    created_at: datetime = Field(description="When it was asked for.")
    ended_at: datetime | None = Field(description="When it ended; null while running.")
    problem: str | None = Field(description="Why it failed, and what to do.")
    spec: ForecastCreate = Field(description="As it was asked for.")
    points: list[ForecastPoint] = Field(description="By mechanism and level; empty before the end.")


class ForecastPage(Page):
    """A page of forecasts."""

    forecasts: list[ForecastView] = Field(description="In the order of their creation.")
