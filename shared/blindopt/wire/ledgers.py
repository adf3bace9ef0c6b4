"""What a study has spent, and on whom."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from blindopt.wire.base import Page, Reply


class LedgerEntry(Reply):
    """One line of the ledger: a charge, or a refusal, which costs nothing.

    Amounts are exact decimals; null where there is no finite one: y without noise, or a release that is refuted or
    withdrawn. A release of public records costs 0.
    """

    seq: int = Field(description="Place in the ledger of all studies; lines of other studies lie between.")
    kind: Literal["release", "answers", "correction", "refused"] = Field(
        description=(
            "release: every row is charged; answers: one row; correction: one row, whose answers of a query are "
            "released anew; refused: a cap was in the way."
        )
    )
    query_id: str | None = Field(description="The query; null for a release and a refusal.")
    row: int | None = Field(description="Row of Z; null: every row, or the cap is not one of a row.")
    plays: int = Field(description="Measurements; none of a correction.")
    epsilon: str | None = Field(description="What was charged, or asked where it was refused.")
    row_epsilon: str | None = Field(description="The answers about this row, with this line; of the release without.")
    total_epsilon: str | None = Field(description="Release and all answers of the study, with this line.")
    total_plays: int = Field(description="Measurements of the study, with this line.")
    cap: str | None = Field(description="The cap that refused.")
    created_at: datetime = Field(description="When it was committed: before anything was drawn.")


class LedgerPage(Page):
    """A page of a study's ledger."""

    entries: list[LedgerEntry] = Field(description="In the order of commits.")
    release_epsilon: str | None = Field(
        description="What the release charged every row; null: no bound; 0: of public records."
    )
    total_epsilon: str | None = Field(description="Release and all answers so far.")
    total_plays: int = Field(description="Measurements so far.")


class RowExposure(Reply):
    """How much of one row has left the house."""

    row: int = Field(description="Row of Z.")
    record: int | None = Field(description="Data row of the file, from 1; for the owner alone, else null.")
    queries: int = Field(description="How often it was asked.")
    plays: int = Field(description="Measurements that were released.")
    epsilon: str | None = Field(description="What the answers cost, without the release; null: no noise, no bound.")
    spent: str | None = Field(description="What counts against the cap of each row, the release included.")


class ExposurePage(Page):
    """A page of rows that were asked; all others have only the release's charge."""

    rows: list[RowExposure] = Field(description="By row of Z.")
    release_epsilon: str | None = Field(description="What the release charged every row.")


class Loss(Reply):
    """Two bounds on the privacy loss of what was released so far."""

    epsilon: str | None = Field(description="Pure composition: the sum, as the ledger enforces it; null: no bound.")
    tight_epsilon: float | None = Field(
        description=(
            "By the privacy loss distribution, or Renyi divergences where that is not precise enough, at the report's "
            "delta: never more than the sum, unless that delta is smaller than the release's own, at which the sum "
            "holds. It takes the number of answers as if it had been fixed before the first. Null: no bound."
        )
    )


class RowsLoss(Loss):
    """The loss of every row with the same number of released answers."""

    answers: int = Field(description="Released answers about each of these rows.")
    rows: int = Field(description="How many rows.")


class Accounting(Reply):
    """What a study has cost so far, counted twice. Depends on the history of requests alone."""

    delta: float = Field(description="The failure probability that tight_epsilon holds at.")
    rows: list[RowsLoss] = Field(description="By answers; rows that were never asked have the release alone.")
    study: Loss = Field(description="The release and all answers, as if all were about one person.")
    sentence: str = Field(description="The same in words.")
