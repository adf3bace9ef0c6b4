"""Trying a connection to a curator before a run is started."""

from typing import Literal

from pydantic import Field

from blindopt.wire.base import Reply
from blindopt.wire.studies import StudyView


class ConnectionStep(Reply):
    """One thing that must work before a run can."""

    name: Literal["address", "reach", "token", "key"] = Field(
        description=(
            "address: a token may be sent there; reach: something answers, and it is a curator; token: it opens the "
            "study; key: the curator signs with the key that is expected."
        )
    )
    state: Literal["ok", "failed", "not_tried"] = Field(description="not_tried: an earlier step failed.")
    detail: str = Field(description="What was found, and what to do where it failed; for people.")


class ConnectionReport(Reply):
    """What came of trying a connection."""

    ok: bool = Field(description="Whether a run can be started.")
    steps: list[ConnectionStep] = Field(description="In the order in which they are tried.")
    study: StudyView | None = Field(description="What the curator tells of the study; null where it was not reached.")
