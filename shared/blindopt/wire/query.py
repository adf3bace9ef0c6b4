"""What a modeler fetches and queries: published candidates, queries, and their answers."""

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Literal, Self

from pydantic import Field, model_validator

from blindopt.wire.base import FEATURES_MAX, PLAYS_MAX, ROWS_MAX, Page, Reply, Request, Sha256

PARTS_MAX = 1_000
NUMBER_MAX = 24
"""Most characters of a double in JSON, such as -2.2250738585072014e-308."""
NPY_HEADER_MAX = 4_096
"""Most bytes of the header of an npy file."""


class ReleasePart(Reply):
    """Consecutive rows of Z: bytes of its npy file, after those of the parts before. Part 0 begins with the header."""

    rows: int = Field(ge=1, le=10**9, description="Candidates in it.")
    bytes: int = Field(ge=8, le=10**13, description="Its length: 8 for each number, and in part 0 the header.")
    sha256: Sha256 = Field(description="SHA-256 of its bytes: its ETag.")


def digest_of_parts(parts: Iterable[ReleasePart]) -> str:
    """SHA-256 that identifies a release in parts: of a line ``rows bytes sha256`` for each, in order."""
    lines = "".join(f"{part.rows} {part.bytes} {part.sha256}\n" for part in parts)
    return hashlib.sha256(lines.encode()).hexdigest()


class PublishedCandidates(Reply):
    """Z as it is published: its study, its shape, its digest, and the parts of a large one."""

    id: str = Field(description="std_...")
    n: int = Field(ge=1, le=10**9, description="Number of candidates.")
    r: int = Field(ge=1, le=1_000, description="Columns of the release.")
    release_sha256: Sha256
    """SHA-256 of the npy file of the candidates, its ETag; or of a line `rows bytes sha256` for each of its parts."""
    parts: list[ReleasePart] = Field([], max_length=PARTS_MAX)
    """Of a large release: the parts of its npy file, in order, each fetched by its number, from 0."""

    @model_validator(mode="after")
    def _parts_are_whole(self) -> Self:
        if not self.parts:
            return self
        sizes = [part.bytes - 8 * self.r * part.rows for part in self.parts]
        if sum(part.rows for part in self.parts) != self.n or not 0 < sizes[0] <= NPY_HEADER_MAX or any(sizes[1:]):
            raise ValueError("the parts are not those of n x r numbers")
        if digest_of_parts(self.parts) != self.release_sha256:
            raise ValueError("the parts are not those of the release")
        return self


class RowPlays(Request):
    """A candidate and how often to measure it."""

    row: int = Field(ge=0, lt=2**53, description="Number of the candidate, from 0.")
    plays: int = Field(1, ge=1, le=PLAYS_MAX, description="Number of measurements.")
    probability: float | None = Field(None, ge=0, le=1)
    """Probability that its outcome is good, by the modeler's model, where the study looks for many: people who measure
    see it; null: not stated."""


class QueryRequest(Request):
    """Candidates to measure."""

    rows: list[RowPlays] = Field(min_length=1, max_length=ROWS_MAX)
    """Candidates, in the order of the answers."""


class PrivacyNoise(Reply):
    """Noise that protects an answer."""

    family: Literal["none", "laplace", "one_bit", "piecewise"] = Field("none", description="none: no privacy noise.")
    scale: float | None = Field(None, ge=0)
    """In units of the outcome. laplace: scale of the noise; one_bit and piecewise: how far an answer lies from the
    centre at most."""
    bound: float | None = Field(None, ge=0, description="C, half the width of clip, in units of the outcome.")
    variance: float | None = Field(None, ge=0)
    """Variance of the noise for the worst-case outcome, in squared units of the outcome."""


