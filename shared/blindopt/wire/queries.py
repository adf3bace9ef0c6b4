"""Questions by row, and their answers."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from blindopt.wire.base import PLAYS_MAX, ROWS_MAX, Page, Reply, Request


class RowPlays(Request):
    """One row and how often to measure it."""

    row: int = Field(ge=0, lt=2**53, description="Row of Z, from 0.")
    plays: int = Field(1, ge=1, le=PLAYS_MAX, description="How often to measure it.")


class QueryRequest(Request):
    """Rows of Z that the modeler wants measured."""

    rows: list[RowPlays] = Field(min_length=1, max_length=ROWS_MAX, description="What to measure, in this order.")


class PrivacyNoise(Reply):
    """Noise that protects an answer."""

    family: Literal["none", "laplace", "one_bit", "piecewise"] = Field("none", description="none: no privacy noise.")
    scale: float | None = Field(
        None,
        ge=0,
        description=(
            "In units of y. laplace: scale of the noise; one_bit and piecewise: how far a released y lies from "
            "the centre at most."
        ),
    )
    bound: float | None = Field(None, ge=0, description="C, half the width of clip, in units of y.")
    variance: float | None = Field(
        None, ge=0, description="Of the noise, for the y that makes it largest, in units of y^2."
    )


class NoisePassport(Reply):
    """What was done to y before it left: all that a modeler needs to state its likelihood."""

    privacy: PrivacyNoise = Field(PrivacyNoise(), description="Noise that protects y.")
    clip: tuple[float, float] | None = Field(None, description="Bounds that y was clipped to; null: not clipped.")
    measurement_variance: float = Field(
        ge=0,
        description="Of the noise that the curator added as measurement noise to what was released: a mean has less.",
    )
    measurement_variance_known: bool = Field(True, description="False where the variance is an estimate.")


class Answer(Reply):
    """One released measurement of one row."""

    row: int = Field(description="Row of Z, from 0.")
    play: int = Field(ge=1, le=PLAYS_MAX, description="1 for the first of this query's plays of the row.")
    plays: int = Field(1, ge=1, le=PLAYS_MAX, description="How many measurements y is the mean of.")
    y: float = Field(description="What was released, in units of the measurement.")
    passport: NoisePassport = Field(description="What was done to y before it left.")


class QueryPending(Reply):
    """A query that was charged and waits for a person or a laboratory.

    Ask ``GET /v1/studies/{study_id}/queries/{id}?wait=20`` for its answers. Sending it again under its key gets this
    reply again.
    """

    id: str = Field(pattern=r"^qry_[0-9a-f]{16}$", description="qry_...")
    study_id: str = Field(description="The study that was asked.")
    state: Literal["pending"] = Field(description="Something is still to be measured.")
    created_at: datetime = Field(description="When it was charged.")
    due_at: datetime | None = Field(description="From then on what is not measured counts as declined; null: never.")


class QueryReply(Reply):
    """An answered query."""

    id: str = Field(pattern=r"^qry_[0-9a-f]{16}$", description="qry_...")
    study_id: str = Field(description="The study that was asked.")
    state: Literal["answered"] = Field(description="Answers are all there.")
    version: int = Field(1, ge=1, lt=2**53, description="Grows with each correction: the largest one counts.")
    created_at: datetime = Field(description="When it was answered.")
    answers: list[Answer] = Field(
        description="One per play, or one per row asked where means are released, in the order of the request."
    )
    declined: list[int] = Field(
        [], description="Rows that were asked and have no answer: nobody measured them. Why is for the owner alone."
    )
    salt: str = Field(description="Random: the digest of this reply in the logs then reveals nothing of y.")


class Revision(Reply):
    """A query of a grant that has an answer, or another one than before."""

    seq: int = Field(description="Place among the revisions of the grant's queries.")
    query_id: str = Field(description="qry_...")
    version: int = Field(ge=1, description="As in the query's reply; more than 1 is a correction.")


class RevisionPage(Page):
    """Answers to pending queries, and corrections, in the order in which they were made."""

    revisions: list[Revision] = Field(description="In the order of seq.")
