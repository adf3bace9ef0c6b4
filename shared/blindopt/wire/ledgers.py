"""What a study has spent of its privacy budget, in total and by record."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from blindopt.wire.base import Page, Reply


class LedgerEntry(Reply):
    """A line of the ledger: a charge, or a refusal, which costs nothing.

    Amounts are exact decimals; null if there is no finite bound: y without noise, or a release that is refuted or
    withdrawn. A release of public records costs 0.
    """

    seq: int = Field(description="Position in the ledger of all studies; lines of other studies lie between.")
    kind: Literal["release", "answers", "correction", "refused"] = Field(
        description=(
            "release: a charge to every record; answers: a charge to one record; correction: a charge to one record, "
            "whose answers of a query are released again; refused: a cap would have been exceeded."
        )
    )
    query_id: str | None = Field(description="The query; null for a release and a refusal.")
    row: int | None = Field(
        description="Candidate (row of Z); null: all of them, or the cap is not one for each record."
    )
    plays: int = Field(description="Number of measurements; 0 for a correction.")
    epsilon: str | None = Field(description="Amount charged, or requested if refused.")
    row_epsilon: str | None = Field(
        description="Sum of the answers about this record, including this line, without the release."
    )
    total_epsilon: str | None = Field(
        description="Sum of the release and all answers of the study, including this line."
    )
    total_plays: int = Field(description="Number of measurements of the study, including this line.")
    cap: str | None = Field(description="The cap that refused.")
    created_at: datetime = Field(description="When it was committed: before anything was drawn.")


class LedgerPage(Page):
    """A page of a study's ledger."""

    entries: list[LedgerEntry] = Field(description="Lines, in the order of commits.")
    release_epsilon: str | None = Field(
        description="Epsilon that the release charged every record; null: no bound; 0: public records."
    )
    total_epsilon: str | None = Field(description="Sum of the release and all answers so far.")
    total_plays: int = Field(description="Number of measurements so far.")


class RowExposure(Reply):
    """What was released about one record."""

    row: int = Field(description="Candidate (row of Z).")
    record: int | None = Field(
        description="Number of the record in the file, from 1: for the owner only, otherwise null."
    )
    queries: int = Field(description="Number of queries that asked for it.")
    plays: int = Field(description="Number of released measurements.")
    epsilon: str | None = Field(
        description="Sum of the answers, without the release; null: answers without noise have no bound."
    )
    spent: str | None = Field(description="Amount that counts against the cap per record, including the release.")


class ExposurePage(Page):
    """A page of queried records; all others have only the release's charge."""

    rows: list[RowExposure] = Field(description="Records, by row of Z.")
    release_epsilon: str | None = Field(description="Epsilon that the release charged every record.")


class Loss(Reply):
    """Two bounds on the privacy loss of everything released so far."""

    epsilon: str | None = Field(description="Pure composition: the sum, as the ledger enforces it; null: no bound.")
    tight_epsilon: float | None = Field(
        description=(
            "By the privacy loss distribution, or Renyi divergences if that is not precise enough, at the report's "
            "delta: never more than the sum, unless that delta is smaller than the release's own, at which the sum "
            "holds. Treats the number of answers as fixed before the first one. Null: no bound."
        )
    )


class RowsLoss(Loss):
    """Privacy loss of the records with the same number of released answers."""

    answers: int = Field(description="Number of released answers about each of these records.")
    rows: int = Field(description="Number of records.")


class Accounting(Reply):
    """Privacy loss of a study so far, by two methods. Depends only on the history of requests."""

    delta: float = Field(description="Failure probability delta of tight_epsilon.")
    rows: list[RowsLoss] = Field(
        description="Loss by number of answers; records that were never queried have only the release's."
    )
    study: Loss = Field(description="Loss of the release and all answers, as if all were about one person.")
    sentence: str = Field(description="The same in words.")
