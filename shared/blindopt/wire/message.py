"""Messages between a vendor and an owner, and notices to operators.

Nothing that the vendor reads here depends on a record but by the owner's own words.
"""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from blindopt.wire.base import Name, Page, Reply, Request
from blindopt.wire.dataset import RecordText
from blindopt.wire.goal import GOOD_MAX, PREDICTED_MAX
from blindopt.wire.inbox import EarlierMeasurement, Shown, Text
from blindopt.wire.study import Budget

Candidate = Annotated[int, Field(ge=0, lt=10**9, description="Number of a candidate, from 0.")]
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
    mean: float | None = Field(None, description="Posterior mean there, in units of the outcome; null: not said.")
    interval: MeanInterval | None = None
    """Interval of the mean outcome there, by the vendor's model; null: not said."""
    note: Text | None = Field(None, description="Note for the owner.")
    salt: Salt = ""


class GoodRow(Request):
    """A candidate that a vendor holds to be good."""

    row: Candidate
    mean: float | None = Field(None, description="Posterior mean there, in units of the outcome; null: not said.")
    probability: float | None = Field(None, ge=0, le=1, description="Probability that it is good; null: not said.")
    queried: bool = Field(True, description="Whether it was measured for this vendor; false: a prediction.")


class RecommendationsMessage(Request):
    """A vendor recommends all candidates that it holds to be good."""

    kind: Literal["recommendations"] = Field("recommendations", description="recommendations.")
    rows: list[GoodRow] = Field(min_length=1, max_length=GOOD_MAX + PREDICTED_MAX, description="The best first.")
    found: float | None = Field(None, ge=0, description="Good ones among the queried: their number, or as expected.")
    queries: int | None = Field(None, ge=0, description="Number of queried candidates.")
    by_chance: float | None = Field(None, ge=0, description="Good ones expected among as many random candidates.")
    threshold: float | None = Field(None, description="What counts as good, in units of the outcome.")
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


MessageCreate = Annotated[RecommendationMessage | RecommendationsMessage | BudgetMessage, Field(discriminator="kind")]


class MessageView(Reply):
    """A message of a vendor, with what the owner decided."""

    id: str = Field(pattern=r"^msg_[0-9a-f]{16}$", description="msg_...")
    study_id: str = Field(description="std_...")
    grant_id: str = Field(description="grt_...: whose message it is.")
    name: str = Field(description="Name of the grant.")
    message: MessageCreate = Field(description="What was sent.")
    state: Literal["open"] | Decision
    """open, or the word that the owner chose: the last one. It says nothing else of the record."""
    word: Text | None = Field(description="What the owner wrote to the vendor with it.")
    salt: str = Field("", description="Random, so that the digests in the logs reveal nothing about the texts.")
    created_at: datetime = Field(description="When it was received.")
    decided_at: datetime | None = Field(description="When the owner decided last; null: not yet.")


class MessagePage(Page):
    """A page of messages."""

    messages: list[MessageView] = Field(description="Messages, in the order of arrival.")


class MessageDecision(Request):
    """The owner's decision. The vendor reads it."""

    decision: Decision
    """Of a recommendation: accepted, rejected or measured; it may be decided again. Of a request for budget: approved
    or declined, once."""
    word: Text | None = Field(None, description="What the vendor reads with it.")
    budget: Budget | None = None
    """With approved: the caps from now on, up to what was requested. Left out: as requested."""


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
    row: int = Field(description="Number of the candidate, from 0.")
    record: int = Field(description="Number of the record in its file, from 1.")
    file_row: int | None = Field(None, description="Its number as a spreadsheet shows it; null: not known.")
    labels: list[RecordText] = Field([], description="Its labels.")
    in_words: list[RecordText] = Field([], description="Its columns in the words of the file.")
    columns: list[Shown] = Field(description="Every stored column, in the units of the file.")
    plays: int = Field(description="How often the candidate was measured for vendors.")
    measured: list[EarlierMeasurement] = []
    """The outcomes that people or a system measured, newest first; of a single record alone."""
    withheld: bool = Field(False, description="Whether the owner withheld it: measured and released no more.")


class RecordTable(Reply):
    """The records behind the candidates of a message: for the owner alone."""

    study_id: str = Field(description="std_...")
    records: list[RecordView] = Field(description="In the order of the message.")


class RecommendationWish(Request):
    """A run's recommendation is to be handed over to the owner, as it is now; the list, where the goal is many."""

    kind: Literal["recommendation"] = Field(description="recommendation.")
    over: Literal["asked", "all"] = Field("asked", description="Of the queried candidates, or of all.")
    note: Text | None = Field(None, description="Note for the owner.")


RunMessageCreate = Annotated[RecommendationWish | BudgetMessage, Field(discriminator="kind")]


