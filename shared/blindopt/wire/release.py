"""Releases: their settings, reports, attacks on them, and forecasts of their quality."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from blindopt.wire.base import FEATURES_MAX, Caution, Epsilon, Name, Page, PositiveFloat, Reply, Request
from blindopt.wire.ledger import DatasetOutlook
from blindopt.wire.query import ReleasePart

Delta = Annotated[
    PositiveFloat,
    Field(
        description=(
            "Delta: neighbouring datasets differ in one row, or in all rows of one person where the dataset has a "
            "person column; each moves by at most this Euclidean distance in scaled units."
        )
    ),
]
FailureProbability = Annotated[float, Field(ge=1e-18, le=0.1, description="delta of (epsilon, delta).")]
Promise = Annotated[
    Literal["euclidean", "one_feature"],
    Field(
        exclude_if=lambda promise: promise == "euclidean",
        description="Which moves of a record are hidden, with h the hidden change of a feature times sensitivity. "
        "euclidean: those whose sum of (change / h)^2 is at most 1. one_feature: those whose sum of change / h is at "
        "most 1, so one feature by h, by independent Laplace noise in each feature, without delta or rotate. A move of "
        "d features by h each then uses d times epsilon.",
    ),
]
_ROTATE = (
    "Rotate the candidates by a secret random rotation after the noise: it uses no epsilon, and no guarantee relies on "
    "it."
)


class IdentityRelease(Request):
    """Z = X, unprotected. Only for datasets that the owner declares public."""

    mechanism: Literal["identity"] = Field(description="Name of the release mechanism.")


def _acknowledged(value: bool) -> bool:
    if not value:
        raise ValueError("must be true: the owner has to know that this release is not private")
    return value


class PoGpUcbRelease(Request):
    """Algorithm 1 of Kharkovskii et al. (2020), as published. Its privacy theorem is refuted."""

    mechanism: Literal["po_gp_ucb"] = Field(description="Name of the release mechanism.")
    epsilon: Epsilon
    delta: FailureProbability
    sensitivity: Delta = 1.0
    r: int = Field(ge=1, le=1_000, description="Columns of the release.")
    acknowledge_refuted: Annotated[bool, AfterValidator(_acknowledged)] = Field(json_schema_extra={"const": True})
    """Must be true: the owner acknowledges that this is not differentially private; d + 1 known records reconstruct the
    rest."""


class GaussianRelease(Request):
    """Z = X plus Gaussian noise calibrated by the analytic Gaussian mechanism: (epsilon, delta)-DP."""

    mechanism: Literal["gaussian"] = Field(description="Name of the release mechanism.")
    epsilon: Epsilon
    delta: FailureProbability
    sensitivity: Delta = 1.0
    rotate: bool = Field(False, description=_ROTATE)


class PlanarLaplaceRelease(Request):
    """Z = X plus noise of density proportional to exp(-a |u| / Delta) in d dimensions.

    Without a delta a = epsilon: pure epsilon-DP. With a delta a is larger, and the release is (epsilon, delta)-DP.
    With promise one_feature |u| is the sum of the coordinates' sizes: Laplace noise in each by itself.
    """

    mechanism: Literal["planar_laplace"] = Field(description="Name of the release mechanism.")
    epsilon: Epsilon
    delta: FailureProbability | None = None
    """delta of (epsilon, delta), for less noise; null: pure epsilon-DP."""
    sensitivity: Delta = 1.0
    promise: Promise = "euclidean"
    rotate: bool = Field(False, description=_ROTATE)


class GaussianProjectionRelease(Request):
    """Z = sqrt(d/r) X P plus Gaussian noise, P a secret orthonormal d x r projection: (epsilon, delta)-DP."""

    mechanism: Literal["gaussian_projection"] = Field(description="Name of the release mechanism.")
    epsilon: Epsilon
    delta: FailureProbability
    sensitivity: Delta = 1.0
    r: int = Field(ge=1, le=1_000, description="Columns of the release; smaller than the number of features.")


_SAMPLE = Field(
    None,
    description="A dataset that is declared public and has columns of the same names: the axes that hold most of its "
    "variance make the columns of the release.",
)
_RADIUS = Field(
    None,
    description="A public bound of the length of a record in scaled units, for axes that are found in the records "
    "privately. Longer records count with this length, for the axes alone.",
)
_COLUMNS = Field(
    None,
    ge=2,
    le=FEATURES_MAX,
    description="Columns of the release; null: as many as let a search learn most, by the public sample (stored in the "
    "draft), or by the private axes.",
)


class AxesRelease(Request):
    """Z = X V plus noise in r columns, V the axes that hold most of the variance of a public sample or of the records.

    Axes of the records are found privately, for a fifth of epsilon and half of delta.
    """

    mechanism: Literal["axes"] = Field(description="Name of the release mechanism.")
    epsilon: Epsilon
    delta: FailureProbability | None = Field(
        None, description="delta of (epsilon, delta); null: pure epsilon-DP, for axes of a public sample only."
    )
    sensitivity: Delta = 1.0
    axes: Literal["public", "private"] = Field(
        "public", description="public: of sample_dataset_id; private: of the records, with noise."
    )
    sample_dataset_id: Name | None = _SAMPLE
    radius: PositiveFloat | None = _RADIUS
    r: int | None = _COLUMNS

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.axes == "public" and (self.sample_dataset_id is None or self.radius is not None):
            raise ValueError("public axes need a sample_dataset_id, and no radius")
        if self.axes == "private" and (self.radius is None or self.delta is None or self.sample_dataset_id is not None):
            raise ValueError("private axes need a radius and a delta, and no sample_dataset_id")
        return self


class AutoRelease(Request):
    """The sound mechanism with the smallest noise per coordinate, chosen from public values alone.

    With more than 20 features axes: of a public sample if it is named, else private ones if a radius and a delta are.
    """

    mechanism: Literal["auto"] = Field("auto", description="Name of the release mechanism.")
    epsilon: Epsilon
    delta: FailureProbability | None = Field(None, description="delta of (epsilon, delta); null: pure epsilon-DP only.")
    sensitivity: Delta = 1.0
    promise: Promise = "euclidean"
    rotate: bool = Field(False, description=_ROTATE)
    sample_dataset_id: Name | None = _SAMPLE
    radius: PositiveFloat | None = _RADIUS
    r: int | None = _COLUMNS


CELLS_MAX = 10_000
"""Groups of a study at most."""
CENTRES_MAX = 1_000


class GridCells(Request):
    """Equal parts of the declared bounds of each feature: their products are the groups."""

    kind: Literal["grid"] = Field(description="Kind of the partition.")
    parts: list[Annotated[int, Field(ge=1, le=CELLS_MAX)]] = Field(min_length=1, max_length=FEATURES_MAX)
    """Number of equal parts of each feature, in the order of features. Their product: 10,000 at most."""


class CentreCells(Request):
    """A group for each public centre: the records that are nearest to it, in scaled units."""

    kind: Literal["centres"] = Field(description="Kind of the partition.")
    centres: list[Annotated[list[float], Field(min_length=1, max_length=FEATURES_MAX)]] = Field(
        min_length=1, max_length=CENTRES_MAX
    )
    """Centres within the bounds, each a value of every feature, in raw units. Never from the records."""


class PrivateCells(Request):
    """A group for each centre that k-means makes from the records, with exact discrete Laplace noise: epsilon-DP."""

    kind: Literal["private"] = Field(description="Kind of the partition.")
    number: int = Field(ge=2, le=CENTRES_MAX, description="Number of centres.")
    epsilon: Annotated[Epsilon, Field(description="The part of the release's epsilon that the centres use.")]


class GroupsRelease(Request):
    """Z = the centres of groups of records. A group's answers are private means of y over its records.

    The groups are a public partition of the declared box, or follow from private centres. How many records each has is
    released once, with discrete Laplace noise: epsilon-DP for replacing a record by any other, whole. See
    docs/privacy.md.
    """

    mechanism: Literal["groups"] = Field(description="Name of the release mechanism.")
    epsilon: Annotated[
        Epsilon,
        Field(
            description=(
                "epsilon of the release, charged to every record once: of the numbers of records, and of private "
                "centres (cells.epsilon) where it has these."
            )
        ),
    ]
    cells: Annotated[GridCells | CentreCells | PrivateCells, Field(discriminator="kind")]
    """The partition."""
    min_count: int = Field(20, ge=1, le=10**9)
    """Groups whose noisy number of records is below this are no candidates; where all are, the largest one is."""


def _mechanism(value: Any) -> Any:
    return value.get("mechanism", "auto") if isinstance(value, dict) else getattr(value, "mechanism", "auto")


ReleaseSpec = Annotated[
    Annotated[AutoRelease, Tag("auto")]
    | Annotated[PlanarLaplaceRelease, Tag("planar_laplace")]
    | Annotated[GaussianRelease, Tag("gaussian")]
    | Annotated[GaussianProjectionRelease, Tag("gaussian_projection")]
    | Annotated[AxesRelease, Tag("axes")]
    | Annotated[GroupsRelease, Tag("groups")]
    | Annotated[PoGpUcbRelease, Tag("po_gp_ucb")]
    | Annotated[IdentityRelease, Tag("identity")],
    Discriminator(_mechanism),
]
LocalRelease = AutoRelease | PlanarLaplaceRelease | GaussianRelease | GaussianProjectionRelease | AxesRelease
"""Each record is released by itself, with noise."""
SoundRelease = LocalRelease | GroupsRelease


def hides_one_feature(release: object) -> bool:
    """Whether a release hides changes of one feature at a time, or of several whose shares add up to 1."""
    return getattr(release, "promise", "euclidean") == "one_feature"


Strength = Literal["strong", "moderate", "weak", "nearly none", "without a bound"]
Status = Literal["sound", "refuted", "unprotected", "withdrawn"]


class NoiseLaw(Reply):
    """The public law of Z given X."""

    family: Literal["none", "gaussian", "planar_laplace", "laplace_each", "gaussian_projection", "random_projection"]
    """gaussian: independent noise in each coordinate; planar_laplace: density proportional to exp(-sqrt(r + 1) |u| /
    sd); laplace_each: independent Laplace noise in each coordinate; gaussian_projection: a secret projection, then
    gaussian; random_projection: a secret linear map and no noise."""
    sd: float | None = Field(None, description="Standard deviation per coordinate, in scaled units.")


class FeatureMeaning(Reply):
    """Delta and the noise in the unit of a feature."""

    column: str = Field(description="Column of the feature.")
    sensitivity: float | None
    """Delta, if only this feature changes, in its unit. The further a change exceeds it, the less it is protected."""
    noise_sd: float | None
    """Standard deviation of the noise in the feature's unit; null if columns of the release mix features."""
    confused: float | None = None
    """The largest change of this feature alone, in its unit, between whose two values no guess from the release is
    right more often than three times in four; null if nothing is proved."""


