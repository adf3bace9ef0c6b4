"""Privacy reports, signed by the curator: what was promised and spent."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from blindopt.wire.answers import Answers
from blindopt.wire.base import Caution, Reply, Sha256
from blindopt.wire.datasets import ColumnChoice
from blindopt.wire.ledgers import Accounting, DatasetAccount
from blindopt.wire.releases import Finding, Price, Status
from blindopt.wire.studies import Budget

REPORT_TITLE = "blindopt privacy report, version 1"
"""The title under which a report is signed."""
AUDIT_TITLE = "blindopt audit of drawn noise, version 1"
"""The title under which the transcript of an audit is signed."""


class ReportedDataset(Reply):
    """The dataset of a report, without any of its values."""

    id: str = Field(description="ds_...")
    sha256: Sha256 = Field(description="SHA-256 of the uploaded file.")
    public: bool = Field(description="Whether the owner declares that nobody in it needs protection.")
    rows: int = Field(description="Number of records.")
    withheld: int = Field(description="Number of records that are withheld: measured and released no more.")
    encoded: list[ColumnChoice] = Field(
        default_factory=list,
        description="How columns of text, dates or gaps were read: lists of categories and the rest are public inputs.",
    )


class ReportedStudy(Reply):
    """What a study promised and spent."""

    id: str = Field(description="std_...")
    name: str = Field(description="Name of the study.")
    state: Literal["draft", "releasing", "open", "closed"] = Field(description="Its state.")
    created_at: datetime = Field(description="When the draft was created.")
    opened_at: datetime | None = Field(description="When Z was released; null before.")
    spec_sha256: Sha256 = Field(description="Digest of the specification, as in the log.")
    release_sha256: Sha256 | None = Field(
        description="SHA-256 of the npy file of Z, or of the list of its parts; null before."
    )
    unit: str = Field(description="The unit of privacy: whose data the guarantee is about.")
    relation: str = Field(description="When two datasets are neighbours.")
    mechanism: str = Field(description="Release mechanism that ran, or would run.")
    mechanism_version: int = Field(description="Its version.")
    status: Status = Field(
        description="Whether the guarantee is proved, refuted or withdrawn, or whether there is none."
    )
    answers: Answers = Field(description="Answer mechanism (never auto) and its cost.")
    guarantee: str = Field(description="Guarantee for the records, in words.")
    not_protected: list[str] = Field(description="What the guarantee does not cover, in words.")
    budget: Budget = Field(description="Caps on what the study may spend.")
    price: Price = Field(description="What it costs, and how many answers the budget allows.")
    worst_epsilon: str | None = Field(description="Epsilon of the record that has lost most; null: no bound.")
    spent: Accounting = Field(description="Privacy loss so far: distribution over the records, and in all.")
    cautions: list[Caution] = Field(
        description="Choices that an expert would not make; accepted with the release, or by raising caps since."
    )
    attacks: list[Finding] = Field(description="Results of attacks on the actual release.")
    not_tried: str | None = Field(description="Attacks that were omitted, and why; null if none was.")


class PrivacyReport(Reply):
    """The state of one study, or of every study of a dataset, at one moment."""

    subject: Literal["study", "dataset"] = Field(description="What the report is about.")
    made_at: datetime = Field(description="When it was made.")
    log_key: str = Field(max_length=400, description="C2SP verifier key of the curator's log, which signs the report.")
    checkpoint: str = Field(description="Signed checkpoint of the curator's log: the report is of this state.")
    dataset: ReportedDataset = Field(description="The dataset.")
    account: DatasetAccount = Field(description="The account of the dataset's file, over all of its uses.")
    studies: list[ReportedStudy] = Field(description="The study, or the studies of the dataset's file.")


class SignedPrivacyReport(Reply):
    """A report and its signature, for `blindopt-curator report verify`."""

    report: PrivacyReport = Field(description="The report.")
    signature: str = Field(description="A C2SP signed note: title and SHA-256 of the canonical JSON of report.")
