"""Measurements by people: the inbox, answers, declines, corrections."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from blindopt.wire.base import PLAYS_MAX, ROWS_MAX, Page, Reply, Request

MEASUREMENTS_MAX = 10_000
"""Most measurements in one request."""
IMPORT_QUERIES_MAX = 500
"""Most queries in one file: they are told in one transaction."""

MeasurementId = Annotated[str, Field(pattern=r"^msr_[0-9a-f]{16}$", description="msr_...")]
DeclineReason = Literal["unavailable", "impossible", "consent", "record", "other"]
"""unavailable: the person or thing cannot be reached; impossible: it cannot be measured; consent: the person does not
agree; record: the record is wrong."""
Text = Annotated[str, Field(max_length=2_000, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]*$")]


class Shown(Reply):
    """One value of a record, for whoever measures."""

    column: str = Field(description="Name of the column.")
    value: float = Field(description="In raw units.")


Asking = Literal["waiting", "expected", "given_up"]
"""waiting: the owner's system is asked at ``next_at``; expected: it said that it tells later; given_up: people can."""


class SystemAsked(Reply):
    """How the owner's system stands to an open measurement of a study that it measures."""

    state: Asking = Field(
        description="waiting: it is asked at next_at; expected: it said that it tells later; given_up: people can."
    )
    attempts: int = Field(ge=0, description="How often it was asked, since somebody last had it tried again.")
    next_at: datetime | None = Field(description="When it is asked next, or soon after; null: it is not.")
    problem: str | None = Field(description="What was wrong at the last attempt: never its own words, never a value.")


class InboxItem(Reply):
    """One measurement that was asked for: for the owner's people, never for a modeler."""

    seq: int = Field(description="Place in the inbox: oldest first.")
    id: str = Field(description="msr_...")
    query_id: str = Field(description="qry_...: what is asked together is told together.")
    study_id: str = Field(description="std_...")
    study: str = Field(description="Name of the study.")
    question: str | None = Field(description="What is to be measured; null where a system measures.")
    unit: str | None = Field(description="Unit of y.")
    lower: float | None = Field(description="Smaller values are refused as mistakes.")
    upper: float | None = Field(description="Larger values are refused as mistakes.")
    record: int = Field(ge=1, description="Which record of the dataset's file, from 1.")
    shown: list[Shown] = Field(description="What the study shows of the record.")
    play: int = Field(ge=1, le=PLAYS_MAX, description="1 for the first measurement of the record in its query.")
    plays: int = Field(ge=1, le=PLAYS_MAX, description="How many of them there are.")
    asked_at: datetime = Field(description="When it was asked.")
    due_at: datetime | None = Field(description="When it counts as declined; null: it is waited for.")
    state: Literal["open", "answered", "declined", "overdue"] = Field(
        description=(
            "open and overdue ones can be answered, declined ones too; an answered one can be corrected, or taken back."
        )
    )
    value: float | None = Field(description="The latest answer, as it was measured; null where there is none.")
    version: int = Field(ge=0, description="How many answers it has had.")
    reason: DeclineReason | None = Field(description="Why it was declined.")
    note: str | None = Field(description="What was noted with the last answer or decline.")
    changed_at: datetime | None = Field(description="When it was last answered or declined.")
    changed_by: str | None = Field(description="By whom: a name.")
    problem: str | None = Field(
        None, description="Why the owner's system did not measure it, where it was given up and is open: people can."
    )
    system: SystemAsked | None = Field(
        None, description="How the owner's system stands to it; null where people measure, or it is not open."
    )


class InboxPage(Page):
    """A page of the inbox."""

    items: list[InboxItem] = Field(description="Oldest first.")
    open: int = Field(ge=0, description="How many wait, in all studies.")


class InboxNews(Reply):
    """That something was asked or told: look again."""

    open: int = Field(ge=0, description="How many wait, in all studies.")
    seq: int = Field(ge=0, description="Grows with each measurement that is asked for, answered or declined.")


class MeasuringSystem(Reply):
    """The owner's own system that measures, as the curator sees it."""

    state: Literal["none", "asked", "held"] = Field(
        description="none: no system is set (MEASURER_URL); asked: it is asked whenever something is due; held: it "
        "failed several times in a row, and one call at a time, from next_at on, asks whether it is back."
    )
    failures: int = Field(ge=0, description="Calls that failed in a row until now, since the curator's start.")
    problem: str | None = Field(description="What was wrong at the last of them: never its own words.")
    next_at: datetime | None = Field(description="When it is called next at the earliest; null: as soon as it is due.")
    waiting: int = Field(ge=0, description="Open measurements that it is to be asked for.")
    expected: int = Field(ge=0, description="Open ones of which it said that it tells later.")
    given_up: int = Field(ge=0, description="Open ones that it is asked for no more: they wait for people.")


class TriedAgain(Reply):
    """What the owner's system is asked for now."""

    measurements: int = Field(ge=0, description="How many; each under the key that it always had.")


class Measured(Request):
    """A value that was measured."""

    measurement_id: MeasurementId
    value: float = Field(ge=-1e50, le=1e50, description="y, in units of the measurement.")
    expected_version: int | None = Field(
        None, ge=0, description="Its version when the value was decided on; 409 where another has told it anew since."
    )


class AnswerCreate(Request):
    """Some or all of the measurements of a query."""

    values: list[Measured] = Field(min_length=1, max_length=MEASUREMENTS_MAX, description="Each measurement once.")
    note: Text | None = Field(None, description="For the owner alone.")


class CorrectCreate(Request):
    """What is right in the place of what was told: another value, or that there is none."""

    values: list[Measured] = Field([], max_length=MEASUREMENTS_MAX, description="Each measurement once.")
    void: list[MeasurementId] = Field(
        [],
        max_length=MEASUREMENTS_MAX,
        description="Answers that are none, such as of a wrong sample: from now on these are declined.",
    )
    reason: DeclineReason | None = Field(
        None, description="Why, with void: for the owner alone. A modeler is told that the row has no answer."
    )
    note: Text | None = Field(None, description="For the owner alone.")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.values and not self.void:
            raise ValueError("give values, or void, or both")
        if (self.reason is None) != (not self.void):
            raise ValueError("a reason belongs to void, and void needs one")
        return self


class DeclineCreate(Request):
    """Measurements of a query that will not be made."""

    measurement_ids: list[MeasurementId] = Field(
        [], max_length=MEASUREMENTS_MAX, description="Empty: all that are still open."
    )
    reason: DeclineReason = Field(description="For the owner alone: a modeler is told that the row has no answer.")
    note: Text | None = Field(None, description="For the owner alone.")


class QueryMeasurements(Reply):
    """Where a query stands, for the owner's people."""

    query_id: str = Field(description="qry_...")
    state: Literal["pending", "answered"] = Field(description="answered: the modeler has been told.")
    version: int = Field(ge=0, description="Of what the modeler is told; 0 while it is pending.")
    open: int = Field(ge=0, description="How many measurements wait.")
    charged: str | None = Field(
        description="Epsilon that releasing answers again cost, where they are private; null where nothing was charged."
    )


class InboxImport(Reply):
    """What a file of measurements says, or did."""

    dry_run: bool = Field(description="Whether nothing was stored.")
    answered: int = Field(ge=0, description="Values taken.")
    declined: int = Field(ge=0, description="Declines taken.")
    blank: int = Field(ge=0, description="Lines without a value or a reason: left open.")
    queries: int = Field(ge=0, le=ROWS_MAX * MEASUREMENTS_MAX, description="Queries that are now answered.")