class PromiseOffer(Reply):
    """What a draft's release would mean with one of the promises, at the draft's epsilon."""

    promise: Literal["euclidean", "one_feature"] = Field(description="Which changes of a record it hides.")
    noise_sds: list[float] = Field(description="Standard deviation of the noise, by feature, in its own unit.")
    epsilons: list[float]
    """Epsilon of the release, if one feature changes by its hidden change, two at once, or all."""
    rho: float | None = Field(description="What a search can learn, from 0 to 1, as in tool; null: not known.")


class Price(Reply):
    """What a study costs, before anything is spent. Amounts are exact decimals; null if there is no finite bound."""

    release_epsilon: str | None = Field(description="Epsilon that the release charges every record; 0: public records.")
    answer_epsilon: str | None = Field(description="Epsilon that one released answer charges its record.")
    answers_per_row: int | None
    """Number of answers about one record that the caps allow; null: no cap."""
    answers: int | None = Field(description="Number of answers that the caps allow the study; null: no cap.")
    row_epsilon: str | None = Field(description="Epsilon of a record after all answers that the caps allow.")
    tight_row_epsilon: float | None = Field(description="The same by the privacy loss distribution, at tight_delta.")
    tight_delta: float | None = Field(description="delta of the study; null if it has none.")
    sentence: str = Field(description="The price in words.")


