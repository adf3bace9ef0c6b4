"""Ledger, exposure and privacy accounting of a study, and the account of a dataset's file."""

from datetime import datetime
from typing import Literal, Self

from pydantic import Field, model_validator

from blindopt.wire.base import BudgetEpsilon, GuaranteeKind, Name, Page, Reply, Request

CapAct = Literal["declared", "lowered", "raised", "continued"]


LedgerKind = Literal["release", "answers", "refine", "correction", "refused"]


class LedgerEntry(Reply):
    """A line of the ledger: a charge, or a refusal, which costs nothing.

    Amounts are exact decimals; null if there is no finite bound: y without noise, or a release that is refuted or
    withdrawn. A release of public records costs 0.
    """

    seq: int = Field(description="Position in the ledger of all studies; lines of other studies lie between.")
    kind: LedgerKind
    """release: a charge to every record; answers: a charge to one record; refine: a charge to one record, for its
    second draw, once; correction: a charge to one record, whose answers of a query are released again; refused: a cap
    would have been exceeded."""
    query_id: str | None = Field(description="The query; null for a release and a refusal.")
    row: int | None = Field(description="Candidate number; null: all of them, or the cap is not one for each record.")
    plays: int = Field(description="Number of measurements; 0 for a correction and a second draw.")
    epsilon: str | None = Field(description="Amount charged, or requested if refused.")
    row_epsilon: str | None
    """Sum of the answers about this record, including this line, without the release."""
    total_epsilon: str | None
    """Sum of the release and all answers of the study, including this line."""
    total_plays: int = Field(description="Number of measurements of the study, including this line.")
    cap: str | None = Field(description="The cap that refused.")
    created_at: datetime = Field(description="When it was committed: before anything was drawn.")


class LedgerPage(Page):
    """A page of a study's ledger."""

    entries: list[LedgerEntry] = Field(description="Lines, in the order of commits.")
    release_epsilon: str | None
    """Epsilon that the release charged every record; null: no bound; 0: public records."""
    total_epsilon: str | None = Field(description="Sum of the release and all answers so far.")
    total_plays: int = Field(description="Number of measurements so far.")


class RowExposure(Reply):
    """What was released about one record."""

    row: int = Field(description="Candidate number.")
    record: int | None
    """Number of the record in the file, from 1: for the owner only, otherwise null."""
    file_row: int | None = None
    """The same as a spreadsheet numbers it; null also if the file's kind is not known."""
    queries: int = Field(description="Number of queries about it.")
    plays: int = Field(description="Number of released measurements.")
    epsilon: str | None
    """Sum of the answers, without the release; null: answers without noise have no bound."""
    refined: bool = Field(False, exclude_if=lambda refined: not refined)
    """Whether the record was charged for its second draw, which epsilon includes; absent: it was not."""
    spent: str | None
    """Amount that counts against the cap per record, including the release; where the dataset has a person column, of
    all records of the person."""


class ExposurePage(Page):
    """A page of queried records; all others have only the release's charge."""

    rows: list[RowExposure] = Field(description="Records, by candidate.")
    release_epsilon: str | None = Field(description="Epsilon that the release charged every record.")


class Loss(Reply):
    """Two bounds on the privacy loss of everything released so far."""

    epsilon: str | None = Field(description="Pure composition: the sum, as the ledger enforces it; null: no bound.")
    tight_epsilon: float | None
    """By the privacy loss distribution, or Renyi divergences if that is not precise enough, at the report's delta:
    never more than the sum, unless that delta is smaller than the release's own, at which the sum holds. Treats the
    number of answers as fixed before the first one. Null: no bound."""


class RowsLoss(Loss):
    """Privacy loss of the records, or persons, with the same number of released answers."""

    answers: int = Field(description="Number of released answers about each of these records.")
    rows: int = Field(description="Number of records; of persons, where the dataset has a person column.")
    refined: int = Field(0, exclude_if=lambda refined: not refined)
    """Number of second draws of each of these; absent where there is none."""


class Accounting(Reply):
    """Privacy loss of a study so far, by two methods. Depends only on the history of requests."""

    delta: float = Field(description="Failure probability delta of tight_epsilon.")
    rows: list[RowsLoss]
    """Loss by number of answers; records that were never queried have only the release's, but for those of groups,
    which may move to another group."""
    study: Loss = Field(description="Loss of the release and all answers, as if all were about one person.")
    sentence: str = Field(description="The same in words.")


