"""Studies from draft to closed, how y is measured, and overviews of studies."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from blindopt.wire.answer import Answers
from blindopt.wire.base import (
    FEATURES_MAX,
    BoundedFloat,
    BudgetEpsilon,
    Caution,
    DecimalString,
    Epsilon,
    Limits,
    Name,
    NonNegativeFloat,
    Page,
    PositiveFloat,
    Reply,
    Request,
    Sha256,
)
from blindopt.wire.dataset import ROWS_PER_PERSON_MAX
from blindopt.wire.goal import BEST, Goal
from blindopt.wire.ledger import DatasetOutlook
from blindopt.wire.query import PublishedCandidates
from blindopt.wire.release import (
    FeatureMeaning,
    NoiseLaw,
    Price,
    PromiseOffer,
    ReleaseReport,
    ReleaseSpec,
    Status,
    Strength,
)

SHOWN_MAX = 50


class _Measurement(Request):
    """Fields of all sources."""

    direction: Literal["maximize", "minimize"]
    """Whether the owner looks for the largest or the smallest outcome."""


class ColumnMeasurement(_Measurement):
    """y is a column of the dataset: queries are answered at once."""

    source: Literal["column"] = Field("column", description="Source of the outcome: a column of the dataset.")
    column: Name = Field(description="The column of the outcome; it cannot also be a feature.")
    noise_variance: NonNegativeFloat = 0.0
    """sigma_n^2, the variance of Gaussian noise that the curator adds to each answer."""


class _Measured(_Measurement):
    """y is measured on request: a query is pending until then.

    Of these fields, a modeler sees only direction and noise_variance.
    """

    shown: list[Name] = Field([], max_length=SHOWN_MAX)
    """Columns of the record that are shown to the person or system that measures."""
    unit: Name | None = Field(None, description="Unit of the outcome, for display.")
    lower: BoundedFloat | None = None
    """Smallest plausible value, in its unit: smaller ones are refused."""
    upper: BoundedFloat | None = None
    """Largest plausible value, in its unit: larger ones are refused."""
    noise_variance: NonNegativeFloat = 0.0
    """Noise variance of one measurement, if the owner knows it, in squared units of the outcome; 0: unknown."""
    due_hours: float | None = Field(None, ge=0.001, le=100_000)
    """A measurement that is open for so long counts as declined, so that the modeler can continue; a later answer is
    still accepted. Null: no limit."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.lower is not None and self.upper is not None and not self.lower < self.upper:
            raise ValueError("lower must be smaller than upper")
        return self


class InboxMeasurement(_Measured):
    """y is measured by a person, such as a test on a patient or a visit to a house."""

    source: Literal["inbox"] = Field("inbox", description="Source of the outcome: people with the role measurer.")
    question: str = Field(min_length=1, max_length=2_000, description="What to measure, for people.")


class WebhookMeasurement(_Measured):
    """y is measured by the owner's system, which the curator calls (setting MEASURER_URL)."""

    source: Literal["webhook"] = Field("webhook", description="Source of the outcome: a system in the owner's network.")


def _source(value: Any) -> Any:
    """Return the source of a body or a model; "column" if it has none."""
    return value.get("source", "column") if isinstance(value, dict) else getattr(value, "source", "column")


MeasurementSpec = Annotated[
    Annotated[ColumnMeasurement, Tag("column")]
    | Annotated[InboxMeasurement, Tag("inbox")]
    | Annotated[WebhookMeasurement, Tag("webhook")],
    Discriminator(_source),
]


BOTH_UNITS = "state hidden_change (what is hidden) or scale with the release's sensitivity, not both"


