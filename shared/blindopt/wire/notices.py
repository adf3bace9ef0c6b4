"""Notices that a service sends its own people by webhook: ids, counts and a sentence, never a value or a name."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from blindopt.wire.base import Page, Reply

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
Cap = Literal["epsilon_per_row", "epsilon_total", "queries", "epsilon", "delta"]
NoticeId = Annotated[str, Field(pattern=r"^ntc_[0-9a-f]{16}$")]


class NoticeSubject(Reply):
    """The subject of a notice, in ids and fixed words; a field that does not apply is left out.

    The patterns allow only ids, so that no name, token or value can get in by mistake.
    """

    study_id: Annotated[str, Field(pattern=r"^std_[0-9a-f]{16}$")] | None = Field(None, description="std_...")
    query_id: Annotated[str, Field(pattern=r"^qry_[0-9a-f]{16}$")] | None = Field(None, description="qry_...")
    dataset_id: Annotated[str, Field(pattern=r"^ds_[0-9a-f]{16}$")] | None = Field(
        None, description="ds_...: the first registration of a file, which names its account."
    )
    forecast_id: Annotated[str, Field(pattern=r"^fct_[0-9a-f]{16}$")] | None = Field(None, description="fct_...")
    tuning_id: Annotated[str, Field(pattern=r"^tun_[0-9a-f]{16}$")] | None = Field(None, description="tun_...")
    run_id: Annotated[str, Field(pattern=r"^run_[0-9a-f]{16}$")] | None = Field(None, description="run_...")
    message_id: Annotated[str, Field(pattern=r"^msg_[0-9a-f]{16}$")] | None = Field(None, description="msg_...")
    cap: Cap | None = Field(None, description="A cap of a study; epsilon and delta: caps of a dataset's account.")
    state: Literal["open", "draft"] | None = Field(
        None, description="State of the study after a release that succeeded (open) or failed (draft)."
    )
    problem: Annotated[str, Field(pattern=r"^[a-z_]{1,60}$")] | None = Field(
        None, description="Code of the error that ended a run or keeps it waiting, or of a warning."
    )


class NoticeCounts(Reply):
    """Counts of a notice; a field that does not apply is left out."""

    measurements: int | None = Field(None, ge=1, description="Number of measurements that a query asks for.")
    percent: int | None = Field(None, ge=0, description="Percentage of the cap that is spent, rounded down.")
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
    state: NoticeState = Field(
        description="pending: not delivered yet, or to be retried; failed: given up after three days of attempts."
    )
    attempts: int = Field(ge=0, description="Number of attempts.")
    next_at: datetime | None = Field(
        description=(
            "Earliest time of the next attempt of a pending notice; null if it was not attempted yet, or has ended."
        )
    )
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
