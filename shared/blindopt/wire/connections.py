"""Test of a connection to a curator before a run is started."""

from typing import Literal

from pydantic import Field

from blindopt.wire.base import Reply
from blindopt.wire.studies import StudyView


class ConnectionStep(Reply):
    """One step of the test."""

    name: Literal["address", "reach", "token", "key"] = Field(
        description=(
            "address: a token may be sent to this address; reach: a curator answers; token: the token opens the study; "
            "key: the curator signs with the expected key."
        )
    )
    state: Literal["ok", "failed", "not_tried"] = Field(description="not_tried: an earlier step failed.")
    detail: str = Field(description="The result, and what to do if the step failed; for people.")


class ConnectionReport(Reply):
    """Result of a connection test."""

    ok: bool = Field(description="Whether a run can be started.")
    steps: list[ConnectionStep] = Field(description="Steps, in the order in which they are tried.")
    study: StudyView | None = Field(description="The study, as the curator describes it; null if it was not reached.")