class Feature(Request):
    """A column that the optimization may use, with public bounds.

    A value is clipped to [lower, upper] and becomes (value - (lower + upper) / 2) / unit, in scaled units; the unit is
    hidden_change, or scale, or else upper - lower. None of these may be computed from the private data.
    """

    column: Name = Field(description="A column of the dataset.")
    lower: BoundedFloat = Field(description="Lower bound, in raw units: smaller values are clipped.")
    upper: BoundedFloat = Field(description="Upper bound, in raw units: larger values are clipped.")
    hidden_change: PositiveFloat | None = None
    """The change of this feature that the release hides, in raw units: Delta, if only this feature changes. Changes of
    several features are hidden while the sum of (change / hidden_change)^2 is at most 1, or of change / hidden_change
    with the promise one_feature. Where any feature has it, one that has none hides its whole range, and sensitivity
    stays 1."""
    scale: PositiveFloat | None = None
    """Raw units in one scaled unit; default upper - lower. Not with hidden_change, which sets it."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.lower < self.upper:
            raise ValueError("lower must be smaller than upper")
        if self.hidden_change is not None and self.scale is not None:
            raise ValueError(BOTH_UNITS)
        return self

    @property
    def unit(self) -> float:
        """Raw units in one scaled unit."""
        return self.hidden_change or self.scale or self.upper - self.lower


class Kernel(Request):
    """A kernel and Gaussian likelihood with hyper-parameters that are public values."""

    kind: Literal["squared_exponential", "matern_12", "matern_32", "matern_52"] = "squared_exponential"
    """The covariance function; matern_32 is the Matern kernel of order 3/2."""
    lengthscale: PositiveFloat = Field(description="Length-scale, in scaled units of the features.")
    signal_variance: PositiveFloat = Field(description="Signal variance, in squared units of the measurement.")
    noise_variance: PositiveFloat = Field(description="Noise variance of one measurement, in its squared units.")
    mean: BoundedFloat = Field(0.0, description="Prior mean, in units of the measurement.")


class Budget(Request):
    """Caps on what a study may spend. Each is checked before any noise is drawn; a refused request costs nothing."""

    epsilon_per_row: BudgetEpsilon | None = None
    """Cap on the epsilon of one person. With privacy_unit row (records are people): the release and all answers about
    the record together, or about all records of the person where the dataset has a person column. With privacy_unit
    answer (each answer is another person's): the release and each answer by itself, but for source column, where one
    stored value is behind all answers about a record: together. Null: no cap."""
    epsilon_total: BudgetEpsilon | None = None
    """Cap on the sum of the release and all answers, as if all were about one person. Null: no cap."""
    queries: int | None = Field(None, ge=1, lt=2**53)
    """Cap on the number of measurements: each measurement of each candidate counts. Null: no cap."""


class Refine(Request):
    """A measured record leaves again, less blurred: with its first answer, and with the noise of epsilon.

    A record that was measured has used epsilon beside the release's; all others the release's alone.
    """

    epsilon: Epsilon = Field(description="Epsilon of the second draw, pure, which each refined record uses.")
    persons: int | None = Field(None, ge=1, lt=2**53)
    """Persons who may be refined, at most: a query that would refine more is refused. Null: the cap on queries."""


class RefineView(Reply):
    """The second draw of each measured record, as a modeler sees it: the law of the release, with less noise."""

    epsilon: DecimalString = Field(description="Epsilon of the second draw.")
    sd: float = Field(gt=0)
    """Standard deviation of its noise per coordinate, in scaled units; the release's family."""


_NOT_STATED: Any = None
_WHAT_TO_STATE = (
    'state what is done to y: {"mechanism": "auto", "epsilon": "1", "value_bound": 3.0} adds noise, with an epsilon '
    'and a bound of yours; {"mechanism": "none"} releases y exactly as it was measured'
)


def _stated(value: Any) -> Any:
    if value is None:
        raise ValueError(_WHAT_TO_STATE)
    return value


def _require_answers(schema: dict[str, Any]) -> None:
    """Change the schema of a draft: ``answers`` has a default only so that its absence has an error of its own."""
    schema["properties"]["answers"].pop("default", None)
    schema["required"] = list(dict.fromkeys([*schema["required"], "answers"]))


class BudgetChange(Reply):
    """A raise of a released study's caps."""

    at: datetime = Field(description="When.")
    before: Budget = Field(description="The caps until then.")
    after: Budget = Field(description="The caps from then on.")
    reason: str = Field(max_length=2_000, description="Why, in the owner's words.")


class Processing(Request):
    """What the owner states of a study for its privacy report. No vendor reads it."""

    purpose: str = Field("", max_length=500, description="Why the records are used.")
    recipient: str = Field("", max_length=500, description="Who receives the release and the answers.")
    period: str = Field("", max_length=500, description="From when to when, and when the recipient deletes them.")
    responsible: str = Field("", max_length=500, description="The person responsible, at the owner.")


class StudyCreate(Request):
    """A draft of a study: one outsourced optimization."""

    model_config = ConfigDict(json_schema_extra=_require_answers)

    name: Name = Field(description="Name, for the owner's people; a modeler does not see it.")
    dataset_id: Name = Field(description="The dataset; a modeler does not see it.")
    features: list[Feature] = Field(min_length=1, max_length=FEATURES_MAX)
    """Features from which the candidates are made. A modeler sees neither names nor bounds."""
    measurement: MeasurementSpec = Field(description="Source of the outcome to optimize.")
    goal: Goal = Field(BEST, description="What a search of the study is for; the modeler sees it.")
    release: ReleaseSpec = Field(description="Release mechanism, which makes the candidates, and its epsilon.")
    answers: Annotated[Answers, BeforeValidator(_stated)] = Field(_NOT_STATED, validate_default=True)
    """Answer mechanism, which randomizes each outcome, and its epsilon. It must be stated: none, which returns it
    exactly, is no default."""
    refine: Refine | None = Field(None, exclude_if=lambda refine: refine is None)
    """A measured record leaves again, less blurred. For planar_laplace without rotate, with privacy_unit row. Null:
    none does."""
    release_of: str | None = Field(None, pattern=r"^std_[0-9a-f]{16}$")
    """A released study whose stored candidates this one reads, for another outcome: records use epsilon for its answers
    alone. dataset_id, features, release and rows_per_person are those of that study. Null: candidates of its own."""
    privacy_unit: Literal["row", "answer"] = "row"
    """row: records are people, and answers about one record add up; answer: each answer is another person's. answer
    with source column is a simulation, and refused unless the dataset was declared public."""
    rows_per_person: int = Field(1, ge=1, le=ROWS_PER_PERSON_MAX)
    """How many records one person can have, as the owner declares: a person with k records uses k times what a record
    does. Where the dataset has a person column it is the dataset's, whatever is sent."""
    person_column: bool = False
    """Whether the dataset has a person column, so that epsilon, delta and caps are those of a person with up to
    rows_per_person rows. Set by the curator."""
    budget: Budget = Field(Budget(), description="Caps on what the study may use.")
    kernel: Kernel | None = Field(None, description="Public hyper-parameters; null: the modeler provides its own.")
    reply_after_ms: int | None = Field(None, ge=1, le=60_000)
    """Timing protection: every reply to a query, refusals included, is sent so long (ms) after its arrival, or at the
    next multiple if the work takes longer. Null: as soon as it is ready."""
    processing: Processing = Processing()
    """What the owner states for the privacy report; a modeler does not see it."""

    @model_validator(mode="after")
    def _says_delta_once(self) -> Self:
        if any(feature.hidden_change is not None for feature in self.features):
            if any(feature.scale is not None for feature in self.features):
                raise ValueError(BOTH_UNITS)
            if getattr(self.release, "sensitivity", 1.0) != 1.0:
                raise ValueError(f"sensitivity is 1 where a feature states hidden_change: {BOTH_UNITS}")
        return self

    @property
    def release_inputs(self) -> dict[str, Any]:
        """What a release depends on: equal for a study and one that reads its release."""
        names = ("dataset_id", "features", "release", "rows_per_person", "person_column")
        return {name: getattr(self, name) for name in names}

    @property
    def protected_rows(self) -> int:
        """The rows of one person that each guarantee covers together: 1 where a row is a person of its own."""
        return self.rows_per_person if self.person_column else 1


class StudyChange(StudyCreate):
    """The new content of a draft."""

    replaces: Sha256
    """spec_sha256 of the draft that was edited: 409 if somebody has changed it since."""

    @property
    def study(self) -> StudyCreate:
        """The study without ``replaces``."""
        return StudyCreate.model_validate_json(self.model_dump_json(exclude={"replaces"}))


class ReleaseAsked(Request):
    """The draft to release, identified by its digest."""

    spec_sha256: Sha256 = Field(description="spec_sha256 of the draft: 409 if somebody has changed it since.")
    confirm_high_risk: bool = False
    """Must be true where the latest preview of this draft since the service was started found a high risk: 409
    otherwise."""
    confirm_chance: bool = False
    """Must be true for a draft with the caution answers_hide_search: 409 otherwise."""
    confirm_consent: bool = False
    """Must be true for a draft with refine that no person measures, unless its dataset is public: the persons agreed
    beforehand that a measured record leaves again. 409 otherwise."""


class StudyOwnerView(Reply):
    """A study as its owner sees it."""

    id: str = Field(description="std_...")
    seen_by: Literal["owner"] = Field("owner", description="Whose view this is.")
    state: Literal["draft", "releasing", "open", "closed"]
    """A draft is released once and is then open; a closed one answers no queries."""
    created_at: datetime = Field(description="When the draft was created.")
    opened_at: datetime | None = Field(description="When the candidates were released; null before.")
    archived_at: datetime | None = Field(None, description="When it was archived; null: it is not.")
    note: str | None = Field(None, description="Note of an owner: for owners alone, and in no log.")
    tags: list[str] = Field([], description="Tags, in order: for owners alone, and in no log.")
    spec: StudyCreate = Field(description="The specification, as created or last changed while it was a draft.")
    spec_sha256: Sha256 = Field(description="Digest of the current specification, as in the log.")
    guarantee: str = Field(description="Guarantee for the records, in words.")
    not_protected: list[str] = Field(description="What the guarantee does not cover, in words.")
    sandbox: bool = Field(False, description="Whether its records and outcomes are made up: no person is behind it.")
    high_risk: bool = False
    """Whether its latest preview since the start of the service found a high risk: confirm it."""
    progress: float | None = Field(None, ge=0, le=1)
    """Fraction of the candidates that are drawn; null unless releasing."""
    release_problem: str | None = Field(None, description="Why the latest release failed: nothing was published.")
    release_id: str | None = Field(description="rel_...; null before the release.")
    release_sha256: Sha256 | None
    """SHA-256 of the npy file of the candidates, or of the list of its parts; null before."""
    report: ReleaseReport | None = Field(description="Report on the release, for the owner only.")
    account: DatasetOutlook | None = None
    """In the reply to creating or changing a draft and to a release: the account of the dataset's file, without and
    with this study."""


class StudyPage(Page):
    """A page of studies."""

    studies: list[StudyOwnerView] = Field(description="In the order of creation.")
    tags: list[str] = Field([], description="Tags of all studies that are not archived.")


class StudyView(PublishedCandidates):
    """A study as a modeler sees it: all that it may know besides Z and the answers.

    Nothing here depends on the data except the number of rows.
    """

    seen_by: Literal["modeler"] = Field("modeler", description="Whose view this is.")
    left_out: list[int] = []
    """Candidates whose record the owner withheld before the grant was made, in order: zeros stand for them, and a query
    of one is declined."""
    state: Literal["open", "closed"] = Field(description="A closed study answers no queries.")
    release_id: str = Field(description="rel_...")
    mechanism: str = Field(max_length=100, description="Name of the release mechanism.")
    status: Status = Field(description="Whether the guarantee is proved or refuted, or whether there is none.")
    epsilon: DecimalString | None
    """epsilon of the release; null if it claims nothing: refuted, withdrawn, or unprotected."""
    delta: float | None = Field(description="delta of the release, the failure probability; null if it claims none.")
    sensitivity: float | None
    """Delta: largest protected change of one record, in scaled units; null if epsilon is, or for groups."""
    noise: NoiseLaw = Field(description="Public law of the release, given the features.")
    answers: Answers = Field(description="Answer mechanism (never auto) and its epsilon.")
    refine: RefineView | None = Field(None, exclude_if=lambda refine: refine is None)
    """The second draw of each measured record, in refined of its replies; absent where there is none."""
    privacy_unit: Literal["row", "answer"]
    """row: answers about one record add up; answer: each is another person's, in reality or, where measurement_source
    is column, in a simulation."""
    budget: Budget = Field(description="Caps on what the study may use.")
    budget_changes: list[BudgetChange] = Field([], max_length=100)
    """Raises of the caps since the release: the last 20."""
    grant_id: str = Field(pattern=r"^grt_[0-9a-f]{16}$")
    """The grant of this token, which also identifies the shared log."""
    log_key: str = Field(max_length=400, description="C2SP verifier key of the curator's checkpoints.")
    direction: Literal["maximize", "minimize"]
    """Whether the owner looks for the largest or the smallest outcome."""
    goal: Goal = Field(BEST, description="What the owner looks for: runs follow it unless they state another goal.")
    measurement_source: Literal["column", "inbox", "webhook"] = "column"
    """column: answers come at once; otherwise a person or a laboratory measures, which takes time."""
    measurement_noise_variance: float
    """Noise variance of one measurement, as far as it is known, in squared units of the outcome."""
    kernel: Kernel | None = Field(description="Public hyper-parameters; null: the modeler provides its own.")
    limits: Limits = Field(description="Limits of one query.")
    reply_after_ms: int | None = Field(ge=1, le=60_000)
    """Every reply to a query is sent so long (ms) after its arrival, or at a multiple; null: as soon as it is ready."""
    guarantee: str = Field(max_length=4_000, description="Guarantee for the records, in words.")
    not_protected: list[Annotated[str, Field(max_length=4_000)]] = Field(max_length=100)
    """What the guarantee does not cover, in words."""
    sandbox: bool = Field(False, description="Whether its records and outcomes are made up: no person is behind it.")


class GrantCreate(Request):
    """A credential for one modeler and one study."""

    name: Name = Field(description="Name of the modeler, for listings.")
    expires_in_days: int = Field(90, ge=1, le=3_660, description="Days until the token expires.")


class TokenView(Reply):
    """A token without its secret."""

    kid: str = Field(description="Key id: the 16 hex digits after blindopt_.")
    state: Literal["live", "expired", "revoked"] = Field(description="Only a live token is accepted.")
    created_at: datetime = Field(description="When it was created.")
    expires_at: datetime = Field(description="When it expires.")
    last_used_at: datetime | None = Field(description="When it was last used, to the minute; null: never.")


class GrantReply(Reply):
    """A new token of a grant: the only time that it is shown."""

    id: str = Field(description="grt_...: id of the grant, which may have several tokens.")
    kid: str = Field(description="Key id of this token; not a secret.")
    name: str = Field(description="Name of the modeler.")
    study_id: str = Field(description="The study that the token gives access to.")
    token: str = Field(description="The token, a secret: send it to the modeler over a private channel.", repr=False)
    sandbox: bool = Field(False, description="Whether the study is a sandbox, with made-up records and outcomes.")
    expires_at: datetime = Field(description="When the token expires.")
    url: str | None = None
    """Address of this curator for the modeler: PUBLIC_URL, or without it the loopback address; null if unknown."""
    log_key: str | None = Field(None, description="C2SP verifier key of the curator's log.")


class GrantView(Reply):
    """A grant without its secrets."""

    id: str = Field(description="grt_...")
    name: str = Field(description="Name of the modeler.")
    study_id: str = Field(description="The study that it gives access to.")
    state: Literal["live", "expired", "revoked"] = Field(description="live while one of its tokens is live.")
    tokens: list[TokenView] = Field(description="Tokens, oldest first; at most two are live, for rotation.")
    sandbox: bool = Field(False, description="Whether the study is a sandbox, with made-up records and outcomes.")
    key: str | None
    """C2SP verifier key of the modeler; null before its first countersignature. Compare it by phone."""
    log_bytes_today: int = Field(0, description="Bytes that it added to the logs and stored replies today (UTC).")
    log_bytes: int = Field(0, description="The same in total.")
    log_bytes_per_day: int | None = None
    """Its quota: beyond it every request gets 429 until 0:00 UTC; null from before 0.3.0."""


class LogQuota(Request):
    """A grant's own quota of bytes in the logs."""

    bytes_per_day: int | None = Field(ge=1 << 20, lt=2**53)
    """Bytes a day (UTC); null: LOG_BYTES_PER_GRANT_DAY of the settings."""


class GrantPage(Page):
    """A page of grants."""

    grants: list[GrantView] = Field(description="In the order of creation.")


class Rotation(Request):
    """Another token for a grant."""

    expires_in_days: int = Field(90, ge=1, le=3_660, description="Days until the new token expires.")


class AnswersLevel(Reply):
    """Answers at one epsilon."""

    epsilon: str = Field(description="Epsilon of one answer.")
    sent_as: str = Field(description="What an answer can be, in words.")
    error: float = Field(description="Error of one answer (standard deviation), for the worst outcome, in its unit.")
    worth: float | None = Field(description="How many exact answers all that the caps allow are worth; null: no cap.")


class AnswersMeaning(Reply):
    """What private answers mean, from public values alone."""

    sentences: list[str] = Field(description="Belief, how an outcome is sent, answers needed, and what they carry.")
    levels: list[AnswersLevel] = Field(description="The draft's own epsilon first, then a larger one.")


class Tool(Reply):
    """What to use for a draft, from public values alone. Advice: nothing is refused because of it."""

    name: Literal["sort", "groups_at_once", "measure_all", "not_useful", "search"]
    """search, or what serves better."""
    why: str = Field(description="Why, in words.")
    figures: dict[str, float] = Field({}, description="Numbers behind it, such as rho.")
    hints: list[str] = Field([], description="What would make a search better, in words.")


class StudyCheck(Reply):
    """What a draft would guarantee and cost, computed from public values alone, but for ``record_cautions``."""

    mechanism: str = Field(description="Release mechanism that would run.")
    why: str | None = Field(description="Why auto would choose it; null if the owner chose.")
    delta: float | None = Field(description="delta of the release; null if it promises pure epsilon or nothing.")
    status: Status
    """Whether its guarantee is proved, refuted or withdrawn, or whether it makes none."""
    guarantee: str = Field(description="Guarantee for the records, in words.")
    not_protected: list[str] = Field(description="What the guarantee does not cover, in words.")
    noise_sd: float | None
    """Standard deviation of the noise per coordinate of a candidate, in scaled units; null without noise."""
    features: list[FeatureMeaning] = Field(description="Delta and the noise in the unit of each feature.")
    search: str | None = None
    """What the noise does to a search, in words, from the declared box and a public forecast if there is one; null
    without noise."""
    strength: Strength | None
    """Name of the range of epsilon_whole: up to 1, 3, 6, and above, or without a bound; null where nothing is
    promised."""
    epsilon_hidden: float | None = None
    """Epsilon of the hidden change with all answers that the caps allow; null where nothing bounds it."""
    epsilon_whole: float | None = None
    """The same of a whole record, over the declared bounds, or of all records of a person. Groups: equal to
    epsilon_hidden."""
    protection: str | None = Field(None, description="Both in words; null where nothing is promised.")
    surest: float | None
    """How sure someone undecided (1/2) between two values that differ by Delta can become, at most; with a delta,
    except for events that it allows. Null where nothing is promised."""
    belief: str | None = Field(description="The same in words.")
    answers: str = Field(description="Answer mechanism that would run: never auto.")
    answers_mean: AnswersMeaning | None = None
    """What private answers mean; null for exact answers and for groups."""
    tool: Tool | None = Field(None, description="What to use: a search, or something that serves better.")
    promises: list[PromiseOffer] = []
    """The release with either promise, for comparison; empty where it can have one alone."""
    price: Price = Field(description="Its price, and how many answers the budget allows.")
    cautions: list[Caution]
    """Choices that an expert would not make, from public values alone; a release accepts them."""
    record_cautions: list[Caution]
    """The same from the values of the records: for the owner alone, neither logged nor stored."""
    account: DatasetOutlook = Field(description="The account of the dataset's file, without and with this study.")


class FeaturePoint(Reply):
    """An answer beside the value of a feature of its record."""

    row: int = Field(description="Number of the candidate, from 0.")
    value: float = Field(description="Value of the feature, in its own unit.")
    y: float = Field(description="Answer as it was released, in units of the measurement.")
    measured: float | None
    """Exact value where the owner sees it, the mean if there are several; null if there is none."""


class FeatureResult(Reply):
    """The answers of a study against one feature."""

    column: str = Field(description="Column of the feature.")
    relevance: float | None = Field(description="Share from 0 to 1, of all features 1 together; null: see problem.")
    points: list[FeaturePoint] = Field(description="Newest answers, oldest of them first.")


class GoodRecords(Reply):
    """How many good records vendors found by the queries of a study that looks for many: for the owner alone."""

    found: int | None = Field(description="Queried candidates that are good; null: what is good is not known here.")
    queried: int = Field(description="Queried candidates with an outcome.")
    threshold: float | None = Field(description="What counts as good, in units of the measurement; null: not known.")
    by_chance: float | None
    """Expected number of good ones among as many random candidates; null: not known here."""
    label: str = Field(description="What the figures are made from, in words.")


class StudyResults(Reply):
    """The results of a study by feature, from its answers and records: for the owner alone."""

    study_id: str = Field(description="std_...")
    answers: int = Field(description="Number of answers that were read: those to the newest 1,000 queries.")
    fitted: int = Field(description="Number of answers that the relevance is computed from.")
    method: str = Field(description="How the relevance is computed, in words.")
    problem: str | None = Field(description="Why there is no relevance, in words; null if there is one.")
    good: GoodRecords | None = Field(None, description="Good ones so far; null where the best record is looked for.")
    privacy: str = Field(description="What using it means for privacy, in words.")
    features: list[FeatureResult] = Field(description="Features in the order of the study.")


class StudyAccount(Reply):
    """What a study has spent, with its caps. Depends only on the history of requests.

    Amounts are exact decimals; null if there is no finite bound.
    """

    study_id: str = Field(description="std_...")
    dataset_id: str = Field(description="ds_...")
    name: str = Field(description="Name of the study.")
    records: int = Field(0, description="Number of records of its dataset.")
    state: Literal["draft", "releasing", "open", "closed"] = Field(description="State of the study.")
    created_at: datetime = Field(description="When the draft was created.")
    opened_at: datetime | None = Field(description="When the candidates were released; null before.")
    archived_at: datetime | None = Field(None, description="When the study was archived; null: it is not.")
    mechanism: str = Field(description="Release mechanism, as the owner chose it.")
    measurement: Literal["column", "inbox", "webhook"] = Field(description="Source of the outcome.")
    privacy_unit: Literal["row", "answer"]
    """row: answers about one record add up; answer: each is another person's, but for source column, where they add
    up."""
    budget: Budget = Field(description="Caps of the study.")
    budget_changes: list[BudgetChange] = Field([], description="Raises of the caps since the release: the last 20.")
    release_epsilon: str | None = Field(description="Epsilon that the release charged every record.")
    row_epsilon: str | None = Field(description="Largest amount that counts against the cap per record.")
    person_epsilon: str | None
    """row_epsilon times the rows of one person that the owner declares, where no column says whose each row is."""
    total_epsilon: str | None = Field(description="Sum of the release and all answers.")
    total_plays: int = Field(description="Number of measurements.")


class StudyAccountPage(Page):
    """A page of studies with what they have spent."""

    accounts: list[StudyAccount] = Field(description="Studies, in the order of creation.")


class RowsAsked(Reply):
    """Records that were measured equally often."""

    plays: int = Field(ge=0, description="Number of released measurements of each of these records.")
    rows: int = Field(ge=1, description="How many.")


class ExposureHistogram(Reply):
    """How often the rows of a study were measured."""

    counts: list[RowsAsked]
    """Counts by number of measurements; records that were never queried count with 0."""


class LedgerPoint(Reply):
    """What a study had spent after a line of its ledger."""

    line: int = Field(ge=1, description="Number of the line in the study's ledger, from 1.")
    at: datetime = Field(description="When the line was committed.")
    total_epsilon: str | None = Field(description="Sum of the release and all answers; null: no finite bound.")
    total_plays: int = Field(description="Number of measurements.")


class LedgerCurve(Reply):
    """What a study has spent over time, at selected lines of its ledger."""

    lines: int = Field(ge=0, description="Number of lines of the ledger.")
    points: list[LedgerPoint] = Field(description="Selected lines, evenly spaced, including the last.")


class JobView(Reply):
    """A running or queued preview, release, forecast or tuning, or a file that is read."""

    kind: Literal["preview", "release", "forecast", "tuning", "reading"] = Field(description="Kind of job.")
    id: str = Field(description="fct_..., tun_... or rdg_...; for a preview or a release, the id of the study.")
    study_id: str | None = Field(description="std_...; null for a tuning and for a file.")
    name: str = Field(description="Name of the study or the tuning; of a file, its format.")
    progress: float = Field(ge=0, le=1, description="Fraction that is done.")
    ahead: int | None = Field(None, description="How many jobs of its kind come before it: 0 once it runs.")


class JobList(Reply):
    """All running and queued jobs."""

    jobs: list[JobView]
    """Previews, releases, forecasts, tunings, files; each in the order of the requests."""
