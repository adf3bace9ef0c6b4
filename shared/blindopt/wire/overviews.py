"""Overviews for the owner's people: the check of a draft, what studies have spent, and running jobs."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from blindopt.wire.base import Caution, Page, Reply
from blindopt.wire.ledgers import DatasetOutlook
from blindopt.wire.releases import FeatureMeaning, Price, Status, Strength
from blindopt.wire.studies import Budget, BudgetChange


class StudyCheck(Reply):
    """What a draft would guarantee and cost, computed from public values alone, but for ``record_cautions``."""

    mechanism: str = Field(description="Release mechanism that would run.")
    why: str | None = Field(description="Why auto would choose it; null if the owner chose.")
    delta: float | None = Field(description="delta of the release; null if it promises pure epsilon or nothing.")
    status: Status = Field(
        description="Whether its guarantee is proved, refuted or withdrawn, or whether it makes none."
    )
    guarantee: str = Field(description="Guarantee for the records, in words.")
    not_protected: list[str] = Field(description="What the guarantee does not cover, in words.")
    noise_sd: float | None = Field(
        description="Standard deviation of the noise per coordinate of Z, in scaled units; null without noise."
    )
    features: list[FeatureMeaning] = Field(description="Delta and the noise in the unit of each feature.")
    search: str | None = Field(
        None,
        description=(
            "What the noise does to a search, in words, from the declared box and a public forecast if there is one; "
            "null without noise."
        ),
    )
    strength: Strength | None = Field(
        description="Name of the range of epsilon: up to 1, 3, 6, and above; null where nothing is promised."
    )
    surest: float | None = Field(
        description=(
            "How sure someone undecided (1/2) between two values that differ by Delta can become, at most; with a "
            "delta, except for events that it allows. Null where nothing is promised."
        )
    )
    belief: str | None = Field(description="The same in words.")
    answers: str = Field(description="Answer mechanism that would run: never auto.")
    price: Price = Field(description="What it would cost, and how many answers the budget allows.")
    cautions: list[Caution] = Field(
        description="Choices that an expert would not make, from public values alone; a release accepts them."
    )
    record_cautions: list[Caution] = Field(
        description="The same from the values of the records: for the owner alone, neither logged nor stored."
    )
    account: DatasetOutlook = Field(description="The account of the dataset's file, without and with this study.")


class FeaturePoint(Reply):
    """An answer beside the value of a feature of its record."""

    row: int = Field(description="Number of the candidate: its row of Z, from 0.")
    value: float = Field(description="Value of the feature, in its own unit.")
    y: float = Field(description="Answer as it was released.")
    measured: float | None = Field(
        description="Exact value where the owner sees it, the mean if there are several; null if there is none."
    )


class FeatureResult(Reply):
    """The answers of a study against one feature."""

    column: str = Field(description="Column of the feature.")
    relevance: float | None = Field(description="Share from 0 to 1, of all features 1 together; null: see problem.")
    points: list[FeaturePoint] = Field(description="Newest answers, oldest of them first.")


class StudyResults(Reply):
    """The results of a study by feature, from its answers and records: for the owner alone."""

    study_id: str = Field(description="std_...")
    answers: int = Field(description="Number of answers that were read: those to the newest 1,000 queries.")
    fitted: int = Field(description="Number of answers that the relevance is computed from.")
    method: str = Field(description="How the relevance is computed, in words.")
    problem: str | None = Field(description="Why there is no relevance, in words; null if there is one.")
    privacy: str = Field(description="What using it means for privacy, in words.")
    features: list[FeatureResult] = Field(description="Features in the order of the study.")


class StudyAccount(Reply):
    """What a study has spent, with its caps. Depends only on the history of requests.

    Amounts are exact decimals; null if there is no finite bound.
    """

    study_id: str = Field(description="std_...")
    dataset_id: str = Field(description="ds_...")
    name: str = Field(description="Name of the study.")
    state: Literal["draft", "releasing", "open", "closed"] = Field(description="State of the study.")
    created_at: datetime = Field(description="When the draft was created.")
    opened_at: datetime | None = Field(description="When Z was released; null before.")
    archived_at: datetime | None = Field(None, description="When the study was archived; null: it is not.")
    mechanism: str = Field(description="Release mechanism, as the owner chose it.")
    measurement: Literal["column", "inbox", "webhook"] = Field(description="Source of y.")
    privacy_unit: Literal["row", "answer"] = Field(
        description=(
            "row: answers about one record add up; answer: each is another person's, but for source column, where they "
            "add up."
        )
    )
    budget: Budget = Field(description="Caps of the study.")
    budget_changes: list[BudgetChange] = Field([], description="Raises of the caps since the release: the last 20.")
    release_epsilon: str | None = Field(description="Epsilon that the release charged every record.")
    row_epsilon: str | None = Field(description="Largest amount that counts against the cap per record.")
    person_epsilon: str | None = Field(
        description=(
            "row_epsilon times the rows of one person that the owner declares, where no column says whose each row is."
        )
    )
    total_epsilon: str | None = Field(description="Sum of the release and all answers.")
    total_plays: int = Field(description="Number of measurements.")


class StudyAccountPage(Page):
    """A page of studies with what they have spent."""

    accounts: list[StudyAccount] = Field(description="Studies, in the order of creation.")


class RowsAsked(Reply):
    """Records that were measured equally often."""

    plays: int = Field(ge=0, description="Number of released measurements of each of these records.")
    rows: int = Field(ge=1, description="How many rows.")


class ExposureHistogram(Reply):
    """How often the rows of a study were measured."""

    counts: list[RowsAsked] = Field(
        description="Counts by number of measurements; records that were never queried count with 0."
    )


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
    ahead: int | None = Field(
        None, description="For a file: how many files come before it; 0 while it is read. Null for other jobs."
    )


class JobList(Reply):
    """All running and queued jobs."""

    jobs: list[JobView] = Field(
        description="Previews, releases, forecasts, tunings, files; each in the order of the requests."
    )
