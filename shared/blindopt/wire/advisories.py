"""Withdrawals of release mechanisms that turned out to be wrong."""

from datetime import datetime

from pydantic import Field

from blindopt.wire.base import Page, Reply, Request


class AdvisoryCreate(Request):
    """Withdraw a release mechanism: no new release uses it from now on."""

    mechanism: str = Field(min_length=1, max_length=100, description="Name of the release mechanism.")
    version: int = Field(ge=1, lt=2**31, description="Version of the mechanism; later versions are not affected.")
    reason: str = Field(
        min_length=1, max_length=2_000, description="Why it is withdrawn; modelers and auditors read it too."
    )


class AdvisoryView(Reply):
    """A withdrawn mechanism and the studies that it affects."""

    id: str = Field(description="adv_...")
    mechanism: str = Field(description="Name of the release mechanism.")
    version: int = Field(description="Version of the mechanism.")
    reason: str = Field(description="Why it was withdrawn.")
    created_at: datetime = Field(description="When it was withdrawn: no later release uses it.")
    affected: list[str] = Field(description="Ids of the studies whose release used it: std_...")


class AdvisoryPage(Page):
    """A page of advisories."""

    advisories: list[AdvisoryView] = Field(description="In the order of their creation.")
