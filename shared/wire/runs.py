"""Optimizations at the modeler."""

from datetime import datetime
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from shared.wire.base import Name, Page, Reply, Request, Seed
from shared.wire.queries import NoisePassport
from shared.wire.studies import Kernel, StudyView


class GpUcb(Request):
    """GP-UCB, Algorithm 2 of Kharkovskii et al. (2020)."""

    name: Literal["gp_ucb"]
    delta_ucb: float = Field(0.05, gt=0, lt=1, description="Theorem 3; delta' is half of it.")


class RandomRows(Request):
    """Uniform random rows without repetition: the yardstick that learns nothing."""

    name: Literal["random"]


AlgorithmSpec = Annotated[GpUcb | RandomRows, Field(discriminator="name")]


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

    name: Name = "run"
    curator_url: CuratorUrl
    study_id: Annotated[str, Field(pattern=r"^std_[0-9a-f]{16}$")]
    algorithm: AlgorithmSpec = GpUcb(name="gp_ucb")
    iterations: int = Field(50, ge=1, le=100_000, description="T: queries after the initial ones.")
    initial_rows: int = Field(1, ge=0, le=10_000, description="Uniform random rows asked first.")
    seed: Seed = 0
    kernel: Kernel | None = Field(None, description="Fixed hyper-parameters, or null: those of the study.")


class RunCreate(RunSpec):
    """One optimization against one study of a curator."""

    token: Annotated[str, Field(max_length=200, pattern=r"^[\x21-\x7e]+$", repr=False)] = Field(
        description="The grant's token: stored sealed, never shown again."
    )


RunState = Literal["queued", "running", "completed", "failed", "stopped"]


class Best(Reply):
    """The best outcome that a run has seen."""

    trial: int
    row: int
    y: float


class RunProblem(Reply):
    """Why a run failed."""

    code: str
    detail: str


class RunView(Reply):
    """A run and how far it is."""

    id: str
    name: str
    state: RunState
    curator_url: str
    study_id: str
    algorithm: AlgorithmSpec
    iterations: int
    initial_rows: int
    seed: int
    kernel: Kernel | None
    study: StudyView | None = Field(description="What the curator told of the study; null until it was asked.")
    trials: int = Field(description="Answered so far.")
    best: Best | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    ended_because: Literal["budget", "exhausted", "refused", "stopped", "failed"] | None
    problem: RunProblem | None


class RunPage(Page):
    """A page of runs."""

    runs: list[RunView]


class TrialView(Reply):
    """One chosen row with its answer. Moments are in units of the measurement, at the time of the choice."""

    number: int
    phase: Literal["initial", "algorithm"]
    row: int
    mean: float | None
    sd: float | None
    acquisition: float | None = Field(description="In the direction of maximization.")
    ties: int = Field(description="Rows that shared the maximum; one was drawn with the run's seed.")
    chosen_at: datetime
    answered_at: datetime | None
    query_id: str | None
    y: float | None
    passport: NoisePassport | None


class TrialPage(Page):
    """A page of trials."""

    trials: list[TrialView]


class RunExport(Reply):
    """Everything needed to redo a run, given the release."""

    run: RunView
    trials: list[TrialView]
