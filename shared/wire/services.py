"""What both services have: the log, health, what they offer."""

from typing import Annotated, Literal

from pydantic import Field

from shared.wire.base import Page, Reply, Sha256
from shared.wire.studies import Limits, Status


class AuditEntry(Reply):
    """A record of the log: ``body`` is the canonical text that was hashed."""

    seq: int = Field(description="Place in the log, from 0, without a gap.")
    body: str = Field(description="RFC 8785 text of the record, as it was hashed.")
    leaf: Sha256 = Field(description="SHA-256 of 0x00 and the body.")
    peaks: Annotated[str, Field(pattern=r"^([0-9a-f]{64})+$", description="Frontier of the Merkle tree, in hex.")]


class AuditPage(Page):
    """A page of the audit log."""

    entries: list[AuditEntry] = Field(description="In the order of the log.")


class Checkpoint(Reply):
    """Size and root of the log."""

    size: int = Field(description="Number of records.")
    root: Sha256 = Field(description="Root of the RFC 6962 tree over all of them.")


class Health(Reply):
    """State of a service."""

    status: Literal["ok"] = Field(description="Always ok: the alternative is a problem document.")


class MechanismView(Reply):
    """A release mechanism and whether its claim holds."""

    name: str = Field(description="As in release.mechanism.")
    version: int = Field(description="Grows when its law changes.")
    status: Status = Field(description="Whether its claim is proved, refuted, or none.")
    claim: str = Field(description="What it promises, in words.")


class CuratorMeta(Reply):
    """What a curator offers."""

    service: Literal["blindopt-curator"] = Field(description="Which of the two services this is.")
    version: str = Field(description="Version of the program.")
    mechanisms: list[MechanismView] = Field(description="Release mechanisms, sound ones first.")
    limits: Limits = Field(description="What one query may ask.")


class ModelerMeta(Reply):
    """What a modeler offers."""

    service: Literal["blindopt-modeler"] = Field(description="Which of the two services this is.")
    version: str = Field(description="Version of the program.")
    algorithms: list[str] = Field(description="Names that a run may choose.")
