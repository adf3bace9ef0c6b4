"""Address and token of a curator, and the test of a connection before a run is started."""

from datetime import datetime
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from blindopt.wire.base import Name, Reply, Request
from blindopt.wire.studies import GrantReply, StudyView

GRANT_FILE_MAX_BYTES = 1 << 14

StudyId = Annotated[str, Field(pattern=r"^std_[0-9a-f]{16}$")]
GrantToken = Annotated[str, Field(max_length=200, pattern=r"^[\x21-\x7e]+$", repr=False)]


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        plain = not (parts.username or parts.password or parts.query or parts.fragment)
        labels = (parts.hostname or "").rstrip(".").split(".")
        named = all(0 < len(label) < 64 for label in labels) and len(parts.hostname or "") < 254
        good = plain and named and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise ValueError("must be an address such as https://curator.example or http://127.0.0.1:8410")
    return url


CuratorUrl = Annotated[
    str,
    Field(max_length=2_000, pattern=r"^https?://[!-~]+$"),
    AfterValidator(_address),
]


class StudyAccess(Request):
    """A study at a curator, with the token of a grant."""

    curator_url: CuratorUrl = Field(description="Address of the curator; https, except on loopback.")
    study_id: StudyId = Field(description="The study whose candidates to use.")
    token: GrantToken = Field(description="Token of the grant: used for this request and not stored.")
    log_key: str | None = Field(
        None,
        max_length=400,
        description="The curator's C2SP verifier key, obtained separately; null: trust and pin the first one.",
    )


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


class GrantFile(StudyAccess):
    """grant.json: all that a vendor needs for a run. It holds a secret, so it goes over a private channel."""

    format: Literal["blindopt-grant-1"] = Field(description="Name and version of this format.")
    log_key: str = Field(max_length=400, description="The curator's C2SP verifier key: runs trust no other one.")
    name: Name = Field(description="Name of the modeler that the grant is for.")
    expires_at: datetime = Field(description="When the token expires.")

    @classmethod
    def of(cls, grant: GrantReply, address: str) -> Self:
        """The file of a new grant at a curator with this address."""
        return cls(
            format="blindopt-grant-1",
            curator_url=address,
            study_id=grant.study_id,
            token=grant.token,
            log_key=grant.log_key or "",
            name=grant.name,
            expires_at=grant.expires_at,
        )

    @property
    def access(self) -> StudyAccess:
        """What a run, or a test of the connection, is started with."""
        return StudyAccess.model_validate(self.model_dump(include=set(StudyAccess.model_fields)))
