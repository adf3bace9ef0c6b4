"""Release mechanisms: what an owner asks for, and what is told of one."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from blindopt.wire.base import Epsilon, PositiveFloat, Reply, Request

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
_ROTATE = "Turn Z by a secret random rotation after the noise: free, and no part of any claim."


class IdentityRelease(Request):
    """Z = X, unprotected. Only for a dataset that its owner declares public."""

    mechanism: Literal["identity"] = Field(description="Names the kind of release.")


def _acknowledged(said: bool) -> bool:
    if not said:
        raise ValueError("must be true: the owner has to know that this release is not private")
    return said


class PoGpUcbRelease(Request):
    """Algorithm 1 of Kharkovskii et al. (2020), as published. Its privacy theorem is refuted."""

    mechanism: Literal["po_gp_ucb"] = Field(description="Names the kind of release.")
    epsilon: Epsilon
    delta: FailureProbability
    sensitivity: Delta = 1.0
    r: int = Field(ge=1, le=1_000, description="Columns of Z.")
    acknowledge_refuted: Annotated[bool, AfterValidator(_acknowledged)] = Field(
        json_schema_extra={"const": True},
        description="The owner knows that this is not differentially private: d+1 known rows reconstruct the rest.",
    )


class GaussianRelease(Request):
    """Z = X plus Gaussian noise calibrated by the analytic Gaussian mechanism: (epsilon, delta)-DP."""

    mechanism: Literal["gaussian"] = Field(description="Names the kind of release.")
    epsilon: Epsilon
    delta: FailureProbability
    sensitivity: Delta = 1.0
    rotate: bool = Field(False, description=_ROTATE)


class PlanarLaplaceRelease(Request):
    """Z = X plus noise of density proportional to exp(-epsilon |u| / Delta) in d dimensions: pure epsilon-DP."""

    mechanism: Literal["planar_laplace"] = Field(description="Names the kind of release.")
    epsilon: Epsilon
    sensitivity: Delta = 1.0
    rotate: bool = Field(False, description=_ROTATE)


class GaussianProjectionRelease(Request):
    """Z = sqrt(d/r) X P plus Gaussian noise, P a secret orthonormal d x r projection: (epsilon, delta)-DP."""

    mechanism: Literal["gaussian_projection"] = Field(description="Names the kind of release.")
    epsilon: Epsilon
    delta: FailureProbability
    sensitivity: Delta = 1.0
    r: int = Field(ge=1, le=1_000, description="Columns of Z; smaller than the number of features.")


class AutoRelease(Request):
    """The sound mechanism with the smaller noise per coordinate: chosen from public values alone."""

    mechanism: Literal["auto"] = Field("auto", description="Names the kind of release.")
    epsilon: Epsilon
    delta: FailureProbability | None = Field(None, description="delta of (epsilon, delta); null: pure epsilon-DP only.")
    sensitivity: Delta = 1.0
    rotate: bool = Field(False, description=_ROTATE)


def _kind(said: Any) -> Any:
    return said.get("mechanism", "auto") if isinstance(said, dict) else getattr(said, "mechanism", None)


ReleaseSpec = Annotated[
    Annotated[AutoRelease, Tag("auto")]
    | Annotated[PlanarLaplaceRelease, Tag("planar_laplace")]
    | Annotated[GaussianRelease, Tag("gaussian")]
    | Annotated[GaussianProjectionRelease, Tag("gaussian_projection")]
    | Annotated[PoGpUcbRelease, Tag("po_gp_ucb")]
    | Annotated[IdentityRelease, Tag("identity")],
    Discriminator(_kind),
]
SoundRelease = AutoRelease | PlanarLaplaceRelease | GaussianRelease | GaussianProjectionRelease

Status = Literal["sound", "refuted", "unprotected", "withdrawn"]


class NoiseLaw(Reply):
    """The public law of Z given X."""

    family: Literal["none", "gaussian", "planar_laplace", "gaussian_projection", "random_projection"] = Field(
        description=(
            "gaussian: independent noise in each coordinate; planar_laplace: density proportional to "
            "exp(-sqrt(r + 1) |u| / sd); gaussian_projection: a secret projection, then gaussian; "
            "random_projection: a secret linear map and no noise."
        )
    )
    sd: float | None = Field(None, description="Standard deviation per coordinate, in scaled units.")


class FeatureMeaning(Reply):
    """What Delta and the noise are in the unit of one feature."""

    column: str = Field(description="The feature.")
    sensitivity: float | None = Field(
        description="Delta in this feature alone: what epsilon is about. A larger change is protected less."
    )
    noise_sd: float | None = Field(
        description="Standard deviation of the noise, in this feature's unit; null where columns of Z mix features."
    )


class Price(Reply):
    """What a study costs, before anything is spent. Amounts are exact decimals; null where none is finite."""

    release_epsilon: str | None = Field(description="What the release charges every row; 0: of public records.")
    answer_epsilon: str | None = Field(description="What one released y charges its row.")
    answers_per_row: int | None = Field(description="Releases of y that the caps leave one row; null: no cap on it.")
    answers: int | None = Field(description="Releases of y that the caps leave the study; null: no cap on them.")
    row_epsilon: str | None = Field(description="What a row has spent when all of its answers are.")
    tight_row_epsilon: float | None = Field(description="The same by its privacy loss distribution, at tight_delta.")
    tight_delta: float | None = Field(description="The study's delta; null where it has none.")
    sentence: str = Field(description="The same in words.")


class Finding(Reply):
    """What one attack gets from a release or from answers."""

    attack: Literal["known_rows", "known_rows_noisy", "column_space", "linkage", "membership", "averaging"] = Field(
        description="Which attack."
    )
    figure: float = Field(description="How well it does.")
    low: float = Field(description="Lower end of the interval.")
    high: float | None = Field(description="Upper end of the interval; null where the attack only bounds from below.")
    confidence: float = Field(description="Of the interval.")
    unit: str = Field(description="What the figure counts.")
    distance: float | None = Field(
        None, description="Median distance of guessed rows from the true ones, in Delta; null where none is guessed."
    )
    sentence: str = Field(description="The same in words, for a person who owns the records.")


class ReleaseReport(Reply):
    """What the owner may know of a release. It depends on the data: never shown to a modeler."""

    mechanism: str = Field(description="The mechanism that runs.")
    version: int = Field(description="Its version.")
    why: str | None = Field(description="Why auto took it; null where the owner chose.")
    guarantee: str = Field(description="What is promised for the records, in words.")
    not_protected: list[str] = Field(description="What is not promised, in words.")
    status: Status = Field(description="Whether that promise is proved, refuted, withdrawn, or none.")
    n: int = Field(description="Rows of Z.")
    r: int = Field(description="Columns of Z.")
    noise_sd: float | None = Field(None, description="Per coordinate of Z, in scaled units.")
    features: list[FeatureMeaning] = Field(description="What Delta and noise mean in the unit of each feature.")
    price: Price = Field(description="What it costs, and what the budget leaves for answers.")
    attacks: list[Finding] = Field(description="What an attacker would get, on a trial that is thrown away.")
    not_tried: str | None = Field(
        None, description="What a preview left out, and why, in words; null where it left out nothing."
    )
    sigma_min: float | None = Field(None, description="Smallest singular value of the centred, scaled X.")
    omega: float | None = Field(None, description="Threshold of Algorithm 1 for the chosen r, times Delta.")
    branch: Literal["project", "lift"] | None = Field(None, description="The branch that Algorithm 1 takes.")
    largest_r: int | None = Field(None, description="Largest r with sigma_min >= omega; 0 where there is none.")
