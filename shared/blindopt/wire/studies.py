"""Studies, releases and grants."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from blindopt.wire.answers import NONE, Answers
from blindopt.wire.base import (
    FEATURES_MAX,
    BudgetEpsilon,
    DecimalString,
    Name,
    Page,
    PositiveFloat,
    Reply,
    Request,
    Sha256,
)
from blindopt.wire.measurements import MeasurementSpec
from blindopt.wire.releases import NoiseLaw, ReleaseReport, ReleaseSpec, Status


class Feature(Request):
    """One column that the optimization may use, with bounds that are public knowledge.

    A value is clipped to [lower, upper] and becomes (value - (lower + upper) / 2) / scale, in scaled
    units. Bounds and scale must not be computed from the private data.
    """

    column: Name = Field(description="A column of the dataset.")
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
    """A kernel and Gaussian likelihood with hyper-parameters that are public values."""

    kind: Literal["squared_exponential", "matern_12", "matern_32", "matern_52"] = Field(
        "squared_exponential", description="The covariance function; matern_32 is the Matern kernel of order 3/2."
    )
    lengthscale: PositiveFloat = Field(description="In scaled units of the features.")
    signal_variance: PositiveFloat = Field(description="In squared units of the measurement.")
    noise_variance: PositiveFloat = Field(description="Of one measurement, in its squared units.")
    mean: float = Field(0.0, ge=-1e50, le=1e50, description="Prior mean, in units of the measurement.")


class Budget(Request):
    """Caps. Each is checked before anything is drawn; what a cap refuses costs nothing."""

    epsilon_per_row: BudgetEpsilon | None = Field(
        None,
        description=(
            "On what one person spends: where rows are the people (privacy_unit row), the release and every answer "
            "about the row together; where each answer is another person's (answer), the release and each answer "
            "alone. Null: no cap."
        ),
    )
    epsilon_total: BudgetEpsilon | None = Field(
        None, description="On the sum of the release and all answers, as if all were about one person. Null: no cap."
    )
    queries: int | None = Field(
        None, ge=1, lt=2**53, description="On measurements: each play of each row counts. Null: no cap."
    )


class StudyCreate(Request):
    """A draft of one outsourced optimization."""

    name: Name = Field(description="For people; a modeler does not see it.")
    dataset_id: Name = Field(description="The dataset; a modeler does not see it.")
    features: list[Feature] = Field(
        min_length=1,
        max_length=FEATURES_MAX,
        description="What Z is made from. A modeler does not see names and bounds.",
    )
    measurement: MeasurementSpec = Field(description="The outcome to optimize.")
    release: ReleaseSpec = Field(description="How Z is made, and what it costs.")
    answers: Answers = Field(NONE, description="What is done to each y, and what it costs.")
    privacy_unit: Literal["row", "answer"] = Field(
        "row", description="row: rows are people, and answers about one row add up; answer: each is another person's."
    )
    budget: Budget = Field(Budget(), description="Caps on what the study may spend.")
    kernel: Kernel | None = Field(None, description="Public hyper-parameters, or null: the modeler brings its own.")
    reply_after_ms: int | None = Field(
        None,
        ge=1,
        le=60_000,
        description=(
            "Timing protection: every reply to a query, refusals too, leaves this long after its arrival, or at the "
            "next multiple if the work takes longer. Null: as soon as it is ready."
        ),
    )


class StudyChange(StudyCreate):
    """A draft as it is to be from now on."""

    replaces: Sha256 = Field(
        description="spec_sha256 of the draft that this was made from: 409 where somebody has changed it since."
    )

    @property
    def study(self) -> StudyCreate:
        """The study alone."""
        return StudyCreate.model_validate_json(self.model_dump_json(exclude={"replaces"}))


class ReleaseAsked(Request):
    """Which draft is to be released, as its owner has read it."""

    spec_sha256: Sha256 = Field(description="Of the draft: 409 where somebody has changed it since.")


class StudyOwnerView(Reply):
    """A study as its owner sees it."""

    id: str = Field(description="std_...")
    state: Literal["draft", "releasing", "open", "closed"] = Field(
        description="A draft is released once and is then open; a closed one answers no queries."
    )
    created_at: datetime = Field(description="When the draft was made.")
    opened_at: datetime | None = Field(description="When Z was released; null before.")
    spec: StudyCreate = Field(description="As it was created, or changed while it was a draft.")
    spec_sha256: Sha256 = Field(description="Names it as it is now, as the log does.")
    guarantee: str = Field(description="What is promised for the records, in words.")
    not_protected: list[str] = Field(description="What is not promised, in words.")
    progress: float | None = Field(None, ge=0, le=1, description="Share of the rows drawn; null unless releasing.")
    release_id: str | None = Field(description="rel_...; null before the release.")
    release_sha256: Sha256 | None = Field(description="Of the npy file of Z; null before the release.")
    report: ReleaseReport | None = Field(description="What the data made of the release: for the owner alone.")


class StudyPage(Page):
    """A page of studies."""

    studies: list[StudyOwnerView] = Field(description="In the order of their creation.")


class Limits(Reply):
    """What one request may ask."""

    rows_per_query: int = Field(description="Most rows in one query.")
    plays_per_row: int = Field(description="Most plays of one row in one query.")


class StudyView(Reply):
    """All that a modeler may know of a study besides Z and the answers.

    Nothing here depends on the data except the number of rows.
    """

    id: str = Field(description="std_...")
    state: Literal["open", "closed"] = Field(description="A closed study answers no queries.")
    n: int = Field(ge=1, le=10**9, description="Rows of Z.")
    r: int = Field(ge=1, le=1_000, description="Columns of Z.")
    release_id: str = Field(description="rel_...")
    release_sha256: Sha256 = Field(description="Of the npy file of Z: its ETag.")
    mechanism: str = Field(max_length=100, description="Name of the release mechanism.")
    status: Status = Field(description="Whether the guarantee is proved, refuted, or none.")
    epsilon: DecimalString | None = Field(
        description="Of the release; null where it claims nothing: refuted, withdrawn, or unprotected."
    )
    delta: float | None = Field(
        description="Of the release: failure probability of (epsilon, delta); null where it claims none."
    )
    sensitivity: float | None = Field(
        description="Delta: how far one row may move, in scaled units, and be protected; null as epsilon is."
    )
    noise: NoiseLaw = Field(description="How Z was made from X: public.")
    answers: Answers = Field(description="What is done to each y, by name: never auto; and what it costs.")
    privacy_unit: Literal["row", "answer"] = Field(description="Whether answers about one row add up.")
    budget: Budget = Field(description="Caps on what the study may spend.")
    grant_id: str = Field(pattern=r"^grt_[0-9a-f]{16}$", description="The grant that asks, and its shared log.")
    log_key: str = Field(max_length=400, description="C2SP verifier key of the curator's checkpoints.")
    direction: Literal["maximize", "minimize"] = Field(description="Which outcomes the owner looks for.")
    measurement_source: Literal["column", "inbox", "webhook"] = Field(
        "column", description="column: answers come at once; else a person or a laboratory measures, which takes time."
    )
    measurement_noise_variance: float = Field(description="Of one measurement, as far as it is known, in units of y^2.")
    kernel: Kernel | None = Field(description="Public hyper-parameters; null: bring your own.")
    limits: Limits = Field(description="What one query may ask.")
    reply_after_ms: int | None = Field(
        ge=1,
        le=60_000,
        description="Every reply to a query leaves so long after its arrival, or a multiple; null: at once.",
    )
    guarantee: str = Field(max_length=4_000, description="What is promised for the records, in words.")
    not_protected: list[Annotated[str, Field(max_length=4_000)]] = Field(
        max_length=100, description="What is not promised, in words."
    )


class GrantCreate(Request):
    """A credential for one modeler and one study."""

    name: Name = Field(description="For whom: shown in listings.")
    expires_in_days: int = Field(90, ge=1, le=3_660, description="Days until the token expires.")


class TokenView(Reply):
    """A token without its secret."""

    kid: str = Field(description="Key id: the 16 hex digits after blindopt_.")
    state: Literal["live", "expired", "revoked"] = Field(description="Only a live one is let in.")
    created_at: datetime = Field(description="When it was made.")
    expires_at: datetime = Field(description="From then on it is refused.")
    last_used_at: datetime | None = Field(description="To the minute; null if never.")


class GrantReply(Reply):
    """The token is shown here and never again."""

    id: str = Field(description="grt_...: the grant, through all of its tokens.")
    kid: str = Field(description="Key id of this token: not a secret.")
    name: str = Field(description="For whom.")
    study_id: str = Field(description="The one study that the token opens.")
    token: str = Field(description="A secret: give it to the modeler over a private channel.", repr=False)
    expires_at: datetime = Field(description="From then on the token is refused.")


class GrantView(Reply):
    """A grant without its secrets."""

    id: str = Field(description="grt_...")
    name: str = Field(description="For whom.")
    study_id: str = Field(description="The one study that it opens.")
    state: Literal["live", "expired", "revoked"] = Field(description="live while one of its tokens is.")
    tokens: list[TokenView] = Field(description="Oldest first; at most two are live, for rotation.")
    key: str | None = Field(description="C2SP verifier key of the modeler, once it countersigned; compare it by phone.")


class GrantPage(Page):
    """A page of grants."""

    grants: list[GrantView] = Field(description="In the order of their creation.")


class Rotation(Request):
    """A further token for a grant."""

    expires_in_days: int = Field(90, ge=1, le=3_660, description="Days until the new token expires.")