# --- accounts of datasets -----------------------------------------------------------------------------


class DatasetCaps(Request):
    """Caps on what all uses of a dataset's file may cost one record, or one person where there is a person column.

    Both caps are sent each time. A cap can be lowered to what is spent. A higher one, or null where there was one, is
    refused unless ``raise_caps`` says so.
    """

    epsilon: BudgetEpsilon | None = Field(description="Cap on epsilon; null: no cap.")
    delta: float | None = Field(ge=0, le=0.5, description="Cap on the sum of deltas (probabilities); null: no cap.")
    raise_caps: bool = False
    """Must be true to raise a cap: that is logged, listed in the account, and a notice."""
    reason: Name | None = None
    """Why a cap is raised, for everybody who can see the account. Needed with raise_caps."""

    @model_validator(mode="after")
    def _has_reason(self) -> Self:
        if self.raise_caps and self.reason is None:
            raise ValueError("raise_caps needs a reason")
        return self


class DeclaredPerson(Reply):
    """What a person with several records may have lost, where no column says which records are one person's."""

    rows: int = Field(ge=2, description="The most records of one person that a study of the file declares.")
    epsilon: str | None = Field(description="So many times what the record that used most has used; null: no bound.")
    delta: str | None
    """Sum over the releases of k e^((k - 1) epsilon) times their delta, rounded up; null as epsilon is."""


class DatasetOutlook(Reply):
    """What a dataset's account says with and without a study. Amounts are exact decimals; null: no finite bound."""

    studies: int = Field(ge=0, description="How many other studies of the file were charged.")
    tunings: int = Field(ge=0, description="How many tunings of the file were charged.")
    spent_epsilon: str | None = Field(description="Epsilon of the record that used most, without this study.")
    spent_delta: str = Field(description="Sum of the deltas, without this study.")
    with_epsilon: str | None = Field(description="Epsilon of the record that used most, with this study so far.")
    with_delta: str = Field(description="Sum of the deltas, with this study.")
    cap_epsilon: str | None = Field(description="Cap of the account on epsilon; null: none.")
    cap_delta: str | None = Field(description="Cap of the account on delta; null: none.")
    problem: str | None = Field(description="Why the account would refuse the release, in words; null if it would not.")
    person: DeclaredPerson | None = Field(description="With this study: as in the account. The caps are per record.")
    sentence: str = Field(description="The same in words, for the owner.")


class DatasetUse(Reply):
    """One use of a dataset's file, or a change of its account."""

    seq: int = Field(ge=1, description="Position in the account, from 1, in the order of time.")
    kind: Literal["study", "tuning", "bounds", "refused", "cap", "closed"]
    """study: a release with its answers; tuning, bounds: charged to every record; refused: a tuning or bounds that a
    cap refused; cap: a change of the caps; closed: a restore lost the lines after a backup."""
    study_id: str | None = Field(None, description="The study.")
    tuning_id: str | None = Field(None, description="The tuning; null if none was started.")
    bounds_id: str | None = Field(None, description="The private bounds.")
    name: str | None = Field(None, description="Name of the study.")
    epsilon: str | None
    """Epsilon that it cost the record that it cost most; of a refusal: that was requested. Null: no finite bound."""
    delta: str = Field(description="delta that it used; of a refusal: that was requested.")
    release_epsilon: str | None = None
    """Of a study: the epsilon of its release for every record; 0 if it reads that of release_of."""
    release_of: str | None = None
    """The study whose release it reads, which is counted there; null: it has one of its own."""
    answers_epsilon: str | None = None
    """Of a study: the largest sum of its answers about one record, beyond what is every record's."""
    guarantee_kind: GuaranteeKind | None = None
    """What it promises. worst_case counts in the account's epsilon, prior_average in on_average alone, and none is in
    unbounded. Null for a line that charges nothing."""
    unbounded: str | None = Field(None, description="Why no finite epsilon bounds this use; null if one does.")
    cap: str | None = Field(None, description="Of a refusal: the cap that refused, epsilon or delta.")
    act: CapAct | None = None
    """Of a change of the caps: what it does; continued: accounts have become one."""
    old_cap_epsilon: str | None = Field(None, description="Cap on epsilon before this line; null: none.")
    old_cap_delta: str | None = Field(None, description="Cap on delta before this line; null: none.")
    cap_epsilon: str | None = Field(None, description="Cap on epsilon after this line; null: none, or a study.")
    cap_delta: str | None = Field(None, description="Cap on delta after this line; null: none, or a study.")
    reason: str | None = Field(None, description="Of a raised cap: the owner's reason.")
    total_epsilon: str | None = None
    """Sum of epsilon of all tunings and bounds up to this line; null for a study."""
    total_delta: str | None = None
    """Sum of delta of all tunings and bounds up to this line; null for a study."""
    created_at: datetime = Field(description="When it was committed: before anything was drawn.")


