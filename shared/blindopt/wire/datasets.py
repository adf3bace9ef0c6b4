"""Registered tables, as their owner sees them."""

from datetime import datetime
from typing import Literal, Self

from pydantic import Field, model_validator

from blindopt.wire.base import Page, Reply, Request, Sha256

ROWS_PER_PERSON_MAX = 1_000


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
    rows: int = Field(description="Number of rows that are stored.")
    columns: list[Column] = Field(description="Columns that were read and stored.")
    dropped: list[str] = Field(description="Columns of the file that were neither read nor stored.")
    sha256: Sha256 = Field(description="SHA-256 of the uploaded file; of a sandbox, of its stored numbers.")
    sandbox: bool = Field(False, description="Whether its rows are made up, for a sandbox study.")
    created_at: datetime = Field(description="When it was registered.")
    person_column: str | None = Field(
        None, description="Column that says whose each row is; only a keyed digest of it is stored. Null: none."
    )
    rows_per_person: int | None = Field(
        None, description="Most rows of one person that were kept; null without a person column."
    )
    persons: int | None = Field(None, description="Number of persons; null without a person column.")
    person_rows_dropped: int | None = Field(
        None, description="Rows left out because their person has more; null without a person column."
    )


class WithholdCreate(Request):
    """A record, or every record of a person, that is to be measured and released no more."""

    record: int | None = Field(None, ge=1, lt=2**53, description="Number of the record in the dataset's file, from 1.")
    person: str | None = Field(
        None,
        min_length=1,
        max_length=1_000,
        repr=False,
        description="The person, as in the file's person column; it is not stored.",
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.record is None) == (self.person is None):
            raise ValueError("give record or person")
        return self


class WithheldReply(Reply):
    """A record is withheld."""

    dataset_id: str = Field(description="ds_...")
    records: int = Field(description="Number of records of the dataset that are withheld now.")


class WithheldRecord(Reply):
    """A record or person that is withheld: for the owner only."""

    seq: int = Field(description="Position in the list.")
    record: int | None = Field(description="Number of the record in the dataset's file, from 1; null for a person.")
    person: str | None = Field(description="Keyed digest of the person; null for a record.")
    created_at: datetime = Field(description="From when on it is withheld.")


class WithheldPage(Page):
    """A page of withheld records."""

    withheld: list[WithheldRecord] = Field(description="In the order in which they were withheld.")


class DatasetPage(Page):
    """A page of datasets."""

    datasets: list[DatasetView] = Field(description="Datasets, in the order of registration.")
