"""Private tuning of hyper-parameters: methods, plans, results."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator

from blindopt.wire.base import (
    FEATURES_MAX,
    BoundedFloat,
    BudgetEpsilon,
    Caution,
    DecimalString,
    Epsilon,
    GuaranteeKind,
    Name,
    Page,
    PositiveFloat,
    Reply,
    Request,
    Seed,
)
from blindopt.wire.study import Feature

TUNING_GRID_MAX = 2_000
"""Most hyper-parameters that a tuning may choose from."""
Selection = Annotated[
    Literal["permute_and_flip", "exponential"],
    Field(description="Mechanism that draws lambda~; permute_and_flip is never worse than exponential."),
]
ValueAt = Annotated[
    Literal["chosen", "maximum"],
    Field(
        description=(
            "chosen: v~ is the posterior mean at lambda~, or at the maximum if lambda~ is not released; maximum: the "
            "largest posterior mean. Both have the same noise."
        )
    ),
]


def _share(share_text: str) -> str:
    if not 0 <= Decimal(share_text) <= 1:
        raise ValueError("a share lies between 0 and 1")
    return share_text


class TuningBudget(Request):
    """Budget of a tuning, for both of its releases together."""

    epsilon: Epsilon = Field(description="epsilon of lambda~ and v~ together, for replacing one validation record.")
    delta: float = Field(0.0, ge=0, le=0.1)
    """delta of both together, over the draw of the functions: for the methods that assume a Gaussian process."""
    index_share: Annotated[DecimalString, AfterValidator(_share)] | None = None
    """Fraction of epsilon (and of delta, if a method splits it) for lambda~; v~ gets the rest. 0: only v~ is released;
    1: only lambda~. Null: 0.5, or 0 if a method releases only v~."""


class TuningSearch(Request):
    """A Gaussian process that selects the hyper-parameters to score. All of its parameters are public."""

    kernel: Literal["squared_exponential", "matern_12", "matern_32", "matern_52"] = "squared_exponential"
    """k2, with k2(l, l) = 1."""
    lengthscale: PositiveFloat = Field(description="In units of the grid's coordinates.")
    noise_sd: float = Field(0.1, ge=1e-4, le=100)
    """sigma, in scaled units: those of the prior standard deviation."""
    centre: BoundedFloat | None = None
    """In units of the score; null (empty): the middle of its range."""
    scale: PositiveFloat | None = None
    """In units of the score; null (empty): a quarter of its range."""
    evaluations: int = Field(100, ge=1, le=2_000, description="T: number of scores that the search evaluates.")


class TuningPrior(TuningSearch):
    """Assumption 1 of Kusner et al. (2015): scores of all datasets are jointly a Gaussian process, k1 times k2."""

    one_minus_k1: float = Field(ge=1e-12, le=1)
    """1 - k1(V, V') for the worst neighbour: scores of neighbours differ by N(0, 2 (1 - k1)) in scaled units. It cannot
    be derived from the scores, and the guarantee depends on it."""
    noise: Literal["added", "own"] = "added"
    """added: the curator adds fresh Gaussian noise of noise_sd to each score; own: scores already contain such noise,
    fresh at each evaluation. The built-in score contains none."""
    estimated: list[Literal["one_minus_k1", "lengthscale", "scaling", "noise_sd"]] = Field([], max_length=4)
    """Parameters that were estimated from private data, which voids the guarantee."""


class _Method(Request):
    """A method. Its title, docstring and fields make its form in the console, and its line in docs/tuning.md."""

    title: ClassVar[str]
    releases_choice: ClassVar[bool] = True
    is_published: ClassVar[bool] = False
    """Whether it is here to compare with the paper that published it."""

    @classmethod
    def summary(cls) -> str:
        """What it does and promises."""
        return " ".join((cls.__doc__ or "").split())


class GridExponential(_Method):
    """Scores every value and draws one.

    Worst-case promise, of use from epsilon 0.1 on for 2,000 records: the one to take, unless you know why not.
    """

    title = "Grid, exponential mechanism"
    name: Literal["grid_exponential"] = Field(description="Name of the method.")
    selection: Selection = "permute_and_flip"
    use_weights: bool = Field(False, description="Needs a loss that has a slope: ramp, or clipped logistic.")


class GpDesign(_Method):
    """Scores a sequence that is fixed beforehand.

    The promise holds on average over a declared prior. Of use from epsilon 0.1 if 1 - k1 <= 1e-6, from 1 if it is
    <= 1e-4, from 5 if it is <= 1e-2.
    """

    title = "Gaussian process, fixed design"
    name: Literal["gp_design"] = Field(description="Name of the method.")
    prior: TuningPrior = Field(description="Assumption 1.")
    selection: Selection = "permute_and_flip"
    value_at: ValueAt = "chosen"
    charge: Literal["prior_average", "worst_case"] = "prior_average"
    """What is charged for the same noise. prior_average: budget.epsilon and budget.delta, on average over the prior;
    worst_case: the epsilon that the noise keeps for any two datasets, without a delta."""


class GpUcbSimulated(_Method):
    """Searches by GP-UCB.

    The same kind of promise, with a sensitivity measured on simulated neighbours. Of use from epsilon 5 to 10, if
    1 - k1 <= 1e-2.
    """

    title = "GP-UCB, simulated neighbours"
    name: Literal["gp_ucb_simulated"] = Field(description="Name of the method.")
    prior: TuningPrior = Field(description="Assumption 1.")
    selection: Selection = "permute_and_flip"
    value_at: ValueAt = "chosen"
    pairs: int = Field(2_000, ge=200, le=100_000)
    """Number of simulated pairs of neighbours: 7 / delta or more."""
    seed: Seed = 0
    """Public. The tuning's id is mixed in, so that figures differ a little from those of a preview."""


class Kusner1(_Method):
    """Searches by GP-UCB with the paper's constants, or corrected ones.

    The same kind of promise. Of no use up to epsilon 10, and over REST alone.
    """

    title = "Kusner et al. (2015), Algorithm 1"
    is_published = True
    name: Literal["kusner_1"] = Field(description="Name of the method.")
    prior: TuningPrior = Field(description="Assumption 1.")
    q: Literal["corrected", "paper"] = "corrected"
    """corrected: of T draws; paper: as printed, of one, with which nothing proves the promise."""
    delta_split: Literal["corrected", "paper"] = "corrected"
    """corrected: into four events; paper: as printed, with parts that add up to 5/3 delta, which is charged."""
    index_bound: Literal["paper", "tight", "clip"] = "paper"
    """paper: Theorem 1; tight: without its t^2; clip: at most the width to which the posterior mean is clipped."""


class Kusner2(_Method):
    """Releases the best score of a search without noise.

    The same kind of promise, on two constants that nothing public determines, or on none if the whole grid is scored.
    """

    title = "Kusner et al. (2015), Algorithm 2"
    releases_choice = False
    is_published = True
    name: Literal["kusner_2"] = Field(description="Name of the method.")
    prior: TuningPrior = Field(description="Assumption 1; noise_sd is ignored.")
    whole_grid: bool = False
    """Score every hyper-parameter and release the largest score: needs none of a, tau and last."""
    a: PositiveFloat | None = None
    """Of de Freitas et al. (2012), Theorem 2, in scaled units. No public value determines it."""
    tau: PositiveFloat | None = None
    """Of the same theorem. It depends on the objective near its maximum."""
    last: int | None = Field(None, ge=0, lt=TUNING_GRID_MAX)
    """Grid index of lambda_T, from 0, the last hyper-parameter fastest: private, like the scores."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        given = [self.a is not None, self.tau is not None, self.last is not None]
        if any(given) if self.whole_grid else not all(given):
            raise ValueError(
                "give a, tau and last (Algorithm 2 cannot be released without its constants), or whole_grid alone"
            )
        return self


class Kusner3(_Method):
    """Releases the best score of a search, by Theorem 7 for convex training.

    Worst-case promise, for the built-in score. Of use only if every lambda is 1 or more, from epsilon 10 on.
    """

    title = "Kusner et al. (2015), Algorithm 3"
    releases_choice = False
    is_published = True
    name: Literal["kusner_3"] = Field(description="Name of the method.")
    search: TuningSearch = Field(description="Parameters of the search; the guarantee does not depend on them.")
    form: Literal["corrected", "paper"] = "corrected"
    """corrected: 2 L / l_min; paper: as printed, L / l_min, which is too small in general: the epsilon that it keeps is
    charged."""


class PublicWeights(_Method):
    """Releases the best score of a search, by the trained weights, which are public.

    Worst-case promise, for the built-in score. Of use if trained weights are close together.
    """

    title = "Public weights"
    releases_choice = False
    name: Literal["public_weights"] = Field(description="Name of the method.")
    search: TuningSearch = Field(description="Parameters of the search; the guarantee does not depend on them.")


TuningMethod = Annotated[
    GridExponential | GpDesign | GpUcbSimulated | Kusner1 | Kusner2 | Kusner3 | PublicWeights,
    Field(discriminator="name"),
]
TUNING_METHODS: dict[str, type[_Method]] = {
    get_args(method.model_fields["name"].annotation)[0]: method for method in get_args(get_args(TuningMethod)[0])
}
"""The methods by name."""


class TuningSpec(Request):
    """How a tuning releases its result, and its budget."""

    method: TuningMethod = GridExponential(name="grid_exponential")
    """Method that evaluates scores and releases the result."""
    budget: TuningBudget = Field(description="Budget of both releases.")


LAMBDA = "lambda"


class TuningAxis(Request):
    """A hyper-parameter and its values: public, and chosen without the private data."""

    name: Name = Field(description="Name of the hyper-parameter; lambda for the built-in score.")
    values: list[BoundedFloat] = Field(min_length=1, max_length=TUNING_GRID_MAX)
    """Possible values, each once."""
    scale: Literal["linear", "log10"] = "linear"
    """Scale on which a Gaussian process measures distances along this axis."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len(set(self.values)) < len(self.values):
            raise ValueError("values must be distinct")
        if self.scale == "log10" and min(self.values) <= 0:
            raise ValueError("values must be larger than 0 for log10")
        return self


class LogisticScore(Request):
    """Minus the mean loss, over the validation records, of L2-regularised logistic regression trained on public ones.

    No intercept. Rows are scaled by public bounds as in a study, and longer ones are shortened to norm 1.
    """

    kind: Literal["logistic"] = Field(description="Kind of score.")
    training_dataset_id: str = Field(max_length=200, description="ds_...: a dataset that is declared public.")
    features: list[Feature] = Field(min_length=1, max_length=FEATURES_MAX)
    """Columns of both datasets, with public bounds."""
    label: Name = Field(description="Column of both datasets with the class.")
    threshold: BoundedFloat = 0.5
    """In units of the label: above it is one class, all else the other."""
    loss: Literal["zero_one", "ramp", "clipped_logistic"] = "zero_one"
    """g of the margin y <w, x>, in [0, g*]. zero_one: 1 unless the margin is above 0; ramp: (1 - margin) / 2;
    clipped_logistic: log(1 + exp(-margin)) up to clip. g* is 1, 1 and clip."""
    clip: Annotated[float, Field(ge=1e-3, le=100)] = Field(1.0, description="g* of clipped_logistic.")

    @model_validator(mode="after")
    def _columns_once(self) -> Self:
        names = [feature.column for feature in self.features]
        if len(set(names)) < len(names) or self.label in names:
            raise ValueError("each column can be one feature, or the label")
        return self


class HttpScore(Request):
    """Scores of any model, from the one program in the owner's network that the curator's settings name."""

    kind: Literal["http"] = Field(description="Kind of score.")
    model: Name = Field(description="Model for the program to train and score; passed on unchanged.")
    lower: BoundedFloat = Field(description="Smallest score of one record; smaller ones are clipped.")
    upper: BoundedFloat = Field(description="Largest score of one record; larger ones are clipped.")
    reply: Literal["mean", "records", "whole"] = "mean"
    """mean: the program returns the mean over the validation records, and vouches that each record's score lies in the
    range; records: it returns each record's score, and the curator clips it. In both cases it vouches that a record's
    score depends only on that record, the hyper-parameters and public models. whole: it returns one score, any function
    of the dataset (such as AUC): the noise covers the whole range."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.lower < self.upper:
            raise ValueError("lower must be smaller than upper")
        return self


class TuningCaps(Request):
    """Caps on the account of the validation dataset: what studies, tunings and bounds may cost a record together."""

    epsilon: BudgetEpsilon = Field(description="Cap on epsilon; the lowest counts, until the owner raises it.")
    delta: float | None = Field(None, ge=0, le=0.5)
    """Cap on the sum of deltas; the lowest counts, until the owner raises it. Null: it stays as it is."""


class TuningCreate(TuningSpec):
    """Choose among public hyper-parameters by a score on private records; release the choice and its score."""

    name: Name = Field(description="Name of the tuning.")
    grid: list[TuningAxis] = Field(
        min_length=1, max_length=6, description=f"Axes of the grid: at most {TUNING_GRID_MAX} combinations."
    )
    score: Annotated[LogisticScore | HttpScore, Field(discriminator="kind")]
    """Source of scores; larger is better."""
    validation_dataset_id: str = Field(max_length=200)
    """ds_...: the private records, each of which is protected. An http score needs only their number."""
    caps: TuningCaps = Field(description="Caps on the account of the validation dataset's file.")


class TuningReport(Reply):
    """Cost, guarantee and expected accuracy of a tuning, from public values alone."""

    method: str = Field(description="Name of the method.")
    points: int = Field(description="Number of hyper-parameters in the grid.")
    records: int = Field(description="m, the number of validation records; the guarantees treat it as public.")
    epsilon: str
    """epsilon charged, for lambda~ and v~ together: that of a person, where the dataset has a person column."""
    delta: str = Field(description="delta charged, for both together; the guarantee says what it means.")
    index_epsilon: str | None = Field(description="epsilon of lambda~ for one record; null if it is not released.")
    value_epsilon: str | None = Field(description="epsilon of v~ for one record; null if it is not released.")
    index_sensitivity: float | None
    """Largest change, by one record, of the scores from which lambda~ is drawn."""
    index_scale: float | None
    """lambda~ is drawn with weights exp(score / scale), or by permute-and-flip with the same scale."""
    value_sensitivity: float | None = Field(description="Largest change of v~, before the noise, by one record.")
    value_scale: float | None = Field(description="v~ has noise of density exp(-|x| / scale).")
    constants: dict[str, float] = Field(description="Constants of the method, by the paper's names.")
    expected_gap: float | None
    """Expected difference between the best score and that of lambda~, in units of the score."""
    expected_value_error: float | None = Field(description="Expected absolute error of v~, in units of the score.")
    expected_how: str = Field(description="How both were computed, in words.")
    guarantee_kind: GuaranteeKind
    """worst_case counts against the caps of the account. prior_average is a line of its own; none is bounded by
    nothing."""
    guarantee: str = Field(description="Guarantee, in words.")
    cautions: list[Caution] = Field(description="What an expert would point out, before anything is charged.")
    spent_epsilon: str = Field(description="epsilon that the record which used most has used before.")
    spent_delta: str = Field(description="Sum of the deltas of the validation dataset's account before.")
    cap_epsilon: str = Field(description="Lowest declared cap on epsilon, including this tuning's.")
    cap_delta: str | None = Field(description="Lowest declared cap on delta, including this tuning's; null: none.")

    @model_validator(mode="before")
    @classmethod
    def _without_a_kind(cls, value: Any) -> Any:
        """Read a report of version 0.3.0 or earlier: the first words of its guarantee say the kind."""
        if isinstance(value, dict) and "guarantee_kind" not in value:
            kinds = {"Worst case:": "worst_case", "On average": "prior_average"}
            words = str(value.get("guarantee", ""))
            kind = next((kind for first, kind in kinds.items() if words.startswith(first)), "none")
            return value | {"guarantee_kind": kind}
        return value

    @model_validator(mode="before")
    @classmethod
    def _of_0_2(cls, value: Any) -> Any:
        """Read a report that 0.2.0 stored: it has sentences, ``warnings``, in place of cautions."""
        if isinstance(value, dict) and "warnings" in value and "cautions" not in value:
            cautions = [{"code": "warning", "field": "method", "message": text} for text in value["warnings"]]
            return value | {"cautions": cautions}
        return value


class TuningResult(Reply):
    """The released result of a tuning: the only part that may be passed on."""

    index: int | None = Field(description="Index of lambda~ in the grid, from 0; the last axis varies fastest.")
    hyperparameters: dict[str, float] | None = Field(description="lambda~; null if it is not released.")
    value: float | None = Field(description="v~, in units of the score; null if it is not released.")


class TuningView(Reply):
    """A running or finished tuning, for the owner only. Intermediate scores are never shown."""

    id: str = Field(description="tun_...")
    name: str = Field(description="Name of the tuning.")
    validation_dataset_id: str = Field(description="Dataset of the private records.")
    state: Literal["running", "completed", "failed", "cancelled"]
    """running: in progress, or queued. A crash or a shutdown makes it failed."""
    progress: float = Field(ge=0, le=1, description="Fraction of the evaluations that are done.")
    created_at: datetime = Field(description="When it was charged.")
    ended_at: datetime | None = Field(description="When it ended; null while running.")
    problem: str | None = Field(description="Why it failed, and what to do. Its charge stays.")
    spec: TuningCreate = Field(description="The request.")
    report: TuningReport = Field(description="The report at the time of the charge.")
    result: TuningResult | None = Field(description="The released result; null unless completed.")
    clipped: int | None
    """Number of scores outside the range: exact, private, not to be passed on. Null before the end."""
    evaluations: int | None = Field(description="Number of evaluated scores. Null before the end.")


class TuningPage(Page):
    """A page of tunings."""

    tunings: list[TuningView] = Field(description="Tunings, in the order of creation.")
