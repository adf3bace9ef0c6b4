"""The posterior of a run: the candidate that it recommends, by candidate, and on a map."""

from typing import Annotated, Literal

from pydantic import Field

from blindopt.wire.base import Page, Reply


class Recommendation(Reply):
    """The recommended candidate, with an interval for its mean outcome. In units of the measurement."""

    row: int = Field(description="Number of the candidate: its row of Z.")
    over: Literal["asked", "all"] = Field(
        description="asked: the best of the queried candidates; all: the best of all."
    )
    by: Literal["posterior", "estimate", "observed"] = Field(
        description=(
            "posterior: best posterior mean; estimate: best estimate of an algorithm for few arms; observed: best mean "
            "of the answers about a candidate, if nothing is estimated."
        )
    )
    mean: float = Field(description="Estimate of f at the candidate.")
    sd: float | None = Field(
        description="Standard deviation of that estimate, without the noise of an answer; null: unknown."
    )
    interval: Annotated[list[float], Field(min_length=2, max_length=2)] | None = Field(
        description="mean - 1.96 sd, mean + 1.96 sd: 95 % if the model holds."
    )
    outcomes: int = Field(description="Number of answers and past measurements that it is based on.")


class PosteriorPoint(Reply):
    """Posterior moments of f at a candidate, in units of the measurement."""

    row: int = Field(description="Number of the candidate: its row of Z.")
    mean: float = Field(description="Posterior mean of f.")
    sd: float = Field(description="Posterior standard deviation of f, without the noise of an answer.")
    improvement: float | None = Field(
        None,
        description=(
            "Expected improvement of f on the best posterior mean of the queried candidates; null unless the request "
            "is for the best candidates."
        ),
    )


class PosteriorPage(Page):
    """Posterior moments of f after the answers so far, at some candidates."""

    outcomes: int = Field(
        description="Number of answers and past measurements that this page is based on: it may change between pages."
    )
    points: list[PosteriorPoint] = Field(description="Moments by row; for a request of the best, the best first.")


class MapPoint(Reply):
    """A candidate on the map of the first two principal axes of Z."""

    row: int = Field(description="Number of the candidate: its row of Z.")
    first: float = Field(description="Coordinate along the first principal axis, from the centre, in scaled units.")
    second: float = Field(description="Coordinate along the second axis; 0 if Z has one column.")
    mean: float | None = Field(description="Posterior mean of f; null if the algorithm estimates nothing.")
    sd: float | None = Field(description="Posterior standard deviation of f; null if the algorithm estimates nothing.")
    asked: int = Field(ge=0, description="Number of answers about the candidate.")


class PosteriorMap(Reply):
    """Posterior moments of f over the first two principal axes of Z."""

    outcomes: int = Field(description="Number of answers and past measurements that it is based on.")
    shares: Annotated[list[float], Field(min_length=2, max_length=2)] = Field(
        description="Fraction of Z's variance along each axis."
    )
    rows: int = Field(description="Number of rows of Z; if there are fewer points, they are a regular sample.")
    points: list[MapPoint] = Field(description="All queried candidates and an even sample of the others, by row.")


class SlicePart(Reply):
    """Candidates that are near each other along an axis of Z."""

    at: float = Field(description="Mean coordinate along the axis.")
    mean: float = Field(description="Mean of their posterior means, in units of the measurement.")
    low: float = Field(description="10 % quantile of their posterior means.")
    high: float = Field(description="90 % quantile of their posterior means.")
    rows: int = Field(description="Number of candidates.")


class AxisSlice(Reply):
    """How the posterior mean changes along one axis of Z."""

    axis: int = Field(description="Number of the axis, from 1: a column of Z, or a principal axis.")
    share: float = Field(description="Fraction of Z's variance along the axis.")
    relevance: float = Field(
        ge=0, le=1, description="Fraction of the variance of the posterior mean that the axis alone explains."
    )
    parts: list[SlicePart] = Field(description="Groups of candidates along the axis, about equally many in each.")


class PosteriorSlices(Reply):
    """Slices of the posterior mean along the axes of Z, the most relevant axis first."""

    outcomes: int = Field(description="Number of answers and past measurements that they are based on.")
    by: Literal["column", "principal_axis"] = Field(
        description="column: the columns of Z; principal_axis: where the release rotates Z."
    )
    axes: list[AxisSlice] = Field(description="At most 12 principal axes, or all columns; the most relevant one first.")
