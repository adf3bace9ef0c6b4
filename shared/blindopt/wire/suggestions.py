"""Suggestions without a run: for vendors who keep their own loop."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from blindopt.wire.answers import NONE, Answers
from blindopt.wire.base import FEATURES_MAX, PositiveFloat, Reply, Request, Seed
from blindopt.wire.fits import Fit, Fitted
from blindopt.wire.queries import NoisePassport
from blindopt.wire.releases import NoiseLaw
from blindopt.wire.runs import OBSERVATIONS_MAX, AlgorithmSpec, CuratorUrl, GpUcb, Outcome, Recommendation
from blindopt.wire.studies import Kernel

INLINE_ROWS_MAX = 100_000
SUGGESTIONS_MAX = 100
Number = Annotated[float, Field(ge=-1e50, le=1e50)]


class StudyAccess(Request):
    """A study at a curator, and what opens it."""

    curator_url: CuratorUrl = Field(description="Address of the curator; https, except on loopback.")
    study_id: Annotated[str, Field(pattern=r"^std_[0-9a-f]{16}$")] = Field(description="Whose candidates to take.")
    token: Annotated[str, Field(max_length=200, pattern=r"^[\x21-\x7e]+$", repr=False)] = Field(
        description="The grant's token: used for this request and not kept."
    )
    log_key: str | None = Field(
        None,
        max_length=400,
        description="The curator's C2SP verifier key, learnt another way; null: the first that is seen is kept.",
    )


class InlineStudy(Request):
    """Candidates of one's own, with what a study would tell of them."""

    candidates: list[Annotated[list[Number], Field(min_length=1, max_length=FEATURES_MAX, fail_fast=True)]] = Field(
        # A list of what is wrong with a million numbers would take longer, and more memory, than they do.
        min_length=1,
        max_length=INLINE_ROWS_MAX,
        fail_fast=True,
        description="Rows of equal length; finite numbers.",
    )
    direction: Literal["maximize", "minimize"] = Field(description="Which outcomes to look for.")
    kernel: Kernel | None = Field(None, description="Hyper-parameters, where the request has none itself.")
    noise: NoiseLaw = Field(NoiseLaw(family="none"), description="Law of the noise that is in the candidates.")
    answers: Answers = Field(NONE, description="What is done to each y.")
    privacy_unit: Literal["row", "answer"] = Field("row", description="Whether answers about one row add up.")


class SuggestionObservation(Request):
    """One outcome that is known."""

    row: int = Field(ge=0, lt=2**53, description="Row of the candidates, from 0.")
    y: Outcome = Field(description="The outcome, in units of the measurement.")
    noise_variance: PositiveFloat | None = Field(
        None,
        description=(
            "Of this outcome, in squared units of y; counts where it is larger than the kernel's; as it is with fit. "
            "Null: the kernel's, or the fitted one."
        ),
    )
    passport: NoisePassport | None = Field(
        None, description="What was done to y, as the curator told it; with it noise_variance has no place."
    )

    @model_validator(mode="after")
    def _one_noise(self) -> Self:
        if self.noise_variance is not None and self.passport is not None:
            raise ValueError("give noise_variance or passport, not both: the passport tells the noise")
        return self


class SuggestionRequest(Request):
    """What is known, and how the next rows are to be chosen. Give ``study`` or ``inline``.

    With the settings, the seed and the outcomes of a run it is answered with the row that the run chooses next.
    """

    study: StudyAccess | None = Field(None, description="Candidates of a curator's release.")
    inline: InlineStudy | None = Field(None, description="Candidates in this request.")
    algorithm: AlgorithmSpec = Field(GpUcb(name="gp_ucb"), description="How rows are chosen.")
    kernel: Kernel | None = Field(None, description="Hyper-parameters, or null: those of the study.")
    fit: Fit | None = Field(None, description="Fit hyper-parameters to the observations, as a run does. Null: do not.")
    observations: list[SuggestionObservation] = Field(
        [], max_length=OBSERVATIONS_MAX, description="Outcomes, in the order in which they came."
    )
    count: int = Field(
        1,
        ge=1,
        le=SUGGESTIONS_MAX,
        description=(
            "How many rows, to be asked together: each is chosen as if those before it had been answered with their "
            "posterior mean. More than 1: for gp_bucb and random; gp_ucb is then taken for gp_bucb."
        ),
    )
    seed: Seed = Field(0, description="Decides initial rows and ties: the same seed makes the same choices.")
    step: int | None = Field(
        None,
        ge=1,
        lt=2**53,
        description="The t of the exploration weight; null: 1 more than there are observations after the initial rows.",
    )
    initial_rows: int = Field(
        0,
        ge=0,
        le=10_000,
        description="So many observations, the first, are of rows of the initial design; where there are fewer, go on.",
    )
    initial_design: Literal["random", "maximin"] = Field("random", description="How the initial rows are chosen.")
    repeats: Literal["algorithm", "never", "after_all"] = Field(
        "algorithm",
        description="Whether a row may be asked again: as the algorithm will, never, or once all were asked.",
    )
    iterations: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="T of the whole loop, after the initial rows: ldp_* weigh by it. Null: these rows are the last.",
    )


class Suggestion(Reply):
    """One row to ask. Moments are in units of the measurement."""

    row: int = Field(description="Row of the candidates.")
    phase: Literal["initial", "algorithm"] = Field(description="Whether the row is of the initial design or chosen.")
    mean: float | None = Field(description="Posterior mean of the row; null for a random one.")
    sd: float | None = Field(description="Posterior standard deviation; null for a random row.")
    acquisition: float | None = Field(description="In the direction of maximization.")
    ties: int = Field(description="Rows that shared the maximum; one was drawn with the seed.")


class SuggestionReply(Reply):
    """Rows to ask next, and the best so far."""

    suggestions: list[Suggestion] = Field(
        description="In the order of choice. Fewer than asked where none is left, and where the initial rows end."
    )
    fitted: Fitted | None = Field(None, description="The last fit of hyper-parameters; null where there is none.")
    ended_because: Literal["budget", "exhausted"] | None = Field(
        description="Why there is none: iterations are used up, or every row was asked. Null: there are some."
    )
    recommendation: Recommendation | None = Field(
        description="The best of the rows asked, by all that is known; null before an observation."
    )
    warnings: list[str] = Field(description="What speaks against the chosen algorithm here, in words.")
