"""Cautions: choices that are allowed, and that an expert would not make."""

from pydantic import Field

from blindopt.wire.base import Reply


class Caution(Reply):
    """A choice that is allowed, and that an expert would not make."""

    code: str = Field(max_length=100, description="Stable name of the caution, such as delta_large.")
    field: str = Field(max_length=300, description="Field of the request that it is about, such as release.delta.")
    message: str = Field(max_length=2_000, description="What follows from the choice, and what to choose instead.")
