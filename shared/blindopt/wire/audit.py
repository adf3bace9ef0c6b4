"""What both services have: the log, health, what they offer."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from blindopt.wire.base import Page, Reply, Request, Sha256
from blindopt.wire.releases import Status
from blindopt.wire.studies import Limits


class AuditEntry(Reply):
    """A record of the log: ``body`` is the canonical text that was hashed."""

    seq: int = Field(description="Place in the log, from 0, without a gap.")
    body: str = Field(description="RFC 8785 text of the record, as it was hashed.")
    leaf: Sha256 = Field(description="SHA-256 of 0x00 and the body.")
    peaks: Annotated[str, Field(pattern=r"^([0-9a-f]{64})+$", description="Frontier of the Merkle tree, in hex.")]
    grant_id: str | None = Field(None, description="The grant whose shared log it is in; null: the service's own log.")


class AuditPage(Page):
    """A page of the audit log."""

    entries: list[AuditEntry] = Field(description="In the order of the log.")


class Checkpoint(Reply):
    """Size and root of a log, signed."""

    size: int = Field(description="Number of records.")
    root: Sha256 = Field(description="Root of the RFC 6962 tree over all of them.")
    note: str = Field(description="A C2SP checkpoint: origin, size and root, signed (Ed25519).")


class Consistency(Reply):
    """Proof that a log has only grown between two sizes (RFC 6962, section 2.1.2)."""

    first: int = Field(description="Records of the older log.")
    second: int = Field(description="Records of the newer one.")
    proof: list[Sha256] = Field(description="Hashes of subtrees, in the order of the RFC.")


class Verification(Reply):
    """A look at the whole log: each record, the tree over them, and the checkpoint kept beside the database."""

    sound: bool = Field(description="Whether everything was as it should be.")
    problem: str | None = Field(description="The first record that is wrong, and how; null where none is.")
    size: int = Field(ge=0, description="Records of the service's own log that were walked.")
    root: str | None = Field(description="Root of the tree over them; null where the log does not verify.")
    shared_logs: int = Field(ge=0, description="Logs of grants that were walked too.")
    at: datetime = Field(description="When the walk began.")
    seconds: float = Field(ge=0, description="How long it took.")


class VerificationState(Reply):
    """When the log was last verified."""

    sound_at_start: bool = Field(description="Whether the end of the log was as it should be when the service began.")
    started_at: datetime = Field(description="When the service began.")
    last: Verification | None = Field(description="The last walk over all of it since then; null: there was none.")


class Countersigning(Request):
    """A modeler's word that it knows a shared log up to a checkpoint of the curator, and that it only grew."""

    note: str = Field(min_length=1, max_length=4_000, description="The checkpoint with the countersignature added.")
    key: str = Field(
        min_length=1, max_length=400, description="The modeler's C2SP verifier key; the first one of a grant is kept."
    )


class Countersigned(Reply):
    """A countersigned checkpoint was kept."""

    grant_id: str = Field(description="The grant whose shared log it is about.")
    size: int = Field(description="How many exchanges it covers.")
    time: int = Field(description="When the modeler signed, in Unix seconds.")


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
    log_key: str = Field(description="C2SP verifier key of its checkpoints.")
    mechanisms: list[MechanismView] = Field(description="Release mechanisms, sound ones first.")
    limits: Limits = Field(description="What one query may ask.")


class ModelerMeta(Reply):
    """What a modeler offers."""

    service: Literal["blindopt-modeler"] = Field(description="Which of the two services this is.")
    version: str = Field(description="Version of the program.")
    log_key: str = Field(description="C2SP verifier key of its checkpoints.")
    algorithms: list[str] = Field(description="Names that a run may choose.")
    exports: list[Literal["json", "csv", "parquet"]] = Field(
        description="What a run can be exported as here: parquet where pyarrow is installed."
    )
