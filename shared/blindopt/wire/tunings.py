"""Tunings: requests and results."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from blindopt.wire.base import FEATURES_MAX, BudgetEpsilon, Caution, Name, Page, Reply, Request
from blindopt.wire.studies import Feature
from blindopt.wire.tuning_methods import TUNING_GRID_MAX, TuningSpec

LAMBDA = "lambda"


class TuningAxis(Request):
    """A hyper-parameter and its values: public, and chosen without the private data."""

    name: Name = Field(description="Name of the hyper-parameter; lambda for the built-in score.")
    values: list[Annotated[float, Field(ge=-1e50, le=1e50)]] = Field(
        min_length=1, max_length=TUNING_GRID_MAX, description="Possible values, each once."
    )
    scale: Literal["linear", "log10"] = Field(
        "linear", description="Scale on which a Gaussian process measures distances along this axis."
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

    No intercept. Rows are scaled by public bounds as in a study, and longer ones are shortened to norm 1.
    """

    kind: Literal["logistic"] = Field(description="Kind of score.")
    training_dataset_id: str = Field(max_length=200, description="ds_...: a dataset that is declared public.")
    features: list[Feature] = Field(
        min_length=1, max_length=FEATURES_MAX, description="Columns of both datasets, with public bounds."
    )
    label: Name = Field(description="Column of both datasets with the class.")
    threshold: float = Field(
        0.5, ge=-1e50, le=1e50, description="Labels above it are one class, all others the other class."
    )
    loss: Literal["zero_one", "ramp", "clipped_logistic"] = Field(
        "zero_one",
        description=(
            "g of the margin y <w, x>, in [0, g*]. zero_one: 1 unless the margin is above 0; ramp: (1 - margin) / 2; "
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

    kind: Literal["http"] = Field(description="Kind of score.")
    model: Name = Field(description="Model for the program to train and score; passed on unchanged.")
    lower: float = Field(ge=-1e50, le=1e50, description="Smallest score of one record; smaller ones are clipped.")
    upper: float = Field(ge=-1e50, le=1e50, description="Largest score of one record; larger ones are clipped.")
    reply: Literal["mean", "records", "whole"] = Field(
        "mean",
        description=(
            "mean: the program returns the mean over the validation records, and vouches that each record's score lies "
            "in the range; records: it returns each record's score, and the curator clips it. In both cases it vouches "
            "that a record's score depends only on that record, the hyper-parameters and public models. whole: it "
            "returns one score, any function of the dataset (such as AUC): the noise covers the whole range."
        ),
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.lower < self.upper:
            raise ValueError("lower must be smaller than upper")
        return self


class TuningCaps(Request):
    """Caps on the account of the validation dataset: what studies, tunings and bounds may cost a record together."""

    epsilon: BudgetEpsilon = Field(description="Cap on epsilon; the lowest counts, until the owner raises it.")
    delta: float | None = Field(
        None,
        ge=0,
        le=0.5,
        description="Cap on the sum of deltas; the lowest counts, until the owner raises it. Null: it stays as it is.",
    )


class TuningCreate(TuningSpec):
    """Choose among public hyper-parameters by a score on private records; release the choice and its score."""

    name: Name = Field(description="Name of the tuning.")
    grid: list[TuningAxis] = Field(
        min_length=1, max_length=6, description=f"Axes of the grid: at most {TUNING_GRID_MAX} combinations."
    )
    score: Annotated[LogisticScore | HttpScore, Field(discriminator="kind")] = Field(
        description="Source of scores; larger is better."
    )
    validation_dataset_id: str = Field(
        max_length=200,
        description="ds_...: the private records, each of which is protected. An http score needs only their number.",
    )
    caps: TuningCaps = Field(description="Caps on the account of the validation dataset's file.")


class TuningReport(Reply):
    """Cost, guarantee and expected accuracy of a tuning, from public values alone."""

    method: str = Field(description="Name of the method.")
    points: int = Field(description="Number of hyper-parameters in the grid.")
    records: int = Field(description="m, the number of validation records; the guarantees treat it as public.")
    epsilon: str = Field(
        description=(
            "epsilon charged, for lambda~ and v~ together: that of a person, where the dataset has a person column."
        )
    )
    delta: str = Field(description="delta charged, for both together; the guarantee says what it means.")
    index_epsilon: str | None = Field(description="epsilon of lambda~ for one record; null if it is not released.")
    value_epsilon: str | None = Field(description="epsilon of v~ for one record; null if it is not released.")
    index_sensitivity: float | None = Field(
        description="Largest change, by one record, of the scores from which lambda~ is drawn."
    )
    index_scale: float | None = Field(
        description="lambda~ is drawn with weights exp(score / scale), or by permute-and-flip with the same scale."
    )
    value_sensitivity: float | None = Field(description="Largest change of v~, before the noise, by one record.")
    value_scale: float | None = Field(description="v~ has noise of density exp(-|x| / scale).")
    constants: dict[str, float] = Field(description="Constants of the method, by the paper's names.")
    expected_gap: float | None = Field(
        description="Expected difference between the best score and that of lambda~, in units of the score."
    )
    expected_value_error: float | None = Field(description="Expected absolute error of v~, in units of the score.")
    expected_how: str = Field(description="How both were computed, in words.")
    guarantee: str = Field(description="Guarantee, in words.")
    cautions: list[Caution] = Field(description="What an expert would point out, before anything is spent.")
    spent_epsilon: str = Field(description="epsilon that the record which lost most has lost before.")
    spent_delta: str = Field(description="Sum of the deltas of the validation dataset's account before.")
    cap_epsilon: str = Field(description="Lowest declared cap on epsilon, including this tuning's.")
    cap_delta: str | None = Field(description="Lowest declared cap on delta, including this tuning's; null: none.")

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
    state: Literal["running", "completed", "failed", "cancelled"] = Field(
        description="running: in progress, or queued. A crash or a shutdown makes it failed."
    )
    progress: float = Field(ge=0, le=1, description="Fraction of the evaluations that are done.")
    created_at: datetime = Field(description="When it was charged.")
    ended_at: datetime | None = Field(description="When it ended; null while running.")
    problem: str | None = Field(description="Why it failed, and what to do. Its charge stays spent.")
    spec: TuningCreate = Field(description="The request.")
    report: TuningReport = Field(description="The report at the time of the charge.")
    result: TuningResult | None = Field(description="The released result; null unless completed.")
    clipped: int | None = Field(
        description="Number of scores outside the range: exact, private, not to be passed on. Null before the end."
    )
    evaluations: int | None = Field(description="Number of evaluated scores. Null before the end.")


class TuningPage(Page):
    """A page of tunings."""

    tunings: list[TuningView] = Field(description="Tunings, in the order of creation.")
