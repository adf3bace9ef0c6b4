"""Measurements by people or the owner's system: the inbox, entered values, declines, corrections."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from blindopt.wire.base import PLAYS_MAX, ROWS_MAX, BoundedFloat, Page, Reply, Request
from blindopt.wire.dataset import DecimalSign, RecordText

MEASUREMENTS_MAX = 10_000
"""Most measurements in one request."""
IMPORT_QUERIES_MAX = 500
"""Most queries in one file: they are answered in one transaction."""

MeasurementId = Annotated[str, Field(pattern=r"^msr_[0-9a-f]{16}$", description="msr_...")]
DeclineReason = Literal["unavailable", "impossible", "consent", "record", "other"]
"""unavailable: the person or object cannot be reached; impossible: it cannot be measured; consent: the person does not
agree; record: the record is wrong."""
Text = Annotated[str, Field(max_length=2_000, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]*$")]


class Shown(Reply):
    """One value of a record, shown to the person who measures."""

    column: str = Field(description="Name of the column.")
    value: float = Field(description="Value, in raw units.")


class EarlierMeasurement(Reply):
    """An earlier value of the same record in the same study."""

    value: float = Field(description="The value as it was measured, in units of the measurement.")
    at: datetime = Field(description="When it was entered.")


MeasurerState = Literal["waiting", "expected", "given_up"]
"""waiting: sent to the owner's system at ``next_at``; expected: it will report later; given_up: people can measure."""


class SystemAsked(Reply):
    """State of an open measurement that the owner's system is to make."""

    state: MeasurerState
    """waiting: sent to the system at next_at; expected: the system said that it will report later; given_up: the
    curator no longer sends it, people can measure."""
    attempts: int = Field(ge=0, description="Number of attempts since the last manual retry.")
    next_at: datetime | None = Field(description="Earliest time of the next attempt; null: there is none.")
    problem: str | None = Field(description="Why the last attempt failed; never the system's own text, never a value.")


class InboxItem(Reply):
    """A requested measurement: for the owner's people, never for a modeler."""

    seq: int = Field(description="Position in the inbox, oldest first.")
    id: str = Field(description="msr_...")
    query_id: str = Field(description="qry_...: measurements of one query are answered together.")
    study_id: str = Field(description="std_...")
    study: str = Field(description="Name of the study.")
    question: str | None = Field(description="What to measure; null if a system measures.")
    unit: str | None = Field(description="Unit of the outcome.")
    lower: float | None = Field(description="Smallest plausible value, in its unit: smaller ones are refused.")
    upper: float | None = Field(description="Largest plausible value, in its unit: larger ones are refused.")
    record: int = Field(ge=1, description="Number of the record in the dataset's file, from 1.")
    file_row: int | None = None
    """Number of the record as a spreadsheet shows it: in CSV the header is 1, Parquet has no header. Null: the curator
    does not know the file's kind, because it was registered before version 0.3."""
    labels: list[RecordText] = Field([], description="Labels of the record that the study shows.")
    in_words: list[RecordText] = Field([], description="What shown has, in the words of the file.")
    shown: list[Shown] = Field(description="Values of the record that the study shows.")
    consent: str | None = Field(None, exclude_if=lambda consent: consent is None)
    """What to read to the person before measuring: an answer needs her consent. Absent: none is needed."""
    probability: float | None = None
    """Of an open measurement: probability that the outcome is good, as the vendor claims, where the study looks for
    many; null: not stated."""
    play: int = Field(ge=1, le=PLAYS_MAX, description="1 for the first measurement of the record in its query.")
    plays: int = Field(ge=1, le=PLAYS_MAX, description="Number of measurements of the record in its query.")
    asked_at: datetime = Field(description="When it was requested.")
    due_at: datetime | None = Field(description="When it will count as declined; null: never.")
    state: Literal["open", "answered", "declined", "overdue"]
    """Open, overdue and declined measurements can be answered; an answered one can be corrected or voided."""
    value: float | None = Field(description="The latest entered value, in its unit; null if there is none.")
    version: int = Field(ge=0, description="Number of values entered so far.")
    reason: DeclineReason | None = Field(description="Why it was declined.")
    note: str | None = Field(description="Note of the last answer or decline.")
    changed_at: datetime | None = Field(description="When it was last answered or declined.")
    changed_by: str | None = Field(description="Name of the person who last answered or declined it.")
    earlier: list[EarlierMeasurement] = []
    """The latest values of the same record in this study, newest first; 3 at most."""
    costs_again: bool = False
    """Whether a private answer of its query has left: then another value is charged as a correction."""
    mean_held_back: bool = False
    """Whether the mean of the record's measurements in this query is declined since one of them was taken back:
    :release_mean releases the mean of the others."""
    problem: str | None = None
    """Why the owner's system did not measure an open measurement that was given up: people can."""
    system: SystemAsked | None = None
    """State at the owner's system; null if people measure, or it is not open."""


class InboxPage(Page):
    """A page of the inbox."""

    items: list[InboxItem] = Field(description="Measurements, oldest first.")
    open: int = Field(ge=0, description="Number of open measurements of all studies.")


class InboxNews(Reply):
    """A change of the inbox: a measurement was requested, answered or declined."""

    open: int = Field(ge=0, description="Number of open measurements of all studies.")
    seq: int = Field(ge=0, description="Increases with each measurement that is requested, answered or declined.")


