"""A tuning as its owner asks for it, and what comes of it."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from blindopt.wire.base import FEATURES_MAX, BudgetEpsilon, Name, Page, Reply, Request
from blindopt.wire.studies import Feature
from blindopt.wire.tuning_methods import TUNING_GRID_MAX, TuningSpec

LAMBDA = "lambda"


class TuningAxis(Request):
    """One hyper-parameter and its values: public, and chosen without a look at the private data."""

    name: Name = Field(description="Of the hyper-parameter; lambda for the built-in score.")
    values: list[Annotated[float, Field(ge=-1e50, le=1e50)]] = Field(
        min_length=1, max_length=TUNING_GRID_MAX, description="What it may be, each once."
    )
    scale: Literal["linear", "log10"] = Field(
        "linear", description="Coordinate in which a Gaussian process measures lengths along this axis."
    )

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len(set(self.values)) < len(self.values):
            raise ValueError("values must be distinct")
        if self.scale == "log10" and min(self.values) <= 0:
            raise ValueError("values must be larger than 0 for log10")
        return self


class LogisticScore(Request):
    """Minus the mean loss, over the validation records, of L2-regularised logistic regression trained on public ones.

    No intercept. Rows are scaled by public bounds as in a study, and shortened to norm 1 where they are longer.
    """

    kind: Literal["logistic"] = Field(description="Names the kind of score.")
    training_dataset_id: str = Field(max_length=200, description="ds_..., declared public.")
    features: list[Feature] = Field(
        min_length=1, max_length=FEATURES_MAX, description="Columns of both datasets, with public bounds."
    )
    label: Name = Field(description="Column of both datasets with the class.")
    threshold: float = Field(0.5, ge=-1e50, le=1e50, description="Labels above it are one class, all others the other.")
    loss: Literal["zero_one", "ramp", "clipped_logistic"] = Field(
        "zero_one",
        description=(
            "g of the margin y <w, x>, in [0, g*]: zero_one: 1 where it is not above 0; ramp: (1 - margin) / 2; "
            "clipped_logistic: log(1 + exp(-margin)) up to clip. g* is 1, 1 and clip."
        ),
    )
    clip: Annotated[float, Field(ge=1e-3, le=100)] = Field(1.0, description="g* of clipped_logistic.")

    @model_validator(mode="after")
    def _columns_once(self) -> Self:
        names = [feature.column for feature in self.features]
        if len(set(names)) < len(names) or self.label in names:
            raise ValueError("each column can be one feature, or the label")
        return self


class HttpScore(Request):
    """Scores of any model, from the one program in the owner's network that the curator's settings name."""

    kind: Literal["http"] = Field(description="Names the kind of score.")
    model: Name = Field(description="Passed on: which model the program is to train and score.")
    lower: float = Field(ge=-1e50, le=1e50, description="Smallest score of one record; smaller ones are clipped.")
    upper: float = Field(ge=-1e50, le=1e50, description="Largest score of one record; larger ones are clipped.")
    reply: Literal["mean", "records", "whole"] = Field(
        "mean",
        description=(
            "mean: the program tells the mean over the validation records, and it is its word that each record's "
            "score lies in the range; records: it tells all of them, and the curator clips each. In both cases it is "
            "its word that a record's score depends on that record, the hyper-parameters and public models alone. "
            "whole: it tells one score, which may be any function of the dataset (AUC): noise is for the whole range."
        ),
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.lower < self.upper:
            raise ValueError("lower must be smaller than upper")
        return self


class TuningCaps(Request):
    """The most that all tunings on one validation dataset may spend together."""

    epsilon: BudgetEpsilon = Field(description="The sum of what they spend; the lowest cap that was declared counts.")
    delta: float = Field(0.0, ge=0, le=0.5, description="The sum of their delta; the lowest cap counts.")


class TuningCreate(TuningSpec):
    """Choose among public hyper-parameters by a score on private records; release the choice and its score."""

    name: Name = Field(description="For people.")
    grid: list[TuningAxis] = Field(
        min_length=1, max_length=6, description=f"Every combination is tried: at most {TUNING_GRID_MAX}."
    )
    score: Annotated[LogisticScore | HttpScore, Field(discriminator="kind")] = Field(
        description="Where scores come from; larger is better."
    )
    validation_dataset_id: str = Field(
        max_length=200,
        description="ds_...: the private records, each of which is protected. An http score needs its row count alone.",
    )
    caps: TuningCaps = Field(description="On all tunings of the validation dataset's file.")


class TuningReport(Reply):
    """What a tuning costs, promises and is expected to achieve, from public values alone."""

    method: str = Field(description="Its name.")
    points: int = Field(description="Hyper-parameters in the grid.")
    records: int = Field(description="m, the validation records: public in all that is promised.")
    epsilon: str = Field(description="What is charged, of lambda~ and v~ together.")
    delta: str = Field(description="What is charged, of both together; what it means, the guarantee says.")
    index_epsilon: str | None = Field(description="Of lambda~; null where it is not released.")
    value_epsilon: str | None = Field(description="Of v~; null where it is not released.")
    index_sensitivity: float | None = Field(description="How far one record moves what lambda~ is drawn from.")
    index_scale: float | None = Field(description="lambda~ is drawn with weights exp(score / scale), or flips of it.")
    value_sensitivity: float | None = Field(description="How far one record moves v~ before the noise.")
    value_scale: float | None = Field(description="v~ has noise of density exp(-|x| / scale).")
    constants: dict[str, float] = Field(description="What these are made of, by the paper's names.")
    expected_gap: float | None = Field(description="Of the best score over that of lambda~, in units of the score.")
    expected_value_error: float | None = Field(description="Mean absolute error of v~, in units of the score.")
    expected_how: str = Field(description="What the two are, in words.")
    guarantee: str = Field(description="What is promised, in words.")
    warnings: list[str] = Field(description="What to know before anything is spent.")
    spent_epsilon: str = Field(description="By earlier tunings on the validation dataset's file.")
    spent_delta: str = Field(description="By earlier tunings on the validation dataset's file.")
    cap_epsilon: str = Field(description="The lowest that was declared, this tuning's included.")
    cap_delta: str = Field(description="The lowest that was declared, this tuning's included.")


class TuningResult(Reply):
    """What is released: it may leave the house, nothing else of a tuning may."""

    index: int | None = Field(description="Of lambda~ in the grid, counted from 0, the last axis fastest.")
    hyperparameters: dict[str, float] | None = Field(description="lambda~; null where it is not released.")
    value: float | None = Field(description="v~, in units of the score; null where it is not released.")


class TuningView(Reply):
    """A tuning under way or done, for the owner alone. Which scores were seen on the way is never told."""

    id: str = Field(description="tun_...")
    name: str = Field(description="For people.")
    validation_dataset_id: str = Field(description="The private records.")
    state: Literal["running", "completed", "failed", "cancelled"] = Field(
        description="running: under way, or waiting for its turn. A crash or a shutdown makes it failed."
    )
    progress: float = Field(ge=0, le=1, description="Share of the evaluations that is done.")
    created_at: datetime = Field(description="When it was charged.")
    ended_at: datetime | None = Field(description="When it ended; null while running.")
    problem: str | None = Field(description="Why it failed, and what to do. What it was charged stays spent.")
    spec: TuningCreate = Field(description="As it was asked for.")
    report: TuningReport = Field(description="As it was when it was charged.")
    result: TuningResult | None = Field(description="What was released; null unless completed.")
    clipped: int | None = Field(
        description="Scores outside the range: an exact count, private, not to be passed on. Null before the end."
    )
    evaluations: int | None = Field(description="Scores that were asked for. Null before the end.")


class TuningPage(Page):
    """A page of tunings."""

    tunings: list[TuningView] = Field(description="In the order of their creation.")


class TuningCharge(Reply):
    """One line of the account of a dataset's file: a charge, a refusal, which costs nothing, or its closing."""

    seq: int = Field(description="Place in the ledger of all tunings; lines of other datasets lie between.")
    kind: Literal["tuning", "refused", "closed"] = Field(
        description="tuning: charged; refused: a cap was in the way; closed: a restore lost what came after a backup."
    )
    tuning_id: str | None = Field(description="The tuning; null where none was made.")
    epsilon: str = Field(description="What was charged, or asked where it was refused.")
    delta: str = Field(description="What was charged, or asked where it was refused.")
    cap: str | None = Field(description="The cap that refused: epsilon or delta.")
    cap_epsilon: str | None = Field(description="The lowest cap that was declared until then; null: none.")
    cap_delta: str | None = Field(description="The lowest cap that was declared until then; null: none.")
    total_epsilon: str = Field(description="Of the file, with this line.")
    total_delta: str = Field(description="Of the file, with this line.")
    created_at: datetime = Field(description="When it was committed: before anything was scored or drawn.")


class TuningLedger(Page):
    """A page of a dataset's account: its file's, so that registering it again opens no new one."""

    charges: list[TuningCharge] = Field(description="In the order of commits.")
    total_epsilon: str = Field(description="Of all tunings so far.")
    total_delta: str = Field(description="Of all tunings so far.")
