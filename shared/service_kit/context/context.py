"""The parts that every use case of a service stands on, opened and closed together."""

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from blindopt.audit.checkpoints import Signer
from service_kit.context.audit_trail import AuditTrail
from service_kit.context.authentication import Authentication
from service_kit.context.idempotency import Idempotency
from service_kit.context.keys import Seal, signer
from service_kit.context.log_summaries import seal_principals
from service_kit.context.outbox import Outbox, Service
from service_kit.settings import ServiceSettings
from service_kit.store import (
    audit_log,
    sealed,
    sessions,  # noqa: F401  registers its table
)
from service_kit.store.base import APPEND_ONLY, METADATA, MIGRATIONS, Clock, Schema
from service_kit.store.database import Connection, Database

_SEALED_TRIED = 8
"""So many sealed values of each table are tried at a start: any that opens shows that the key is the right one."""


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """Database, clock, keys, outbox, authentication, idempotency and audit trail of one service."""

    database: Database
    clock: Clock
    signer: Signer
    seal: Seal
    outbox: Outbox
    authentication: Authentication
    idempotency: Idempotency
    audit_trail: AuditTrail
    archive: Path
    """The folder of archived segments of the log."""

    @classmethod
    def open(
        cls,
        database: Database,
        seal: Seal,
        signer: Signer,
        clock: Clock,
        *,
        checkpoint_file: Path,
        outbox: Outbox | None = None,
        bytes_per_grant_day: int | None = None,
        archive: Path | None = None,
    ) -> Self:
        """Connect the parts; ``checkpoint_file`` keeps a checkpoint of the log outside the database."""
        outbox = outbox or Outbox()
        authentication = Authentication(database, clock, seal.mac)
        audit_trail = AuditTrail(database, signer, clock, outbox, checkpoint_file, bytes_per_grant_day)
        authentication.on_finding = audit_trail.report
        idempotency = Idempotency(database, seal, authentication, audit_trail)
        archive = archive or checkpoint_file.with_name("archive")
        return cls(database, clock, signer, seal, outbox, authentication, idempotency, audit_trail, archive)

    @classmethod
    def of_folder(cls, settings: ServiceSettings, service: Service, schema: Schema, clock: Clock) -> Self:
        """The parts of a service in its data folder: its database, keys and saved checkpoint.

        Raises StateConflict for a key that is missing, or is not the one of this database.
        """
        folder, kind = settings.data_dir, service.removeprefix("blindopt-")

        def keys(db: Connection) -> tuple[Seal, Signer]:
            changes = [record["details"] for record in audit_log.of_kind(db, "key.changed")]
            is_new = not audit_log.head(db).size
            log_changes = [change for change in changes if change["key"] == "log"]
            log_key = signer(folder / "secrets" / "log.key", kind, log_changes, is_new=is_new)
            sealed_by = [str(change["id"]) for change in changes if change["key"] == "seal"]
            seal = Seal.of(folder / "secrets" / "seal.key", sealed_by[-1] if sealed_by else None, is_new=is_new)
            return seal, log_key

        database = Database(
            folder / f"{kind}.sqlite",
            (METADATA, schema.METADATA),
            append_only=(*APPEND_ONLY, *schema.APPEND_ONLY),
            migrations=(MIGRATIONS, schema.MIGRATIONS),
            upgraded=lambda db: seal_principals(db, keys(db)[0].mac),
            url=settings.database_address,
        )
        with database.read() as db:
            seal, log_key = keys(db)
        with database.read() as db:
            seal.check(sealed.values(db, limit=_SEALED_TRIED))
        outbox = Outbox(service, settings.enabled_events, clock)
        per_day = settings.bytes_per_grant_day
        of_log: dict[str, Any] = {"checkpoint_file": folder / "checkpoint", "bytes_per_grant_day": per_day}
        of_log["archive"] = settings.archive_dir
        return cls.open(database, seal, log_key, clock, outbox=outbox, **of_log)

    @property
    def service(self) -> str:
        """``curator`` or ``modeler``."""
        return self.signer.name.partition(".")[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.database.close()

    def close(self) -> None:
        """Finish writes under way, save a last checkpoint, release the files."""
        try:
            self.audit_trail.close()
        finally:
            self.database.close()