class DatasetRegistration(Reply):
    """A registration of a file."""

    dataset_id: str = Field(description="ds_...")
    name: str | None = Field(None, description="The name that its owner gave it; null to auditors.")
    public: bool = Field(description="Whether its owner declared it public.")
    unit: Literal["record", "person"] = Field(description="What its studies protect and the account counts by.")
    created_at: datetime = Field(description="When it was registered.")


class LossShare(Reply):
    """Records, or persons, that have lost about equally much."""

    epsilon: str | None = Field(description="The largest epsilon that any of them has used; null: no finite bound.")
    units: int = Field(ge=1, description="How many.")


class AccountStatement(Reply):
    """What the account of a file states of the record or person that has used most. Sentences are printed from it."""

    unit: Literal["record", "person"] = Field(description="Of whom it holds: each record, or each person.")
    relation: str = Field(description="Which two files it compares, in words.")
    guarantee_kind: GuaranteeKind
    """worst_case: for any two such files; prior_average: on average over priors; none: for nothing."""
    epsilon: str | None = Field(description="Its epsilon; null: no finite bound.")
    delta: str | None = Field(description="Its delta; null as epsilon is.")
    uses: list[int] = Field(description="The uses in it, by seq.")
    not_counted: list[int] = Field(description="The uses that are not in it, by seq.")
    rests_on: list[str] = Field(description="What it rests on, in words: hidden changes, a scorer, other files.")


class OnAverage(Reply):
    """What tunings promise on average over their priors, and never in the worst case."""

    epsilon: str = Field(description="Sum of their epsilon.")
    delta: str = Field(description="Sum of their delta, each a probability over the draw of its prior.")
    tunings: int = Field(ge=1, description="How many.")


class DatasetAccount(Page):
    """The account of a dataset's file. Depends only on the history of requests. Amounts are exact decimals.

    It is of one file, or of several files whose owner continued the account of earlier ones.
    """

    account: str = Field(description="ds_...: the dataset that was registered first of all its files.")
    registrations: list[DatasetRegistration] = Field(description="Every registration of its files: one account.")
    unit: Literal["record", "person"] = Field(description="What the account counts by, in this registration.")
    epsilon: str | None
    """Epsilon of the record (or person) that has used most; null: no finite bound, see unbounded."""
    delta: str = Field(description="Sum of the deltas of releases, tunings and bounds.")
    on_average: OnAverage | None = None
    """A line of its own, not in epsilon and delta; null without such a tuning."""
    everyone_epsilon: str | None = Field(description="The part of epsilon that every record has used.")
    person: DeclaredPerson | None
    """Where a study declares several rows of one person: what such a person may have lost. All other amounts, and the
    caps, are per record. Null: none does."""
    worst_record: int | None
    """Number in the file, from 1, of a record that has used most; null to auditors, and where all have lost the
    same."""
    worst_file_row: int | None = None
    """The same as a spreadsheet numbers it; null also if the file's kind is not known."""
    losses: list[LossShare]
    """How many have used how much, largest first: 50 groups at most, each with its largest."""
    cap_epsilon: str | None = Field(description="Cap on epsilon; null: none.")
    cap_delta: str | None = Field(description="Cap on delta; null: none.")
    closed: bool = Field(description="Whether a restore has closed it: nothing more is released, tuned or charged.")
    studies: int = Field(description="How many studies were charged.")
    tunings: int = Field(description="How many tunings were charged.")
    unbounded: list[DatasetUse] = Field(description="Uses without a finite bound.")
    uses: list[DatasetUse] = Field(description="Every use, in the order of time.")
    statements: list[AccountStatement] = []
    """What it states: first all that can be added, then what holds on average alone."""
    sentence: str = Field(description="The account in words.")
