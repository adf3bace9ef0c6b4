"""Studies, releases and grants."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from shared.wire.base import FEATURES_MAX, DecimalString, Epsilon, Name, Page, PositiveFloat, Reply, Request, Sha256


class Feature(Request):
    """One column that the optimization may use, with bounds that are public knowledge.

    A value is clipped to [lower, upper] and becomes (value - (lower + upper) / 2) / scale, in scaled
    units. Bounds and scale must not be computed from the private data.
    """

    column: Name
    lower: float = Field(ge=-1e50, le=1e50, description="Smallest value, in raw units: smaller ones are clipped.")
    upper: float = Field(ge=-1e50, le=1e50, description="Largest value, in raw units: larger ones are clipped.")
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
    mean: float = Field(0.0, ge=-1e50, le=1e50, description="Prior mean, in units of the measurement.")


class Measurement(Request):
    """Where y comes from."""

    source: Literal["column"] = "column"
    column: Name
    direction: Literal["maximize", "minimize"]
    noise_variance: float = Field(
        0.0, ge=0, le=1e50, description="sigma_n^2 of Gaussian noise that the curator adds to each answer."
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


def _acknowledged(said: bool) -> bool:
    if not said:
        raise ValueError("must be true: the owner has to know that this release is not private")
    return said


class PoGpUcbRelease(Request):
    """Algorithm 1 of Kharkovskii et al. (2020), as published. Its privacy theorem is refuted."""

    mechanism: Literal["po_gp_ucb"]
    epsilon: Epsilon
    delta: FailureProbability
    sensitivity: Delta = 1.0
    r: int = Field(ge=1, le=1_000, description="Columns of Z.")
    acknowledge_refuted: Annotated[bool, AfterValidator(_acknowledged)] = Field(
        json_schema_extra={"const": True},
        description="The owner knows that this is not differentially private: d+1 known rows reconstruct the rest.",
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
    epsilon: DecimalString | None = Field(description="Of the release; null where it claims nothing.")
    delta: float | None = Field(description="Of the release: failure probability of (epsilon, delta).")
    sensitivity: float | None = Field(description="Delta: how far one row may move, in scaled units.")
    noise: NoiseLaw = Field(description="The public law of Z given X.")
    answers: Answers
    direction: Literal["maximize", "minimize"]
    measurement_noise_variance: float = Field(description="Added by the curator to each answer.")
    kernel: Kernel | None
    limits: Limits
    guarantee: str = Field(description="What is promised for the records, in words.")


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
