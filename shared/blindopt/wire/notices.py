"""What a service tells its own people by webhook: ids, counts and a sentence, never a value or a name of theirs."""

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
    "run_ended",
    "run_failed",
    "run_waiting",
    "log_disputed",
    "log_failed",
    "test",
]
NoticeState = Literal["pending", "delivered", "failed"]
Cap = Literal["epsilon_per_row", "epsilon_total", "queries", "epsilon", "delta"]
NoticeId = Annotated[str, Field(pattern=r"^ntc_[0-9a-f]{16}$")]


class NoticeSubject(Reply):
    """What a notice is about, in ids and words of this program: each is left out where it does not apply.

    The patterns hold off whatever is no id: a name, a token, a value cannot come here by mistake.
    """

    study_id: Annotated[str, Field(pattern=r"^std_[0-9a-f]{16}$")] | None = Field(None, description="std_...")
    query_id: Annotated[str, Field(pattern=r"^qry_[0-9a-f]{16}$")] | None = Field(None, description="qry_...")
    dataset_id: Annotated[str, Field(pattern=r"^ds_[0-9a-f]{16}$")] | None = Field(
        None, description="ds_...: under which a file was registered first; what tunings spend is counted there."
    )
    forecast_id: Annotated[str, Field(pattern=r"^fct_[0-9a-f]{16}$")] | None = Field(None, description="fct_...")
    tuning_id: Annotated[str, Field(pattern=r"^tun_[0-9a-f]{16}$")] | None = Field(None, description="tun_...")
    run_id: Annotated[str, Field(pattern=r"^run_[0-9a-f]{16}$")] | None = Field(None, description="run_...")
    cap: Cap | None = Field(None, description="Which cap of a study; epsilon and delta: of a file's tunings.")
    state: Literal["open", "draft"] | None = Field(
        None, description="Of the study, after a release that was made (open) or not (draft)."
    )
    problem: Annotated[str, Field(pattern=r"^[a-z_]{1,60}$")] | None = Field(
        None, description="Code of the error that ended a run or keeps it waiting."
    )


class NoticeCounts(Reply):
    """Counts of a notice; each is left out where it does not apply."""

    measurements: int | None = Field(None, ge=1, description="How many a query asks for.")
    percent: int | None = Field(None, ge=0, description="How much of the cap is spent; rounded down.")
    answers: int | None = Field(None, ge=0, description="How many a run has had.")
    minutes: int | None = Field(None, ge=0, description="How long a run has waited for its curator.")


class Notice(Reply):
    """The body of a webhook: what happened, to what, when. Fit to be shown in a chat."""

    id: NoticeId = Field(description="ntc_...; the same in every attempt, and in the Idempotency-Key.")
    event: NoticeEvent = Field(description="What happened.")
    at: datetime = Field(description="When it happened.")
    service: Literal["blindopt-curator", "blindopt-modeler"] = Field(description="Who tells it.")
    subject: NoticeSubject = Field(description="What it is about.")
    counts: NoticeCounts = Field(description="How many.")
    sentence: str = Field(description="The same in plain words.")


class NoticeView(Reply):
    """A notice, and how its delivery stands."""

    notice: Notice = Field(description="The body, as it is sent.")
    state: NoticeState = Field(
        description="pending: not yet, or to be tried again; failed: given up after three days of trying."
    )
    attempts: int = Field(ge=0, description="How often it was sent.")
    next_at: datetime | None = Field(
        description="When a pending one may be tried again; null where it was not tried, or has ended."
    )
    ended_at: datetime | None = Field(description="When it arrived, or was given up.")
    problem: str | None = Field(description="Why the last attempt failed, in plain words.")


class NoticePage(Page):
    """A page of notices."""

    notices: list[NoticeView] = Field(description="In the order in which they happened.")


class NoticeTest(Reply):
    """Whether a test notice arrived."""

    id: NoticeId = Field(description="Its id; it is sent once and not kept.")
    delivered: bool = Field(description="Whether the receiver took it.")
    problem: str | None = Field(description="What is wrong, and what to do, in plain words; null where it arrived.")