RiskLevel = Literal["low", "notable", "high"]


class Finding(Reply):
    """Result of an attack on a release or on answers."""

    attack: Literal["known_rows", "known_rows_noisy", "column_space", "linkage", "membership", "averaging"]
    """Name of the attack."""
    figure: float = Field(description="Success of the attack, in units of unit.")
    low: float = Field(description="Lower end of the interval, in the unit of the figure.")
    high: float | None = Field(description="Upper end, in the same unit; null if the attack gives only a lower bound.")
    confidence: float = Field(description="Confidence level of the interval.")
    unit: str = Field(description="Unit of the figure.")
    distance: float | None = None
    """Median distance of guessed records from the true ones, in hidden changes; null if none is guessed."""
    success: float | None = None
    """Success of the attack as a share, from 0 to 1: of records, of right guesses, or, for averaging, of the error of a
    guess without answers that the answers take away."""
    blind: float | None = Field(None, description="The same for a blind guess.")
    level: RiskLevel | None = None
    """How harmful it is, by public thresholds; null where it is not judged."""
    sentence: str = Field(description="The result in words, for the owner of the records.")


class Verdict(Reply):
    """What the attacks of a preview amount to."""

    level: RiskLevel = Field(description="The level of the most harmful finding.")
    sentence: str = Field(description="The verdict in words, for the owner.")


