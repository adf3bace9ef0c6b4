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
    Field(max_length=2_000, pattern=r"^(https?|link)://[!-~]+$"),
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


# --- links: a curator that only opens connections ------------------------------------------------------------

LinkId = Annotated[str, Field(pattern=r"^usr_[0-9a-f]{16}$")]
LinkRequestId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
LINK_REQUESTS_MAX = 64
"""The most requests that a curator works on at once."""
LINK_PULLED_MAX = 16
"""The most requests that it takes at once."""
LINK_PART_BYTES = 1 << 20
"""The largest part of a reply; longer ones are sent in several."""
LINK_HEAD_BYTES = 64 << 10
LINK_CARRIED_BYTES = 64 << 10
"""The longest reply that goes with a pull."""


class LinkFile(Request):
    """link.json: all that a curator needs to take requests from a modeler. It holds a secret."""

    format: Literal["blindopt-link-1"] = Field(description="Name and version of this format.")
    id: LinkId = Field(description="The link; grants of this curator have the address link://ID.")
    name: Name = Field(description="Name of the curator's side, given by the vendor.")
    url: CuratorUrl = Field(description="Address of the modeler; https, except on loopback.")
    token: GrantToken = Field(description="Token of the link.")
    ca: str | None = Field(None, max_length=4_096, description="File of the CA of the modeler's certificate, in PEM.")
    cert: str | None = Field(None, max_length=4_096, description="File of the certificate to show to it, in PEM.")
    key: str | None = Field(None, max_length=4_096, description="File of its private key, in PEM.")


class LinkRequest(Reply):
    """A request of a modeler to the curator, as it would be sent over a socket."""

    id: LinkRequestId = Field(description="Names the request in its reply.")
    method: Literal["GET", "POST"] = Field(description="Method.")
    target: str = Field(max_length=2_000, pattern=r"^/[!-~]*$", description="Path and query string.")
    headers: dict[str, Annotated[str, Field(max_length=8_192)]] = Field(max_length=32, description="Headers.")
    body: str = Field(max_length=90_000, description="Body, in base64.")


class LinkRequests(Reply):
    """The requests that wait for a curator."""

    requests: list[LinkRequest] = Field(max_length=LINK_PULLED_MAX, description="Oldest first; may be empty.")


class LinkReply(Request):
    """The head of a reply, or of a further part of one: a line of JSON before the bytes of the part."""

    request: LinkRequestId = Field(description="The request that this answers.")
    part: int = Field(ge=0, lt=2**31, description="Number of the part, from 0.")
    last: bool = Field(description="Whether the reply ends with this part.")
    status: int = Field(ge=100, le=599, description="HTTP status.")
    headers: dict[str, Annotated[str, Field(max_length=16_384)]] = Field(
        max_length=64, description="Headers of the reply; only the first part counts."
    )


class LinkCarried(Request):
    """A short reply that goes with a pull, which spares a request."""

    head: LinkReply = Field(description="Its head; the reply has no other part.")
    body: str = Field(max_length=90_000, description="Its body, in base64.")


class LinkPull(Request):
    """What a curator says when it asks for requests."""

    working: list[LinkRequestId] = Field(
        max_length=LINK_REQUESTS_MAX, description="Requests that it has and has not replied to yet."
    )
    carried: LinkCarried | None = Field(None, description="A reply to a request that it had.")


class LinkReceived(Reply):
    """What has come of a reply."""

    next_part: int = Field(description="Number of the part that is expected next.")


class LinkView(Reply):
    """A link, as the modeler sees it."""

    id: str = Field(description="The link.")
    name: str = Field(description="Name, given when it was made.")
    address: str = Field(description="Address of the curator in grants, link://ID.")
    state: Literal["connected", "absent", "revoked"] = Field(
        description="connected: the curator takes requests now; absent: it does not; revoked: its token ended."
    )
    seconds_since_pull: float | None = Field(
        description="Seconds since the curator last took requests; 0 while it waits for one; null: not since the start."
    )
    waiting: int = Field(description="Requests that have no whole reply yet.")


class LinkList(Reply):
    """The links of a modeler."""

    links: list[LinkView] = Field(description="Oldest first.")


class LinkStatus(Reply):
    """A link, as the curator sees it."""

    id: str = Field(description="The link.")
    name: str = Field(description="Name, given by the vendor.")
    url: str = Field(description="Address of the modeler.")
    address: str = Field(description="Address of this curator in grants that are used over the link, link://ID.")
    state: Literal["connected", "trying"] = Field(description="trying: the modeler is not reached; problem says why.")
    since: datetime = Field(description="When this state began.")
    problem: str | None = Field(description="What keeps it from being connected; null if nothing does.")


class LinkStatusList(Reply):
    """The links of a curator."""

    links: list[LinkStatus] = Field(description="As in the file of links.")
