"""What a search is for: the best record, or as many good ones as possible."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from blindopt.wire.base import Reply, Request

Threshold = Annotated[float, Field(ge=-1e150, le=1e150)]


class FindBest(Request):
    """Find the candidate of the best outcome."""

    kind: Literal["best"] = Field("best", description="best.")


class FindMany(Request):
    """Find as many good candidates as possible."""

    kind: Literal["many"] = Field("many", description="many.")
    threshold: Threshold | None = None
    """A candidate is good if its outcome is at least this, where the largest is the best, and at most this
    otherwise."""
    share: Annotated[float, Field(gt=0, le=0.5)] | None = None
    """The best candidates are good, this share of all. The threshold is estimated as answers come."""

    @model_validator(mode="after")
    def _says_what_is_good(self) -> Self:
        if (self.threshold is None) == (self.share is None):
            raise ValueError("say what is good: give threshold or share, one of them")
        return self


Goal = Annotated[FindBest | FindMany, Field(discriminator="kind")]
BEST = FindBest()


GOOD_MAX = 5_000
"""Queried candidates in a list of good ones."""
PREDICTED_MAX = 1_000
"""Other candidates in it."""


class GoodCandidate(Reply):
    """A candidate that is good, or probably is."""

    row: int = Field(ge=0, description="Number of the candidate.")
    mean: float = Field(description="Estimate of its outcome, in units of the measurement.")
    probability: float = Field(ge=0, le=1, description="Probability that it is good; 1 for an exact outcome.")
    queried: bool = Field(description="Whether it was queried. The others are predictions.")


class GoodCandidates(Reply):
    """The good candidates that a search found, and others that probably are good."""

    threshold: float = Field(description="What counts as good, in units of the measurement: as stated, or estimated.")
    found: float = Field(ge=0)
    """Good queried candidates: their number where answers are exact, else the expected number."""
    queries: int = Field(ge=0, description="Number of candidates that were queried.")
    by_chance: float | None = Field(None, ge=0)
    """Expected number of good ones among as many random candidates; null: not estimated."""
    candidates: list[GoodCandidate] = Field(max_length=GOOD_MAX + PREDICTED_MAX)
    """Up to 5,000 queried ones with a probability of 1/2 at least, then up to 1,000 such others; the most probable
    first."""
