"""The logs and signatures of a service, streamed from its database for an export or a verification."""

from collections.abc import Iterator

from blindopt.audit.checkpoints import Checkpoint, Signer
from blindopt.audit.merkle_log import Entry
from service_kit.store import audit_log, checkpoints
from service_kit.store.database import Connection


class StoredRecords:
    """The records of one party (``blindopt.audit.verification.Records``), as one transaction sees them.

    ``saved`` is the checkpoint that was kept outside the database, or None.
    """

    def __init__(self, db: Connection, signer: Signer, saved: str | None) -> None:
        self._db = db
        self._signer = signer
        self._saved = saved
        self._party = signer.name.partition(".")[0]
        self.service = f"blindopt-{self._party}"
        self.key = signer.verifier.vkey
        self.keys = dict(checkpoints.keys(db))
        self.size = audit_log.head(db).size
        """The number of records of the own log."""

    def log(self, grant: str | None, after: int = -1) -> Iterator[Entry]:
        """Stream the own log, or the one shared with a grant; entries ``after`` a position."""
        return audit_log.walk(self._db, grant, after=after)

    def grants(self) -> set[str]:
        """The grants that have a shared log, or receipts: a run may end before the log is fetched that they are of."""
        return {*audit_log.grants(self._db), *checkpoints.grants(self._db)}

    def of_kind(self, kind: str, grant: str | None) -> Iterator[str]:
        """Stream the notes of one kind about one log. Checkpoints are signed now, and the saved one comes last."""
        if kind == "checkpoint":
            yield from self._checkpoints(grant)
        elif grant is not None and kind == "receipt":
            yield from (row.note for row in checkpoints.receipts(self._db, grant))
        elif grant is not None and kind == "countersignature":
            yield from checkpoints.countersignatures(self._db, grant)

    def _checkpoints(self, grant: str | None) -> Iterator[str]:
        if grant is None or self._party == "curator":  # the curator keeps the shared log and signs it
            origin = f"{self._signer.name}/{grant or 'log'}"
            yield self._signer.sign(Checkpoint(origin, audit_log.head(self._db, grant)))
        if grant is None and self._saved is not None:
            yield self._saved
