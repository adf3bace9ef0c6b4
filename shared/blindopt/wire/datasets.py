"""Registered tables, as their owner sees them."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from blindopt.wire.base import Page, Reply, Sha256


class Column(Reply):
    """One numeric column of a dataset, as the owner sees it."""

    name: str = Field(description="As in the header of the file.")
    type: Literal["number"] = Field("number", description="Only numbers are stored.")
    missing: Literal[0] = Field(0, description="Always 0: a file with missing values is refused.")
    minimum: float = Field(description="Smallest value. It is private: for the owner alone.")
    maximum: float = Field(description="Largest value. It is private: for the owner alone.")


class DatasetView(Reply):
    """A registered table. Seen by the owner alone."""

    id: str = Field(description="ds_...")
    name: str = Field(description="For people.")
    public: bool = Field(description="The owner declares that nobody in it needs protection.")
    state: Literal["active", "archived"] = Field(description="An archived dataset takes no new study.")
    rows: int = Field(description="Number of rows.")
    columns: list[Column] = Field(description="What was read and stored.")
    dropped: list[str] = Field(description="Columns of the file that were neither read nor stored.")
    sha256: Sha256 = Field(description="Of the file as it was sent.")
    created_at: datetime = Field(description="When it was registered.")


class DatasetPage(Page):
    """A page of datasets."""

    datasets: list[DatasetView] = Field(description="In the order of their registration.")
