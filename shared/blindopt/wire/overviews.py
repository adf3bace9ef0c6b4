"""What the owner's people look at before they act: a draft that is not made yet, and what studies have spent."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from blindopt.wire.base import Page, Reply
from blindopt.wire.releases import FeatureMeaning, Price, Status
from blindopt.wire.studies import Budget


class StudyCheck(Reply):
    """What a draft would promise and cost, from public values alone."""

    mechanism: str = Field(description="The release mechanism that would run.")
    why: str | None = Field(description="Why auto would take it; null where the owner chose.")
    status: Status = Field(description="Whether its promise is proved, refuted, withdrawn, or none.")
    guarantee: str = Field(description="What would be promised for the records, in words.")
    not_protected: list[str] = Field(description="What would not be promised, in words.")
    noise_sd: float | None = Field(description="Per coordinate of Z, in scaled units; null where there is no noise.")
    features: list[FeatureMeaning] = Field(description="What Delta and noise mean in the unit of each feature.")
    answers: str = Field(description="What would be done to each y: never auto.")
    price: Price = Field(description="What it would cost, and what the budget leaves for answers.")


class StudyAccount(Reply):
    """What a study has spent, beside its caps. Depends on the history of requests alone.

    Amounts are exact decimals; null where there is no finite one.
    """

    study_id: str = Field(description="std_...")
    dataset_id: str = Field(description="ds_...")
    name: str = Field(description="For people.")
    state: Literal["draft", "releasing", "open", "closed"] = Field(description="Of the study.")
    created_at: datetime = Field(description="When the draft was made.")
    opened_at: datetime | None = Field(description="When Z was released; null before.")
    mechanism: str = Field(description="Of the release, as the owner chose it.")
    measurement: Literal["column", "inbox", "webhook"] = Field(description="Where y comes from.")
    privacy_unit: Literal["row", "answer"] = Field(description="Whether answers about one row add up.")
    budget: Budget = Field(description="The caps.")
    release_epsilon: str | None = Field(description="What the release charged every row.")
    row_epsilon: str | None = Field(description="What counts against the cap of each row, for the row that spent most.")
    total_epsilon: str | None = Field(description="Release and all answers.")
    total_plays: int = Field(description="Measurements.")


class StudyAccountPage(Page):
    """A page of what studies have spent."""

    accounts: list[StudyAccount] = Field(description="In the order in which the studies were made.")


class RowsAsked(Reply):
    """Rows that were measured equally often."""

    plays: int = Field(ge=0, description="Measurements that were released of each of them.")
    rows: int = Field(ge=1, description="How many rows.")


class ExposureHistogram(Reply):
    """How often the rows of a study were measured."""

    counts: list[RowsAsked] = Field(description="By measurements; rows that were never asked are counted with 0.")


class LedgerPoint(Reply):
    """What a study had spent with one line of its ledger."""

    line: int = Field(ge=1, description="Which line of the study's ledger, from 1.")
    at: datetime = Field(description="When the line was committed.")
    total_epsilon: str | None = Field(description="Release and all answers; null: no finite bound.")
    total_plays: int = Field(description="Measurements.")


class LedgerCurve(Reply):
    """What a study has spent over time, thinned."""

    lines: int = Field(ge=0, description="How many lines the ledger has.")
    points: list[LedgerPoint] = Field(description="Some of them, evenly, with the last.")


class JobView(Reply):
    """A release, forecast or tuning under way."""

    kind: Literal["release", "forecast", "tuning"] = Field(description="What is done.")
    id: str = Field(description="fct_... or tun_...; of a release, the study's.")
    study_id: str | None = Field(description="std_...; null for a tuning.")
    name: str = Field(description="Of the study or the tuning, for people.")
    progress: float = Field(ge=0, le=1, description="Share of it that is done.")


class JobList(Reply):
    """What is under way: no more than may wait at once."""

    jobs: list[JobView] = Field(description="Releases, forecasts, tunings; each in the order in which they were asked.")