class RunMessage(Reply):
    """A message of a run to the owner of its study."""

    run_id: str = Field(description="run_...")
    number: int = Field(ge=1, description="Number of the message in its run, from 1.")
    message: MessageCreate = Field(description="What is sent.")
    state: Literal["unsent", "open"] | Decision
    """unsent: the curator has not confirmed it; open: the owner has not decided; else the owner's word."""
    word: str | None = Field(description="What the owner wrote with the decision.")
    problem: str | None = Field(description="Why it could not be sent, or the decision not be read, at the last try.")
    created_at: datetime = Field(description="When it was written.")
    decided_at: datetime | None = Field(description="When the owner decided last.")


class RunMessagePage(Page):
    """A page of a run's messages."""

    messages: list[RunMessage] = Field(description="Messages, in the order of their writing.")


NoticeEvent = Literal[
    "query_pending",
    "budget_80",
    "release_ended",
    "forecast_ended",
    "tuning_ended",
    "cap_raised",
    "recommendation_received",
    "budget_requested",
    "run_ended",
    "run_failed",
    "run_waiting",
    "run_warned",
    "log_disputed",
    "log_failed",
    "test",
]
NoticeState = Literal["pending", "delivered", "failed"]
Cap = Literal["epsilon_per_row", "epsilon_total", "queries", "refine.persons", "epsilon", "delta"]
NoticeId = Annotated[str, Field(pattern=r"^ntc_[0-9a-f]{16}$")]


class NoticeSubject(Reply):
    """The subject of a notice, in ids and fixed words; a field that does not apply is left out.

    The patterns allow only ids, so that no name, token or value can get in by mistake.
    """

    study_id: Annotated[str, Field(pattern=r"^std_[0-9a-f]{16}$")] | None = Field(None, description="std_...")
    query_id: Annotated[str, Field(pattern=r"^qry_[0-9a-f]{16}$")] | None = Field(None, description="qry_...")
    dataset_id: Annotated[str, Field(pattern=r"^ds_[0-9a-f]{16}$")] | None = None
    """ds_...: the first registration of a file, which names its account."""
    forecast_id: Annotated[str, Field(pattern=r"^fct_[0-9a-f]{16}$")] | None = Field(None, description="fct_...")
    tuning_id: Annotated[str, Field(pattern=r"^tun_[0-9a-f]{16}$")] | None = Field(None, description="tun_...")
    run_id: Annotated[str, Field(pattern=r"^run_[0-9a-f]{16}$")] | None = Field(None, description="run_...")
    message_id: Annotated[str, Field(pattern=r"^msg_[0-9a-f]{16}$")] | None = Field(None, description="msg_...")
    cap: Cap | None = Field(None, description="A cap of a study; epsilon and delta: caps of a dataset's account.")
    state: Literal["open", "draft"] | None = None
    """State of the study after a release that succeeded (open) or failed (draft)."""
    problem: Annotated[str, Field(pattern=r"^[a-z_]{1,60}$")] | None = None
    """Code of the error that ended a run or keeps it waiting, or of a warning."""


class NoticeCounts(Reply):
    """Counts of a notice; a field that does not apply is left out."""

    measurements: int | None = Field(None, ge=1, description="Number of measurements that a query requests.")
    percent: int | None = Field(None, ge=0, description="Percentage of the cap that is used, rounded down.")
    answers: int | None = Field(None, ge=0, description="Number of answers of a run.")
    minutes: int | None = Field(None, ge=0, description="Minutes that a run has waited for its curator.")


class Notice(Reply):
    """The body of a webhook: what happened, to what, and when. It can be shown in a chat."""

    id: NoticeId = Field(description="ntc_...; the same in every attempt, and in the Idempotency-Key.")
    event: NoticeEvent = Field(description="What happened.")
    at: datetime = Field(description="When it happened.")
    service: Literal["blindopt-curator", "blindopt-modeler"] = Field(description="The service that sends it.")
    subject: NoticeSubject = Field(description="Subject of the event.")
    counts: NoticeCounts = Field(description="Counts.")
    sentence: str = Field(description="The event in words.")


class NoticeView(Reply):
    """A notice and the state of its delivery."""

    notice: Notice = Field(description="The body of the webhook.")
    state: NoticeState
    """pending: not delivered yet, or to be retried; failed: given up after three days of attempts."""
    attempts: int = Field(ge=0, description="Number of attempts.")
    next_at: datetime | None
    """Earliest time of the next attempt of a pending notice; null if it was not attempted yet, or has ended."""
    ended_at: datetime | None = Field(description="When it was delivered or given up.")
    problem: str | None = Field(description="Why the last attempt failed, in words.")


class NoticePage(Page):
    """A page of notices."""

    notices: list[NoticeView] = Field(description="Notices, in the order of their events.")


class NoticeTest(Reply):
    """Result of a test notice."""

    id: NoticeId = Field(description="Id of the notice; it is sent once and not stored.")
    delivered: bool = Field(description="Whether the receiver accepted it.")
    problem: str | None = Field(description="What is wrong and what to do, in words; null if it was delivered.")
