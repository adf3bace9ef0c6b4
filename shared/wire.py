"""What crosses between the parties: frozen types, strict numbers, nothing that names code to load.

Requests refuse fields they do not know; replies ignore them, so that an older client can read a newer
service. Floats are finite, ``true`` is not a number, and privacy amounts are decimal strings.
"""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

PLAYS_MAX = 1_000
ROWS_MAX = 1_000
FEATURES_MAX = 1_000


class Request(BaseModel):
    """A body that a client sends."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class Reply(BaseModel):
    """A body that a service answers with."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Seed = Annotated[int, Field(ge=0, lt=2**53)]
PositiveFloat = Annotated[float, Field(gt=0, le=1e100)]
DecimalString = Annotated[
    str,
    Field(pattern=r"^[0-9]{1,6}(\.[0-9]{1,12})?$", description="A decimal number as a string.", examples=["1.5"]),
]


def _privacy_parameter(text: str) -> str:
    if not 0 < Decimal(text) <= 1_000:
        raise ValueError("epsilon must be above 0 and at most 1000")
    return text


Epsilon = Annotated[DecimalString, AfterValidator(_privacy_parameter)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Page(Reply):
    """One page of a listing, ordered by sequence number."""

    next_page_token: str | None = Field(None, description="Ask again with it as page_token; null at the end.")


# --- errors --------------------------------------------------------------------------------------


class FieldProblem(Reply):
    """Where a request or a file is wrong. Never holds the value that was sent."""

    model_config = ConfigDict(extra="allow", frozen=True)

    message: str
    field: str | None = Field(None, description="Path of the field in the request.")
    row: int | None = Field(None, description="Data row of a file, counted from 1 after the header.")
    line: int | None = Field(None, description="Line of a file, counted from 1.")
    column: str | None = Field(None, description="Column of a file.")


class Problem(Reply):
    """RFC 9457 problem document: every error of both services has this form."""

    type: str = Field(description="A URI reference that names the kind of problem.")
    title: str
    status: int
    detail: str
    instance: str = Field(description="The path that was asked.")
    code: str = Field(description="Stable name of the problem, for programs.")
    retryable: bool = Field(description="Whether the same request may succeed later.")
    request_id: str
    errors: list[FieldProblem] | None = None
    errors_total: int | None = Field(None, description="How many there are, where only the first are listed.")


# --- datasets ------------------------------------------------------------------------------------


class Column(Reply):
    """One numeric column of a dataset, as the owner sees it."""

    name: str
    type: Literal["number"] = "number"
    missing: Literal[0] = Field(0, description="Always 0: a file with missing values is refused.")
    minimum: float
    maximum: float


class DatasetView(Reply):
    """A registered table. Seen by the owner alone."""

    id: str
    name: str
    public: bool = Field(description="The owner declares that nobody in it needs protection.")
    state: Literal["active", "archived"]
    rows: int
    columns: list[Column]
    dropped: list[str] = Field(description="Columns of the file that were neither read nor stored.")
    sha256: Sha256 = Field(description="Of the file as it was sent.")
    created_at: datetime


class DatasetPage(Page):
    """A page of datasets."""

    datasets: list[DatasetView]


# --- studies -------------------------------------------------------------------------------------


class Feature(Request):
    """One column that the optimization may use, with bounds that are public knowledge.

    A value is clipped to [lower, upper] and becomes (value - (lower + upper) / 2) / scale, in scaled
    units. Bounds and scale must not be computed from the private data.
    """

    column: Name
    lower: float = Field(ge=-1e100, le=1e100)
    upper: float = Field(ge=-1e100, le=1e100)
    scale: PositiveFloat | None = Field(None, description="Raw units in one scaled unit; default upper - lower.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.lower < self.upper:
            raise ValueError("lower must be smaller than upper")
        return self

    @property
    def unit(self) -> float:
        """Raw units in one scaled unit."""
        return self.scale if self.scale is not None else self.upper - self.lower


class Kernel(Request):
    """Squared-exponential kernel and Gaussian likelihood with hyper-parameters that are public values."""

    kind: Literal["squared_exponential"] = "squared_exponential"
    lengthscale: PositiveFloat = Field(description="In scaled units of the features.")
    signal_variance: PositiveFloat = Field(description="In squared units of the measurement.")
    noise_variance: PositiveFloat = Field(description="Of one measurement, in its squared units.")
    mean: float = Field(0.0, ge=-1e100, le=1e100, description="Prior mean, in units of the measurement.")


class Measurement(Request):
    """Where y comes from."""

    source: Literal["column"] = "column"
    column: Name
    direction: Literal["maximize", "minimize"]
    noise_variance: float = Field(
        0.0, ge=0, le=1e100, description="sigma_n^2 of Gaussian noise that the curator adds to each answer."
    )


Delta = Annotated[
    PositiveFloat,
    Field(
        description=(
            "Delta: neighbouring datasets differ in one row, which moves by at most this Euclidean "
            "distance in scaled units."
        )
    ),
]
FailureProbability = Annotated[float, Field(ge=1e-18, le=0.1, description="delta of (epsilon, delta).")]


class IdentityRelease(Request):
    """Z = X, unprotected. Only for a dataset that its owner declares public."""

    mechanism: Literal["identity"]


class PoGpUcbRelease(Request):
    """Algorithm 1 of Kharkovskii et al. (2020), as published. Its privacy theorem is refuted."""

    mechanism: Literal["po_gp_ucb"]
    epsilon: Epsilon
    delta: FailureProbability
    sensitivity: Delta = 1.0
    r: int = Field(ge=1, le=1_000, description="Columns of Z.")
    acknowledge_refuted: Literal[True] = Field(
        description="The owner knows that this is not differentially private: d+1 known rows reconstruct the rest."
    )


class GaussianRelease(Request):
    """Z = X plus Gaussian noise calibrated by the analytic Gaussian mechanism."""

    mechanism: Literal["gaussian"]
    epsilon: Epsilon
    delta: FailureProbability
    sensitivity: Delta = 1.0


ReleaseSpec = Annotated[IdentityRelease | PoGpUcbRelease | GaussianRelease, Field(discriminator="mechanism")]


class Answers(Request):
    """What is done to y before it leaves."""

    mechanism: Literal["none"] = "none"


class StudyCreate(Request):
    """A draft of one outsourced optimization."""

    name: Name
    dataset_id: Name
    features: list[Feature] = Field(min_length=1, max_length=FEATURES_MAX)
    measurement: Measurement
    release: ReleaseSpec
    answers: Answers = Answers()
    kernel: Kernel | None = Field(None, description="Public hyper-parameters, or null: the modeler brings its own.")


Status = Literal["sound", "refuted", "unprotected"]


class FeatureMeaning(Reply):
    """What Delta and the noise are in the unit of one feature."""

    column: str
    sensitivity: float | None = Field(description="A change of this size, in this feature alone, is protected.")
    noise_sd: float | None = Field(description="Standard deviation of the noise, in this feature's unit.")


class ReleaseReport(Reply):
    """What the owner may know of a release. It depends on the data: never shown to a modeler."""

    guarantee: str
    status: Status
    n: int
    r: int
    noise_sd: float | None = Field(None, description="Per coordinate of Z, in scaled units.")
    features: list[FeatureMeaning]
    sigma_min: float | None = Field(None, description="Smallest singular value of the centred, scaled X.")
    omega: float | None = Field(None, description="Threshold of Algorithm 1 for the chosen r, times Delta.")
    branch: Literal["project", "lift"] | None = Field(None, description="The branch that Algorithm 1 takes.")
    largest_r: int | None = Field(None, description="Largest r with sigma_min >= omega; 0 where there is none.")


class StudyOwnerView(Reply):
    """A study as its owner sees it."""

    id: str
    state: Literal["draft", "releasing", "open", "closed"]
    created_at: datetime
    opened_at: datetime | None
    spec: StudyCreate
    guarantee: str
    release_id: str | None
    release_sha256: Sha256 | None
    report: ReleaseReport | None


class StudyPage(Page):
    """A page of studies."""

    studies: list[StudyOwnerView]


class NoiseLaw(Reply):
    """The public law of Z given X."""

    family: Literal["none", "gaussian", "random_projection"]
    sd: float | None = Field(None, description="Standard deviation per coordinate, in scaled units.")


class Limits(Reply):
    """What one request may ask."""

    rows_per_query: int
    plays_per_row: int


class StudyView(Reply):
    """All that a modeler may know of a study besides Z and the answers.

    Nothing here depends on the data except the number of rows.
    """

    id: str
    state: Literal["open", "closed"]
    n: int
    r: int
    release_id: str
    release_sha256: Sha256
    mechanism: str
    status: Status
    epsilon: DecimalString | None
    delta: float | None
    sensitivity: float | None
    noise: NoiseLaw
    answers: Answers
    direction: Literal["maximize", "minimize"]
    measurement_noise_variance: float = Field(description="Added by the curator to each answer.")
    kernel: Kernel | None
    limits: Limits
    guarantee: str


class GrantCreate(Request):
    """A credential for one modeler and one study."""

    name: Name
    expires_in_days: int = Field(90, ge=1, le=3_660)


class GrantReply(Reply):
    """The token is shown here and never again."""

    id: str
    name: str
    study_id: str
    token: str = Field(description="A secret: give it to the modeler over a private channel.", repr=False)
    expires_at: datetime


class GrantView(Reply):
    """A grant without its secret."""

    id: str
    name: str
    study_id: str
    state: Literal["live", "revoked"]
    expires_at: datetime


class GrantPage(Page):
    """A page of grants."""

    grants: list[GrantView]


# --- queries -------------------------------------------------------------------------------------


class RowPlays(Request):
    """One row and how often to measure it."""

    row: int = Field(ge=0, lt=2**53)
    plays: int = Field(1, ge=1, le=PLAYS_MAX)


class QueryRequest(Request):
    """Rows of Z that the modeler wants measured."""

    rows: list[RowPlays] = Field(min_length=1, max_length=ROWS_MAX)


class PrivacyNoise(Reply):
    """Noise that protects an answer."""

    family: Literal["none"] = "none"
    scale: float | None = None
    bound: float | None = None


class NoisePassport(Reply):
    """What was done to y before it left: the modeler's algorithm reads its likelihood from it."""

    privacy: PrivacyNoise = PrivacyNoise()
    clip: tuple[float, float] | None = None
    measurement_variance: float = Field(description="Of the noise that the curator added as measurement noise.")
    measurement_variance_known: bool = True


class Answer(Reply):
    """One released measurement of one row."""

    row: int
    play: int = Field(description="1 for the first of this query's plays of the row.")
    y: float
    passport: NoisePassport


class QueryReply(Reply):
    """An answered query."""

    id: str
    study_id: str
    state: Literal["answered"]
    created_at: datetime
    answers: list[Answer]
    salt: str = Field(description="Random: the digest of this reply in the logs then reveals nothing of y.")


# --- runs ----------------------------------------------------------------------------------------


class GpUcb(Request):
    """GP-UCB, Algorithm 2 of Kharkovskii et al. (2020)."""

    name: Literal["gp_ucb"]
    delta_ucb: float = Field(0.05, gt=0, lt=1, description="Theorem 3; delta' is half of it.")


class RandomRows(Request):
    """Uniform random rows without repetition: the yardstick that learns nothing."""

    name: Literal["random"]


AlgorithmSpec = Annotated[GpUcb | RandomRows, Field(discriminator="name")]


class RunCreate(Request):
    """One optimization against one study of a curator."""

    name: Name = "run"
    curator_url: Annotated[str, Field(max_length=2_000, pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")]
    study_id: Annotated[str, Field(pattern=r"^std_[0-9a-f]{16}$")]
    token: Annotated[str, Field(max_length=200, repr=False, description="The grant's token; never shown again.")]
    algorithm: AlgorithmSpec = GpUcb(name="gp_ucb")
    iterations: int = Field(50, ge=1, le=100_000, description="T: queries after the initial ones.")
    initial_rows: int = Field(1, ge=0, le=10_000, description="Uniform random rows asked first.")
    seed: Seed = 0
    kernel: Kernel | None = Field(None, description="Fixed hyper-parameters, or null: those of the study.")


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


# --- both ----------------------------------------------------------------------------------------


class AuditEntry(Reply):
    """A record of the log: ``body`` is the canonical text that was hashed."""

    seq: int
    body: str
    leaf: Sha256
    peaks: Annotated[str, Field(pattern=r"^([0-9a-f]{64})+$", description="Frontier of the Merkle tree, in hex.")]


class AuditPage(Page):
    """A page of the audit log."""

    entries: list[AuditEntry]


class Checkpoint(Reply):
    """Size and root of the log."""

    size: int
    root: Sha256


class Health(Reply):
    """State of a service."""

    status: Literal["ok"]


class MechanismView(Reply):
    """A release mechanism and whether its claim holds."""

    name: str
    version: int
    status: Status
    claim: str


class CuratorMeta(Reply):
    """What a curator offers."""

    service: Literal["blindopt-curator"]
    version: str
    mechanisms: list[MechanismView]
    limits: Limits


class ModelerMeta(Reply):
    """What a modeler offers."""

    service: Literal["blindopt-modeler"]
    version: str
    algorithms: list[str]


def amount(text: str) -> Decimal:
    """The exact decimal behind a DecimalString."""
    return Decimal(text)
