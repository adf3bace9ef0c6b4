"""Registered tables, as their owner sees them."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from shared.wire.base import Page, Reply, Sha256


class Column(Reply):
    """One numeric column of a dataset, as the owner sees it."""

    name: str
    type: Literal["number"] = "number"
    missing: Literal[0] = Field(0, description="Always 0: a file with missing values is refused.")
    minimum: float
    maximum: float


class DatasetView(Reply):
    """A registered table. Seen by the owner alone."""

    id: str
    name: str
    public: bool = Field(description="The owner declares that nobody in it needs protection.")
    state: Literal["active", "archived"]
    rows: int
    columns: list[Column]
    dropped: list[str] = Field(description="Columns of the file that were neither read nor stored.")
    sha256: Sha256 = Field(description="Of the file as it was sent.")
    created_at: datetime


class DatasetPage(Page):
    """A page of datasets."""

    datasets: list[DatasetView]
