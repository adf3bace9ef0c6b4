"""What a vendor sends the owner of a study: recommendations, and requests for more budget; and the owner's part of it.

Nothing that the vendor reads here depends on a record but by the owner's own words.
"""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from blindopt.wire.base import Name, Page, Reply, Request
from blindopt.wire.inbox import Shown, Text
from blindopt.wire.studies import Budget

Candidate = Annotated[int, Field(ge=0, lt=10**9, description="Number of a candidate: its row of Z, from 0.")]
MeanInterval = Annotated[list[float], Field(min_length=2, max_length=2)]
Salt = Annotated[
    str,
    Field(
        pattern="^[0-9a-f]{0,64}$",
        description="Random digits of the sender, so that its digest in the logs reveals nothing about the text.",
    ),
]
Decision = Literal["accepted", "rejected", "measured", "approved", "declined"]


class RecommendationMessage(Request):
    """A vendor recommends a candidate."""

    kind: Literal["recommendation"] = Field("recommendation", description="recommendation.")
    row: Candidate
    mean: float | None = Field(None, description="Posterior mean there, in units of y; null: not said.")
    interval: MeanInterval | None = Field(None, description="95 % interval of that mean; null: not said.")
    note: Text | None = Field(None, description="Note for the owner.")
    salt: Salt = ""


class BudgetMessage(Request):
    """A vendor requests more budget."""

    kind: Literal["budget"] = Field("budget", description="budget.")
    more: Budget = Field(description="What is to be added to each cap; null: nothing.")
    note: Text | None = Field(None, description="Why, for the owner.")
    salt: Salt = ""

    @model_validator(mode="after")
    def _wants_more(self) -> Self:
        if self.more == Budget():
            raise ValueError("say how much more")
        return self


MessageCreate = Annotated[RecommendationMessage | BudgetMessage, Field(discriminator="kind")]


class MessageView(Reply):
    """A message of a vendor, with what the owner decided."""

    id: str = Field(pattern=r"^msg_[0-9a-f]{16}$", description="msg_...")
    study_id: str = Field(description="std_...")
    grant_id: str = Field(description="grt_...: whose message it is.")
    name: str = Field(description="Name of the grant.")
    message: MessageCreate = Field(description="What was sent.")
    state: Literal["open"] | Decision = Field(
        description="open, or the word that the owner chose: the last one. It says nothing else of the record."
    )
    word: Text | None = Field(description="What the owner wrote to the vendor with it.")
    salt: str = Field("", description="Random, so that the digests in the logs reveal nothing about the texts.")
    created_at: datetime = Field(description="When it was received.")
    decided_at: datetime | None = Field(description="When the owner decided last; null: not yet.")


class MessagePage(Page):
    """A page of messages."""

    messages: list[MessageView] = Field(description="Messages, in the order of arrival.")


class MessageDecision(Request):
    """The owner's decision. The vendor reads it."""

    decision: Decision = Field(
        description=(
            "Of a recommendation: accepted, rejected or measured; it may be decided again. Of a request for budget: "
            "approved or declined, once."
        )
    )
    word: Text | None = Field(None, description="What the vendor reads with it.")
    budget: Budget | None = Field(
        None,
        description="With approved: the caps from now on, up to what was requested. Left out: as requested.",
    )


class BudgetRaise(Request):
    """Higher caps of a released study."""

    budget: Budget = Field(description="All caps from now on: none lower than now, one higher or null (no cap).")
    reason: Name = Field(description="Why, for the vendors, the auditors and the log.")


class RecordChoice(Request):
    """A candidate whose record the owner wants to see."""

    row: Candidate


class RecordView(Reply):
    """The record behind a candidate: for the owner alone."""

    study_id: str = Field(description="std_...")
    row: int = Field(description="Number of the candidate: its row of Z, from 0.")
    record: int = Field(description="Number of the record in its file, from 1.")
    columns: list[Shown] = Field(description="Every stored column, in the units of the file.")
    plays: int = Field(description="How often the candidate was measured for vendors.")


class RecommendationWish(Request):
    """A run's recommendation is to be handed over to the owner, as it is now."""

    kind: Literal["recommendation"] = Field(description="recommendation.")
    over: Literal["asked", "all"] = Field("asked", description="Of the queried candidates, or of all.")
    note: Text | None = Field(None, description="Note for the owner.")


RunMessageCreate = Annotated[RecommendationWish | BudgetMessage, Field(discriminator="kind")]


class RunMessage(Reply):
    """A message of a run to the owner of its study."""

    run_id: str = Field(description="run_...")
    number: int = Field(ge=1, description="Number of the message in its run, from 1.")
    message: MessageCreate = Field(description="What is sent.")
    state: Literal["unsent", "open"] | Decision = Field(
        description="unsent: the curator has not confirmed it; open: the owner has not decided; else the owner's word."
    )
    word: str | None = Field(description="What the owner wrote with the decision.")
    problem: str | None = Field(description="Why it could not be sent, or the decision not be read, at the last try.")
    created_at: datetime = Field(description="When it was written.")
    decided_at: datetime | None = Field(description="When the owner decided last.")


class RunMessagePage(Page):
    """A page of a run's messages."""

    messages: list[RunMessage] = Field(description="Messages, in the order of their writing.")
