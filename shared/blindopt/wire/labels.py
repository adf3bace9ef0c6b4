"""Notes and tags of runs and studies, and what a deletion answers."""

from datetime import datetime
from typing import Annotated, Self

from pydantic import Field, model_validator

from blindopt.wire.base import Reply, Request

TAGS_MAX = 10
NOTE_MAX = 2_000
Tag = Annotated[
    str, Field(min_length=1, max_length=30, pattern=r"^[^\x00-\x20\x7f,]([^\x00-\x1f\x7f,]*[^\x00-\x20\x7f,])?$")
]


class Labels(Request):
    """A note and tags, which replace those before."""

    note: str | None = Field(None, max_length=NOTE_MAX, description="Free text; null or empty: no note.")
    tags: list[Tag] = Field([], max_length=TAGS_MAX, description="Short words to filter a listing by.")

    @model_validator(mode="after")
    def _different(self) -> Self:
        if len(set(self.tags)) < len(self.tags):
            raise ValueError("a tag is named twice")
        return self


class Deleted(Reply):
    """What was deleted. Requests about it get 404 from now on."""

    id: str = Field(description="run_..., std_... or ds_...")
    deleted_at: datetime = Field(description="When it was deleted.")