class ReleaseReport(Reply):
    """Report on a release, for the owner. It depends on the data: never shown to a modeler."""

    mechanism: str = Field(description="Name of the release mechanism.")
    version: int = Field(description="Version of the mechanism.")
    why: str | None = Field(description="Why auto chose it; null if the owner chose.")
    delta: float | None = Field(
        None, description="delta of the release; null if it promises pure epsilon or nothing, and in earlier reports."
    )
    guarantee: str = Field(description="Guarantee for the records, in words.")
    not_protected: list[str] = Field(description="What the guarantee does not cover, in words.")
    status: Status = Field(
        description="Whether the guarantee is proved, refuted or withdrawn, or whether there is none."
    )
    n: int = Field(description="Number of candidates; before a release of groups, the number of groups.")
    r: int = Field(description="Columns of the release; before private axes are found, the most there may be.")
    counts: list[int] | None = Field(
        None, description="Groups: the noisy number of records of each candidate, as released; null otherwise."
    )
    noise_sd: float | None = Field(
        None, description="Standard deviation of the noise per coordinate of a candidate, in scaled units."
    )
    features: list[FeatureMeaning] = Field(description="Delta and the noise in the unit of each feature.")
    search: str | None = None
    """What the noise does to a search, in words, from the declared box and a public forecast if there is one; null
    without noise."""
    belief: str | None = None
    """How sure anyone can become about a record, in words; null where nothing is promised."""
    price: Price = Field(description="Its price, and how many answers the budget allows now.")
    account: DatasetOutlook | None = None
    """In a preview: the account of the dataset's file, without and with this study."""
    attacks: list[Finding]
    """Results of attacks on a trial release, which is discarded; the most harmful first."""
    verdict: Verdict | None = None
    """In a preview of private records: what the attacks amount to; null where none was tried."""
    not_tried: str | None = None
    """Attacks that a preview omitted, and why, in words; null if it omitted none."""
    cautions: list[Caution] = []
    """Choices that an expert would not make, from public values alone. The report of a release has those that its owner
    accepted by releasing, and by raising caps since."""
    record_cautions: list[Caution] = []
    """The same from the values of the records: in a preview alone, for the owner; neither logged nor stored."""
    choosing: str | None = None
    """Why public inputs must not be chosen by a preview, in words; null where no private record is behind it, and in
    the report of a release that was made."""
    sigma_min: float | None = Field(None, description="Smallest singular value of the centred, scaled X.")
    omega: float | None = Field(None, description="Threshold of Algorithm 1 for the chosen r, times Delta.")
    branch: Literal["project", "lift"] | None = Field(None, description="The branch that Algorithm 1 takes.")
    largest_r: int | None = Field(None, description="Largest r with sigma_min >= omega; 0 if there is none.")
    parts: list[ReleasePart] = Field([], description="Of a large release: the parts of its npy file, in order.")


