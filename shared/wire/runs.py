"""Optimizations at the modeler."""

from datetime import datetime
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from shared.wire.bandits import (
    Ata,
    BoundedIgp,
    IgpUcb,
    LaplaceAdf,
    LdpAta,
    LdpMoma,
    LdpTgp,
    Moma,
    Tgp,
    TgpTight,
    Thompson,
)
from shared.wire.base import Name, Page, PositiveFloat, Reply, Request, Seed
from shared.wire.fits import Fit, Fitted
from shared.wire.queries import NoisePassport
from shared.wire.studies import Kernel, StudyView


class GpUcb(Request):
    """GP-UCB, Algorithm 2 of Kharkovskii et al. (2020)."""

    name: Literal["gp_ucb"] = Field(description="Names the algorithm.")
    delta_ucb: float = Field(0.05, gt=0, lt=1, description="Theorem 3; delta' is half of it.")
    noise_aware: bool = Field(
        True, description="Average the kernel over the release's noise, where its law is known; else take Z for X."
    )
    scale: PositiveFloat = Field(1.0, description="Factor of beta_t; 1 is the theorem, less explores less.")


class RandomRows(Request):
    """Uniform random rows without repetition: the yardstick that learns nothing."""

    name: Literal["random"] = Field(description="Names the algorithm.")


AlgorithmSpec = Annotated[
    GpUcb
    | RandomRows
    | LdpAta
    | LdpTgp
    | TgpTight
    | LdpMoma
    | Ata
    | Tgp
    | Moma
    | LaplaceAdf
    | BoundedIgp
    | IgpUcb
    | Thompson,
    Field(discriminator="name"),
]


FITTED = (GpUcb,)
"""Algorithms whose hyper-parameters can be fitted."""


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        plain = not (parts.username or parts.password or parts.query or parts.fragment)
        good = plain and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise ValueError("must be an address such as https://curator.example or http://127.0.0.1:8410")
    return url


CuratorUrl = Annotated[
    str,
    Field(max_length=2_000, pattern=r"^https?://[!-~]+$"),
    AfterValidator(_address),
]


