"""Registered tables, as their owner sees them."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from blindopt.wire.base import Page, Reply, Sha256


class Column(Reply):
    """One numeric column of a dataset, as the owner sees it."""

    name: str = Field(description="Name, as in the header of the file.")
    type: Literal["number"] = Field("number", description="Type of the values: only numbers are stored.")
    missing: Literal[0] = Field(0, description="Always 0: a file with missing values is refused.")
    minimum: float = Field(description="Smallest value: private, for the owner only.")
    maximum: float = Field(description="Largest value: private, for the owner only.")


class DatasetView(Reply):
    """A registered table, for the owner only."""

    id: str = Field(description="ds_...")
    name: str = Field(description="For people.")
    public: bool = Field(description="Whether the owner declares that nobody in it needs protection.")
    state: Literal["active", "archived"] = Field(description="An archived dataset takes no new study.")
    rows: int = Field(description="Number of rows.")
    columns: list[Column] = Field(description="Columns that were read and stored.")
    dropped: list[str] = Field(description="Columns of the file that were neither read nor stored.")
    sha256: Sha256 = Field(description="SHA-256 of the uploaded file.")
    created_at: datetime = Field(description="When it was registered.")


class DatasetPage(Page):
    """A page of datasets."""

    datasets: list[DatasetView] = Field(description="Datasets, in the order of registration.")