class MeasuringSystem(Reply):
    """State of the owner's measuring system, as the curator sees it."""

    state: Literal["none", "asked", "held"]
    """none: no system is configured (MEASURER_URL); asked: measurements are sent when they are due; held: it failed
    several times in a row; from next_at on, single calls test whether it is back."""
    failures: int = Field(ge=0, description="Number of consecutive failed calls, since the curator's start.")
    problem: str | None = Field(description="Why the last of them failed; never the system's own text.")
    next_at: datetime | None = Field(description="Earliest time of the next call; null: as soon as one is due.")
    waiting: int = Field(ge=0, description="Number of open measurements that will be sent to it.")
    expected: int = Field(ge=0, description="Number of open measurements that it said it will report later.")
    given_up: int = Field(ge=0)
    """Number of open measurements that are no longer sent to it: they wait for people."""


class TriedAgain(Reply):
    """Measurements that are sent to the owner's system again."""

    measurements: int = Field(ge=0)
    """Number of measurements; each is sent with the same idempotency key as before."""


class Measured(Request):
    """A value that was measured."""

    measurement_id: MeasurementId
    value: BoundedFloat = Field(description="y, in units of the measurement.")
    expected_version: int | None = Field(None, ge=0)
    """The version that this value replaces; 409 if somebody has entered another value since."""


class AnswerCreate(Request):
    """Values for some or all measurements of a query."""

    values: list[Measured] = Field(min_length=1, max_length=MEASUREMENTS_MAX)
    """Values, each measurement once."""
    note: Text | None = Field(None, description="Note for the owner only.")
    consent: bool = Field(False, exclude_if=lambda consent: not consent)
    """Must be true where an item has a consent: it was read to each person, who agreed."""


class CorrectCreate(Request):
    """A correction of entered values: other values, or that there is none."""

    values: list[Measured] = Field([], max_length=MEASUREMENTS_MAX, description="Values, each measurement once.")
    void: list[MeasurementId] = Field([], max_length=MEASUREMENTS_MAX)
    """Measurements whose value is void, such as of a wrong sample: from now on they are declined, and a mean that one
    of them is part of is declined whole. That releases no number and uses no epsilon."""
    reason: DeclineReason | None = None
    """Why they are void, for the owner only: a modeler learns only that the candidate has no answer."""
    note: Text | None = Field(None, description="Note for the owner only.")
    undo_version: int | None = Field(None, ge=0)
    """Void this version of each measurement alone: 409 if another value was entered since, or if a private answer of
    the query has left, so that another value would be charged."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.values and not self.void:
            raise ValueError("give values, or void, or both")
        if (self.reason is None) != (not self.void):
            raise ValueError("a reason belongs to void, and void needs one")
        return self


class MeanRelease(Request):
    """Means to release over the measurements that are left, after others were taken back."""

    measurement_ids: list[MeasurementId] = Field([], max_length=MEASUREMENTS_MAX)
    """Any measurements of the records in question; empty: all means of the query that are held back."""


class DeclineCreate(Request):
    """Measurements of a query that will not be made."""

    measurement_ids: list[MeasurementId] = Field([], max_length=MEASUREMENTS_MAX)
    """Ids of the measurements; empty: all that are still open."""
    reason: DeclineReason
    """Why, for the owner only: a modeler learns only that the candidate has no answer."""
    note: Text | None = Field(None, description="Note for the owner only.")


class QueryMeasurements(Reply):
    """State of a query, for the owner's people."""

    query_id: str = Field(description="qry_...")
    state: Literal["pending", "answered"] = Field(description="answered: the answer is available to the modeler.")
    version: int = Field(ge=0, description="Version of the answer that the modeler gets; 0 while the query is pending.")
    open: int = Field(ge=0, description="Number of open measurements.")
    charged: str | None
    """Epsilon charged for releasing private answers again; null if nothing was charged."""


class ImportCorrection(Reply):
    """A line of a file that differs from what is stored."""

    line: int = Field(ge=1, description="Line of the file.")
    measurement_id: str = Field(description="msr_...")
    study: str = Field(description="Name of the study.")
    record: int = Field(ge=1, description="Number of the record in the dataset's file, from 1.")
    unit: str | None = Field(description="Unit of the outcome.")
    stored: float | None = Field(description="The stored value; null if the measurement is declined.")
    stored_reason: DeclineReason | None = Field(description="Why it is declined.")
    value: float | None = Field(description="The value in the file; null: it takes the stored value back.")
    reason: DeclineReason | None = Field(description="The reason in the file.")
    entered_at: datetime = Field(description="When the stored value or reason was entered.")
    entered_by: str = Field(description="Who entered it.")


class ReadValue(Reply):
    """A value of a sheet, as it is written and as it was read."""

    line: int = Field(description="Line of the sheet, from 1.")
    cell: str = Field(description="The cell, as it is written.")
    value: float = Field(description="The number that was read, in the unit of the measurement.")


class InboxImport(Reply):
    """Result of importing a file of measurements."""

    dry_run: bool = Field(description="Whether this was a dry run: nothing was stored.")
    answered: int = Field(ge=0, description="Number of new values imported.")
    declined: int = Field(ge=0, description="Number of new declines imported.")
    unchanged: int = Field(0, ge=0, description="Number of lines with what is stored already: they change nothing.")
    withheld: int = Field(0, ge=0, description="Number of lines with a value of a withheld record: they are skipped.")
    corrected: int = Field(0, ge=0)
    """Number of lines with another value or reason than the stored one: they correct it."""
    corrections: list[ImportCorrection] = Field([], description="In a dry run: these lines, with both values.")
    charged: str | None = None
    """Epsilon charged for releasing private answers again; null if nothing is charged."""
    blank: int = Field(ge=0, description="Number of lines without a value or a reason: they stay open.")
    queries: int = Field(ge=0, le=ROWS_MAX * MEASUREMENTS_MAX, description="Number of queries that are now answered.")
    decimal: DecimalSign = Field(".", description="Decimal sign of the sheet.")
    first: list[ReadValue] = Field([], description="In a dry run: the first five values.")