class GroupEntry(Reply):
    """A candidate of a groups study: where it is, and what was released about it."""

    row: int = Field(description="Number of the candidate, from 0.")
    count: int = Field(description="Its noisy number of records, as released.")
    centre: list[float] = Field(description="The centre, in raw units, by feature.")
    lower: list[float] | None = Field(description="Lower bounds of a part of a grid, in raw units; null for centres.")
    upper: list[float] | None = Field(description="Upper bounds of a part of a grid, in raw units; null for centres.")
    spent: str = Field(description="Epsilon of the answers about it so far, without the release.")
    y: float | None = Field(None, description="Answer about it, with noise, once every group was answered at once.")
    sd: float | None = Field(None, description="Standard deviation of the noise in y.")
    expected: float | None = None
    """Its mean outcome as the model of all these answers expects it; null beyond 1,000 groups."""
    recommended: bool = Field(False, description="Whether it is expected to be the best.")


class GroupPage(Page):
    """A page of groups."""

    groups: list[GroupEntry] = Field(description="Groups, by number of the candidate.")


class GroupView(GroupEntry):
    """A candidate of a groups study, and its records: for the owner only."""

    study_id: str = Field(description="The study.")
    size: int = Field(description="Its true number of records, without those that are withheld.")
    mean: float | None = Field(description="The true mean of the outcome over these, clipped; null without records.")
    records: list[int] = Field(description="Numbers of its records in the file, from 1: the first 1,000.")
    file_rows: list[int] | None = None
    """The same as a spreadsheet numbers them; null if the file's kind is not known."""


ForecastMechanism = Literal["identity", "auto", "gaussian", "planar_laplace", "gaussian_projection", "po_gp_ucb"]


