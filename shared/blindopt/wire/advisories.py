"""Mechanisms that turned out to be wrong."""

from datetime import datetime

from pydantic import Field

from blindopt.wire.base import Page, Reply, Request


class AdvisoryCreate(Request):
    """The owner withdraws a release mechanism: no new release uses it from now on."""

    mechanism: str = Field(min_length=1, max_length=100, description="Name of the release mechanism.")
    version: int = Field(ge=1, lt=2**31, description="Its version: a later one is not affected.")
    reason: str = Field(min_length=1, max_length=2_000, description="Why, for modelers and auditors too.")


class AdvisoryView(Reply):
    """A withdrawn mechanism, and what it touches."""

    id: str = Field(description="adv_...")
    mechanism: str = Field(description="Name of the release mechanism.")
    version: int = Field(description="Its version.")
    reason: str = Field(description="Why.")
    created_at: datetime = Field(description="Since when no new release uses it.")
    affected: list[str] = Field(description="Studies that released with it: std_...")


class AdvisoryPage(Page):
    """A page of advisories."""

    advisories: list[AdvisoryView] = Field(description="In the order of their creation.")
