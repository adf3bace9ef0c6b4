"""What both services have: the log, health, what they offer."""

from typing import Annotated, Literal

from pydantic import Field

from shared.wire.base import Page, Reply, Sha256
from shared.wire.studies import Limits, Status


class AuditEntry(Reply):
    """A record of the log: ``body`` is the canonical text that was hashed."""

    seq: int
    body: str
    leaf: Sha256
    peaks: Annotated[str, Field(pattern=r"^([0-9a-f]{64})+$", description="Frontier of the Merkle tree, in hex.")]


class AuditPage(Page):
    """A page of the audit log."""

    entries: list[AuditEntry]


class Checkpoint(Reply):
    """Size and root of the log."""

    size: int
    root: Sha256


class Health(Reply):
    """State of a service."""

    status: Literal["ok"]


class MechanismView(Reply):
    """A release mechanism and whether its claim holds."""

    name: str
    version: int
    status: Status
    claim: str


class CuratorMeta(Reply):
    """What a curator offers."""

    service: Literal["blindopt-curator"]
    version: str
    mechanisms: list[MechanismView]
    limits: Limits


class ModelerMeta(Reply):
    """What a modeler offers."""

    service: Literal["blindopt-modeler"]
    version: str
    algorithms: list[str]
