"""Questions by row, and their answers."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from shared.wire.base import PLAYS_MAX, ROWS_MAX, Reply, Request


class RowPlays(Request):
    """One row and how often to measure it."""

    row: int = Field(ge=0, lt=2**53)
    plays: int = Field(1, ge=1, le=PLAYS_MAX)


class QueryRequest(Request):
    """Rows of Z that the modeler wants measured."""

    rows: list[RowPlays] = Field(min_length=1, max_length=ROWS_MAX)


class PrivacyNoise(Reply):
    """Noise that protects an answer."""

    family: Literal["none"] = "none"
    scale: float | None = None
    bound: float | None = None


class NoisePassport(Reply):
    """What was done to y before it left: the modeler's algorithm reads its likelihood from it."""

    privacy: PrivacyNoise = PrivacyNoise()
    clip: tuple[float, float] | None = None
    measurement_variance: float = Field(description="Of the noise that the curator added as measurement noise.")
    measurement_variance_known: bool = True


class Answer(Reply):
    """One released measurement of one row."""

    row: int
    play: int = Field(description="1 for the first of this query's plays of the row.")
    y: float
    passport: NoisePassport


class QueryReply(Reply):
    """An answered query."""

    id: str
    study_id: str
    state: Literal["answered"]
    created_at: datetime
    answers: list[Answer]
    salt: str = Field(description="Random: the digest of this reply in the logs then reveals nothing of y.")