class NoisePassport(Reply):
    """Noise description of an answer: all that a modeler needs to state its likelihood."""

    privacy: PrivacyNoise = Field(PrivacyNoise(), description="Privacy noise.")
    clip: tuple[float, float] | None = None
    """Bounds to which outcomes were clipped; null: not clipped."""
    measurement_variance: float = Field(ge=0)
    """Variance of the measurement noise that the curator added to the released value: a mean of several has less."""
    measurement_variance_known: bool = Field(True, description="False if the variance is an estimate.")
    z: list[float] | None = Field(None, max_length=FEATURES_MAX, exclude_if=lambda z: z is None)
    """The less blurred copy of the candidate that came with the answer, as a modeler stores it: a curator sends it in
    refined of its reply. Absent where there is none."""


class Answer(Reply):
    """A released measurement of a candidate."""

    row: int = Field(description="Number of the candidate, from 0.")
    play: int = Field(ge=1, le=PLAYS_MAX)
    """Number of the measurement of this candidate in the query, from 1."""
    plays: int = Field(1, ge=1, le=PLAYS_MAX, description="Number of measurements of which the answer is the mean.")
    y: float = Field(description="The released outcome, in units of the measurement.")
    passport: NoisePassport = Field(description="Noise description of the answer.")

    def refined(self, z: list[float] | None) -> Self:
        """Return the answer with the second draw of its candidate."""
        return self.model_copy(update={"passport": self.passport.model_copy(update={"z": z})})


class Refinement(Reply):
    """A queried record once more, less blurred: drawn once for each record, whoever queries it, however often."""

    row: int = Field(ge=0, lt=2**53, description="Number of the candidate, from 0.")
    z: list[float] = Field(min_length=1, max_length=FEATURES_MAX)
    """Its features with the noise of refine, in scaled units."""


class QueryPending(Reply):
    """A charged query that waits for people or the owner's system to measure.

    Poll ``GET /v1/studies/{study_id}/queries/{id}?wait=20`` for its answers. A retry under the same key gets this
    reply again.
    """

    id: str = Field(pattern=r"^qry_[0-9a-f]{16}$", description="qry_...")
    study_id: str = Field(description="The study of the query.")
    state: Literal["pending"] = Field(description="Measurements are still open.")
    created_at: datetime = Field(description="When it was charged.")
    due_at: datetime | None = Field(description="When open measurements will count as declined; null: never.")


class QueryReply(Reply):
    """An answered query."""

    id: str = Field(pattern=r"^qry_[0-9a-f]{16}$", description="qry_...")
    study_id: str = Field(description="The study of the query.")
    state: Literal["answered"] = Field(description="All answers are available.")
    version: int = Field(1, ge=1, lt=2**53)
    """Version of the answers, increased by each correction: the largest one is valid."""
    created_at: datetime = Field(description="When it was answered.")
    answers: list[Answer] = Field(max_length=ROWS_MAX * PLAYS_MAX)
    """One answer per measurement, or one per requested candidate if means are released, in the order of the request."""
    declined: list[int] = Field([], max_length=ROWS_MAX)
    """Requested candidates that nobody measured: they have no answer. The reason is for the owner only."""
    refined: list[Refinement] = Field([], max_length=ROWS_MAX, exclude_if=lambda refined: not refined)
    """Answered candidates of a study with refine, each once, in the order of the request; absent where there are
    none."""
    salt: str = Field(max_length=64 + NUMBER_MAX * ROWS_MAX * (PLAYS_MAX + FEATURES_MAX))
    """Random text, so that neither the digest nor the length of this reply reveals an outcome."""

    @model_validator(mode="after")
    def _salt_fits(self) -> Self:
        numbers = len(self.answers) + sum(len(refinement.z) for refinement in self.refined)
        if len(self.salt) > 64 + NUMBER_MAX * numbers:  # it is longer as the numbers are shorter
            raise ValueError("the salt is longer than 64 characters and 24 for each number")
        return self


class Revision(Reply):
    """A query of a grant that was answered or corrected."""

    seq: int = Field(description="Position among the revisions of the grant's queries.")
    query_id: str = Field(max_length=40, description="qry_...")
    version: int = Field(ge=1, description="Version of the query's answers; more than 1 is a correction.")


class RevisionPage(Page):
    """A page of answers to pending queries, and corrections."""

    revisions: list[Revision] = Field(max_length=1_000, description="Revisions, in the order of seq.")
