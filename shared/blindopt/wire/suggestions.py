"""Suggestions without a run, for vendors with a loop of their own."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from blindopt.wire.algorithms.fits import Fitted
from blindopt.wire.algorithms.observations import OBSERVATIONS_MAX, Outcome
from blindopt.wire.algorithms.plans import (
    AUTO,
    AlgorithmChoice,
    FitChoice,
    InitialDesignChoice,
    InitialRows,
    Plan,
    Repeats,
)
from blindopt.wire.answers import NONE, Answers
from blindopt.wire.base import FEATURES_MAX, PositiveFloat, Reply, Request, Seed
from blindopt.wire.connections import StudyAccess
from blindopt.wire.posteriors import Recommendation
from blindopt.wire.queries import NoisePassport
from blindopt.wire.releases import NoiseLaw
from blindopt.wire.studies import Kernel

INLINE_ROWS_MAX = 100_000
SUGGESTIONS_MAX = 100
Number = Annotated[float, Field(ge=-1e50, le=1e50)]


class InlineStudy(Request):
    """Candidates given in the request, with the fields of a study that matter."""

    candidates: list[Annotated[list[Number], Field(min_length=1, max_length=FEATURES_MAX, fail_fast=True)]] = Field(
        # A list of faults in a million numbers would take more time and memory than the numbers.
        min_length=1,
        max_length=INLINE_ROWS_MAX,
        fail_fast=True,
        description="Rows of equal length, of finite numbers.",
    )
    direction: Literal["maximize", "minimize"] = Field(
        description="Whether to look for the largest or the smallest outcome."
    )
    kernel: Kernel | None = Field(None, description="Hyper-parameters, if the request itself has none.")
    noise: NoiseLaw = Field(NoiseLaw(family="none"), description="Law of the noise in the candidates.")
    answers: Answers = Field(NONE, description="Answer mechanism, which randomizes each y.")
    privacy_unit: Literal["row", "answer"] = Field(
        "row", description="row: answers about one record add up; answer: they do not."
    )

    @property
    def n(self) -> int:
        """The number of candidates."""
        return len(self.candidates)

    @property
    def r(self) -> int:
        """The number of columns."""
        return len(self.candidates[0])


class SuggestionObservation(Request):
    """An observed outcome."""

    row: int = Field(ge=0, lt=2**53, description="Number of the candidate, from 0.")
    y: Outcome = Field(description="The outcome, in units of the measurement.")
    noise_variance: PositiveFloat | None = Field(
        None,
        description=(
            "Noise variance of this outcome, in squared units of y; used if it is larger than the kernel's, and always "
            "with fit. Null: the kernel's, or the fitted one."
        ),
    )
    passport: NoisePassport | None = Field(
        None, description="Noise description of y, as the curator sent it; excludes noise_variance."
    )

    @model_validator(mode="after")
    def _single_noise(self) -> Self:
        if self.noise_variance is not None and self.passport is not None:
            raise ValueError("give noise_variance or passport, not both: the passport states the noise")
        return self


class SuggestionRequest(Request):
    """Observations, and how to choose the next candidates. Give ``study`` or ``inline``.

    With the settings, the seed and the outcomes of a run it is answered with the row that the run chooses next.
    """

    study: StudyAccess | None = Field(None, description="Candidates of a curator's release.")
    inline: InlineStudy | None = Field(None, description="Candidates in this request.")
    algorithm: AlgorithmChoice = Field(AUTO, description="How rows are chosen; auto: as suits the candidates.")
    kernel: Kernel | None = Field(None, description="Hyper-parameters, or null: those of the study.")
    fit: FitChoice = "auto"
    observations: list[SuggestionObservation] = Field(
        [], max_length=OBSERVATIONS_MAX, description="Outcomes, in the order in which they were observed."
    )
    count: int = Field(
        1,
        ge=1,
        le=SUGGESTIONS_MAX,
        description=(
            "Number of candidates for one query: each is chosen as if those before it had been answered with their "
            "posterior mean. More than 1: for auto, gp_bucb, ei and random; gp_ucb is then treated as gp_bucb."
        ),
    )
    seed: Seed = Field(0, description="Seed of the initial design and of ties: the same seed makes the same choices.")
    step: int | None = Field(
        None,
        ge=1,
        lt=2**53,
        description="t of the exploration weight; null: 1 plus the number of observations after the initial rows.",
    )
    initial_rows: InitialRows = None
    initial_design: InitialDesignChoice = None
    repeats: Repeats = "auto"
    iterations: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description=(
            "T of the whole loop, after the initial rows: a parameter of ldp_* and ei_deblurred. Null: these "
            "candidates are the last."
        ),
    )


class Suggestion(Reply):
    """A candidate to query. Moments are in units of the measurement."""

    row: int = Field(description="Number of the candidate.")
    phase: Literal["initial", "algorithm"] = Field(
        description="initial: part of the initial design; algorithm: chosen by the algorithm."
    )
    mean: float | None = Field(description="Posterior mean at the candidate; null for a random one.")
    sd: float | None = Field(description="Posterior standard deviation; null for a random candidate.")
    acquisition: float | None = Field(
        description=(
            "Value of the acquisition function, in the direction of maximization; for ei the logarithm of the expected "
            "improvement."
        )
    )
    ties: int = Field(description="Number of candidates that shared the maximum; one was drawn with the seed.")


class SuggestionReply(Reply):
    """Candidates to query next, and the recommendation so far."""

    suggestions: list[Suggestion] = Field(
        description=(
            "Suggestions, in the order of choice. Fewer than requested if no candidate remains, or if the initial "
            "design ends."
        )
    )
    fitted: Fitted | None = Field(None, description="The last fit of hyper-parameters; null if there is none.")
    ended_because: Literal["budget", "exhausted"] | None = Field(
        description=(
            "Why there is no suggestion: budget: all iterations are used up; exhausted: every candidate was queried. "
            "Null if there are suggestions."
        )
    )
    recommendation: Recommendation | None = Field(
        description="The best of the observed candidates; null before an observation."
    )
    plan: Plan | None = Field(None, description="How candidates are chosen, and why.")
    warnings: list[str] = Field(description="Warnings about the chosen algorithm for these candidates, in words.")