class RunSpec(Request):
    """One optimization against one study of a curator, as it is stored: without its secret."""

    name: Name = Field("run", description="For people.")
    curator_url: CuratorUrl = Field(description="Address of the curator; https, except on loopback.")
    study_id: Annotated[str, Field(pattern=r"^std_[0-9a-f]{16}$")] = Field(description="The study to optimize.")
    algorithm: AlgorithmSpec = Field(GpUcb(name="gp_ucb"), description="How rows are chosen.")
    iterations: int = Field(50, ge=1, le=100_000, description="T: queries after the initial ones.")
    initial_rows: int = Field(1, ge=0, le=10_000, description="Uniform random rows asked first.")
    seed: Seed = Field(0, description="Decides initial rows and ties: the same seed makes the same choices.")
    kernel: Kernel | None = Field(None, description="Hyper-parameters, or null: those of the study.")
    fit: Fit | None = Field(
        None,
        description=(
            "Fit hyper-parameters to the answers, from the kernel on; without a kernel a squared-exponential one of "
            "the candidates' size is taken. Null: they stay as they are told. For gp_ucb."
        ),
    )
    log_key: str | None = Field(
        None,
        max_length=400,
        description="The curator's C2SP verifier key, learnt another way; null: the first that is seen is kept.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.fit is not None and not isinstance(self.algorithm, FITTED):
            raise ValueError(f"{self.algorithm.name} takes hyper-parameters as they are told: leave out fit")
        return self


class RunCreate(RunSpec):
    """One optimization against one study of a curator."""

    token: Annotated[str, Field(max_length=200, pattern=r"^[\x21-\x7e]+$", repr=False)] = Field(
        description="The grant's token: stored sealed, never shown again."
    )


class TokenReplacement(Request):
    """Another token of the same grant, for a run that outlives its first."""

    token: Annotated[str, Field(max_length=200, pattern=r"^[\x21-\x7e]+$", repr=False)] = Field(
        description="The grant's newer token: stored sealed, never shown again."
    )


RunState = Literal["queued", "running", "paused", "waiting", "completed", "failed", "stopped"]


class Best(Reply):
    """The best outcome that a run has seen."""

    trial: int = Field(description="Number of the trial, from 1.")
    row: int = Field(description="Row of Z.")
    y: float = Field(description="Its outcome, in units of the measurement.")


class RunProblem(Reply):
    """Why a run failed."""

    code: str = Field(description="Stable name, for programs.")
    detail: str = Field(description="For people.")


class RunView(Reply):
    """A run and how far it is."""

    id: str = Field(description="run_...")
    name: str = Field(description="For people.")
    state: RunState = Field(
        description=(
            "queued, running; paused until it is resumed; waiting for a curator that does not answer, and then going "
            "on by itself; completed, failed or stopped for ever."
        )
    )
    curator_url: str = Field(description="Address of the curator.")
    study_id: str = Field(description="The study at the curator.")
    algorithm: AlgorithmSpec = Field(description="How rows are chosen.")
    iterations: int = Field(description="T: queries after the initial ones.")
    initial_rows: int = Field(description="Uniform random rows asked first.")
    seed: int = Field(description="Decides initial rows and ties.")
    kernel: Kernel | None = Field(description="Given with the run; null: that of the study.")
    fit: Fit | None = Field(None, description="Given with the run; null: hyper-parameters stay as they are told.")
    fitted: Fitted | None = Field(None, description="The last fit; null before the first.")
    study: StudyView | None = Field(description="What the curator told of the study; null until it was asked.")
    trials: int = Field(description="Answered so far.")
    best: Best | None = Field(description="Null before the first answer.")
    created_at: datetime = Field(description="When it was queued.")
    started_at: datetime | None = Field(description="When work on it first began.")
    heartbeat_at: datetime | None = Field(description="When it last made a step; null before the first.")
    waits_until: datetime | None = Field(description="When a waiting run tries again; null in other states.")
    ended_at: datetime | None = Field(description="Null until it has ended.")
    ended_because: Literal["budget", "exhausted", "refused", "stopped", "failed"] | None = Field(
        description="budget: all queries were answered; exhausted: no row is left."
    )
    problem: RunProblem | None = Field(description="Why it failed, was refused, or waits; else null.")
    warnings: list[str] = Field(
        [], description="What speaks against the chosen algorithm here, in words: told when the run begins."
    )


class RunPage(Page):
    """A page of runs."""

    runs: list[RunView] = Field(description="In the order of their creation.")


class TrialView(Reply):
    """One chosen row with its answer. Moments are in units of the measurement, at the time of the choice."""

    number: int = Field(description="From 1.")
    phase: Literal["initial", "algorithm"] = Field(description="Whether the row was drawn at random or chosen.")
    row: int = Field(description="Row of Z.")
    mean: float | None = Field(description="Posterior mean of the row; null for a random one.")
    sd: float | None = Field(description="Posterior standard deviation; null for a random row.")
    acquisition: float | None = Field(description="In the direction of maximization.")
    ties: int = Field(description="Rows that shared the maximum; one was drawn with the run's seed.")
    fitted: Fitted | None = Field(
        None, description="Hyper-parameters that were fitted before this choice; null: those of the trials before."
    )
    chosen_at: datetime = Field(description="When the row was chosen.")
    answered_at: datetime | None = Field(description="Null until the curator answered.")
    query_id: str | None = Field(description="The query at the curator; null until it was answered.")
    y: float | None = Field(description="The outcome; null until it was answered.")
    plays: int | None = Field(description="How many measurements y is the mean of; null until it was answered.")
    passport: NoisePassport | None = Field(description="What was done to y; null until it was answered.")


class TrialPage(Page):
    """A page of trials."""

    trials: list[TrialView] = Field(description="In the order of their numbers.")


class RunExport(Reply):
    """Everything needed to redo a run, given the release."""

    run: RunView = Field(description="The run.")
    trials: list[TrialView] = Field(description="All of them, in order.")