class ForecastCreate(Request):
    """Simulate runs over public rows, or over the records, on functions drawn from a Gaussian process."""

    epsilons: list[Epsilon] = Field(["0.5", "1", "2", "4", "8"], min_length=1, max_length=20)
    """Privacy levels to try."""
    mechanisms: list[ForecastMechanism] = Field(["auto"], min_length=1, max_length=6)
    """Mechanisms to try at each level, with the study's Delta, delta and r. If it has none: Delta 1, delta 1e-6 if one
    is needed, r 10 for gaussian_projection and by the paper's rule for po_gp_ucb. The baselines identity and
    random_rows are always included, groups_at_once beside private answers of a column."""
    functions: int = Field(20, ge=2, le=200, description="Number of functions to draw.")
    queries: int = Field(50, ge=2, le=500, description="Queries of each simulated run.")
    rows: Literal["public", "records"] = "public"
    """public: uniform rows in the declared box, as many as the dataset has, or those of sample_dataset_id; no record is
    read. records: the private records; choosing epsilon or another public input by that leaks what is not counted."""
    answers: list[Epsilon] | None = Field(None, max_length=20)
    """Values of epsilon of an answer to try, each with the study's own release, which is also tried with exact answers.
    Null: the study's own answers."""
    rows_max: int = Field(1_000, ge=10, le=5_000)
    """Rows to simulate on: a random subset of the records, or sample, if more."""
    sample_dataset_id: Name | None = None
    """A dataset that is declared public and has columns of the same names: its records in place of uniform ones."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.rows == "records" and self.sample_dataset_id is not None:
            raise ValueError("rows is either records, or public with a sample_dataset_id")
        return self


class LengthscaleRegret(Reply):
    """Simulated regret on functions of one length-scale."""

    lengthscale: float = Field(description="Length-scale of the drawn functions, in scaled units.")
    regret: float = Field(description="Mean gap of the recommended record, in standard deviations of f.")
    low: float = Field(description="Lower end of the mean's 95 % interval.")
    high: float = Field(description="Upper end of the mean's 95 % interval.")
    better_than_chance: bool | None = None
    """Whether it is better than random records on the same functions; null as in the point."""


class ForecastPoint(Reply):
    """Simulated quality of a mechanism at a privacy level."""

    mechanism: str
    """Name of the mechanism; identity, random_rows and groups_at_once are the baselines. The last: every group is
    answered once, in place of a search over records; the gap is that of a mean over a group."""
    runs_as: str = Field(description="The mechanism that auto chooses; otherwise the same as mechanism.")
    epsilon: str | None
    """epsilon of the release, for groups of a record in total; null for other baselines."""
    answers_epsilon: str | None = None
    """epsilon of an answer; null: exact answers, as those of a baseline, and in earlier forecasts."""
    refine_epsilon: str | None = Field(None, exclude_if=lambda epsilon: epsilon is None)
    """epsilon of the second draw of each measured record; absent without second draws."""
    noise_sd: float | None
    """Standard deviation of the noise per coordinate of a candidate, in scaled units."""
    distance_error: float | None
    """Median relative error of distances between candidates, as estimated from the release and its noise law."""
    regret: float
    """How far the recommended record ends short of the best, at the middle length-scale, in standard deviations of f: a
    mean."""
    low: float = Field(description="Lower end of the mean's 95 % interval.")
    high: float = Field(description="Upper end of the mean's 95 % interval.")
    better_than_chance: bool | None = None
    """Whether it is better than random records on the same functions of all length-scales, by the 95 % interval of the
    mean difference; null for random records, and in earlier forecasts."""
    by_lengthscale: list[LengthscaleRegret] = []
    """The same for each length-scale, by increasing length-scale: three on public rows, which span a band, and the
    study's own on the records."""

    @property
    def levels(self) -> str | None:
        """Epsilon of the release, and then of a second draw, if there is one."""
        return self.epsilon if self.refine_epsilon is None else f"{self.epsilon}, then {self.refine_epsilon}"

    @property
    def gaps(self) -> list[float]:
        """The regret at each length-scale: rough, middle and smooth on public rows."""
        return [part.regret for part in self.by_lengthscale] or [self.regret]

    @property
    def better(self) -> str | None:
        """In words, for which of the length-scales it is better than random records; None for random records."""
        if self.better_than_chance is None:
            return None
        at = [part.better_than_chance for part in self.by_lengthscale]
        if None in at or len(set(at)) < 2:
            return "yes" if self.better_than_chance else "no"
        return f"only if outcomes are {'smooth' if at[-1] else 'rough' if at[0] else 'neither rough nor smooth'}"


class ForecastView(Reply):
    """A running or finished forecast. It depends on the data: never shown to a modeler."""

    id: str = Field(description="fct_...")
    study_id: str = Field(description="The study that it is about.")
    state: Literal["running", "completed", "failed", "cancelled"]
    """running: in progress, or queued. A crash or a shutdown makes it failed."""
    progress: float = Field(ge=0, le=1, description="Fraction of the work that is done.")
    created_at: datetime = Field(description="When it was requested.")
    ended_at: datetime | None = Field(description="When it ended; null while running.")
    problem: str | None = Field(description="Why it failed, and what to do.")
    spec: ForecastCreate = Field(description="The request.")
    points: list[ForecastPoint] = Field(description="Results by mechanism and level; empty before the end.")
    choosing: str | None
    """Why public inputs must not be chosen by it, in words; null if no private record was read."""


class ForecastPage(Page):
    """A page of forecasts."""

    forecasts: list[ForecastView] = Field(description="Forecasts, in the order of creation.")


class PublicForecast(Reply):
    """A forecast of a draft on public rows alone, in memory: a restart of the service computes it again."""

    state: Literal["running", "completed", "failed"] = Field(description="running: in progress, or waiting.")
    progress: float = Field(0.0, ge=0, le=1, description="Fraction of the work that is done.")
    problem: str | None = Field(None, description="Why it failed.")
    points: list[ForecastPoint] = Field([], description="Results by privacy level; empty before the end.")
