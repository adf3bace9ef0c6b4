"""The modeler as a witness: its copy of the log that it shares with a curator, receipts, countersignatures.

Each reply of the curator carries a receipt: its position in the shared log, and a signed checkpoint up to there. The
copy is made from the exchanges that this side saw itself. Entries of lost replies are fetched, and are accepted only if
they record a request that this side made.
"""

from collections.abc import Callable
from functools import partial

from blindopt import wire
from blindopt.audit import merkle_log
from blindopt.audit.checkpoints import Checkpoint, Verifier
from blindopt.audit.merkle_log import Exchange, Head
from blindopt.client import StudyClient
from blindopt.errors import LogBroken, ProtocolViolated
from modeler_service.runs.notices import notify_disputed
from service_kit.context.context import ServiceContext
from service_kit.store import audit_log, checkpoints
from service_kit.store.database import Connection

IsOwnQuery = Callable[[Connection, str, str | None], bool]
"""Returns whether this side sent a query under this idempotency key, with a body of this digest (None: of any)."""


class Witness:
    """Keeps the shared log of one study's grant. A caller that catches a ProtocolViolated calls ``dispute``."""

    def __init__(self, context: ServiceContext, study_id: str, actor: str, is_own_query: IsOwnQuery) -> None:
        self._context = context
        self._study_id = study_id
        self._actor = actor
        self._is_own_query = is_own_query
        self._grant: str | None = None
        self._note: str | None = None
        """The last checkpoint that the curator signed, right or wrong."""

    def trust(self, study: wire.StudyView, expected: str | None) -> None:
        """Pin the curator's key at first sight. Raises ProtocolViolated if it is not the pinned or the expected key."""
        key = study.log_key
        if expected not in (None, key):
            raise ProtocolViolated("the curator's log key is not the one that the run was given")
        try:
            Verifier.parse(key)
        except LogBroken as error:
            raise ProtocolViolated(f"the curator's log key cannot be read: {error}") from None

        if self._grant not in (None, study.grant_id):
            raise ProtocolViolated("the curator's receipt is of another grant than its study tells")
        self._grant = study.grant_id

        def work(db: Connection) -> None:
            pinned = checkpoints.key_of(db, self._study_id)
            if pinned is None:
                checkpoints.pin(db, self._study_id, key, self._context.clock())
            elif pinned != key:
                raise ProtocolViolated("the curator's log key is not the one that it had before")
            self._advance(db, study.grant_id)

        self._context.database.write(work)

    def record(self, exchange: Exchange, note: str | None) -> None:
        """Record an exchange with its receipt, in a transaction of its own. Raises ProtocolViolated."""
        self._context.database.write(lambda db: self.record_in(db, exchange, note))

    def record_in(self, db: Connection, exchange: Exchange, note: str | None) -> None:
        """Record an exchange with its receipt, in the caller's transaction. Raises ProtocolViolated."""
        audit_log.append(db, "exchange", actor=self._actor, now=self._context.clock(), exchange=exchange)
        if note is None or exchange.position is None or exchange.grant_id is None:
            return
        self._note = note
        grant, seq = exchange.grant_id, exchange.position
        if self._grant not in (None, grant):
            raise ProtocolViolated("the curator's receipt is of another grant's log")
        self._grant = grant
        body, earlier = exchange.body, checkpoints.receipt(db, grant, seq)
        if (earlier is not None and earlier.body != body) or audit_log.shared_body(db, grant, seq) not in (None, body):
            raise ProtocolViolated(f"the curator gave place {seq} of the shared log twice")
        if earlier is None:
            self._check_receipt(db, grant, seq, note)
            checkpoints.keep_receipt(db, grant, seq, body, note)
            self._advance(db, grant)

    def _check_receipt(self, db: Connection, grant: str, seq: int, note: str) -> None:
        """Check a receipt against the curator's key, and against the copy as far as that reaches."""
        vkey, size = checkpoints.key_of(db, self._study_id), audit_log.shared_size(db, grant)
        if vkey is None or seq == size:  # no key before the first reply; at the end of the copy ``_advance`` checks it
            return
        head = self._checkpoint(note, vkey, grant).head
        if seq < size and head.root != audit_log.root_at(db, grant, seq + 1):
            raise ProtocolViolated(f"the curator's receipt at place {seq} tells another history")

    def _advance(self, db: Connection, grant: str) -> None:
        """Add the exchanges without a gap to the copy, and check each receipt against it."""
        vkey = checkpoints.key_of(db, self._study_id)
        if vkey is None:  # no key before the first reply
            return
        size = audit_log.shared_size(db, grant)
        while (receipt := checkpoints.receipt(db, grant, size)) is not None:
            head = audit_log.share(db, grant, receipt.body)
            if self._checkpoint(receipt.note, vkey, grant).head != head:
                raise ProtocolViolated(f"the curator's receipt at place {size} tells another history")
            size += 1

    def _key(self, db: Connection) -> str:
        vkey = checkpoints.key_of(db, self._study_id)
        assert vkey is not None, "a log is fetched after its key is pinned"
        return vkey

    @staticmethod
    def _checkpoint(note: str, vkey: str, grant: str) -> Checkpoint:
        verifier = Verifier.parse(vkey)
        try:
            checkpoint = verifier.verify(note)
        except LogBroken as error:
            raise ProtocolViolated(f"the curator's checkpoint does not verify: {error}") from None
        if checkpoint.origin != f"{verifier.name}/{grant}":
            raise ProtocolViolated("the curator's checkpoint is of another log")
        return checkpoint

    def settle(self, curator: StudyClient, grant: str) -> None:
        """Bring the copy up to the curator's checkpoint, check it, and countersign.

        Raises ProtocolViolated for a history that is not ours, Unreachable and Remote as any request.
        """
        with self._context.database.read() as db:
            last_receipt = checkpoints.last_receipt(db, grant)
        note = self._note = curator.checkpoint().note
        with self._context.database.read() as db:
            vkey = checkpoints.key_of(db, self._study_id)
            if vkey is None:
                return
            checkpoint = self._checkpoint(note, vkey, grant)
            have = audit_log.shared_size(db, grant)
        size = checkpoint.head.size
        if size <= last_receipt:
            raise ProtocolViolated(
                f"the curator's checkpoint of size {size} leaves out place {last_receipt}, which it gave"
            )
        while have < size:
            entries = curator.shared_entries(have - 1)
            before = have
            have = self._context.database.write(partial(self._add_entries, grant=grant, entries=entries))
            if have <= before:
                raise ProtocolViolated("the curator's shared log is shorter than its checkpoint")
        with self._context.database.read() as db:
            root = audit_log.root_at(db, grant, size)
            signed = checkpoints.countersignature(db, grant, size)
        if root != checkpoint.head.root:
            raise ProtocolViolated("the curator's checkpoint tells another history")
        if not size:
            return
        if signed is None:
            signed = self._countersign(grant, checkpoint.head, note)
        # Sent again if it was signed before: the curator may not have received it.
        curator.countersign(
            wire.Countersigning(note=signed, key=self._context.signer.verifier.vkey), key=f"{grant}:{size}"
        )

    def _countersign(self, grant: str, head: Head, note: str) -> str:
        """Sign a checkpoint, and record the signature before it is sent to the curator."""
        now = self._context.clock()
        signed = self._context.signer.countersign(note, int(now.timestamp()))

        def work(db: Connection) -> str:
            if (earlier := checkpoints.countersignature(db, grant, head.size)) is not None:  # another run signed it
                return earlier
            checkpoints.countersign(db, grant, head.size, signed, now)
            details = {"grant_id": grant, "size": head.size, "root": head.root}
            audit_log.append(db, "checkpoint.countersigned", actor=self._actor, now=now, details=details)
            return signed

        return self._context.database.write(work)

    def _add_entries(self, db: Connection, grant: str, entries: list[wire.AuditEntry]) -> int:
        """Add entries that the curator sent to the copy, after checks; return its size then."""
        size = audit_log.shared_size(db, grant)
        for entry in entries:
            if entry.seq < size:
                continue
            body = entry.body.encode()
            receipt = checkpoints.receipt(db, grant, entry.seq)
            if entry.seq != size or (receipt is not None and receipt.body != body):
                raise ProtocolViolated(f"place {size} of the curator's shared log is not what this side saw")
            if receipt is None:
                self._check_entry(db, grant, size, body)
            head = audit_log.share(db, grant, body)
            if receipt is not None and self._checkpoint(receipt.note, self._key(db), grant).head != head:
                raise ProtocolViolated(f"the curator's receipt at place {size} tells another history")
            size += 1
        return size

    def _check_entry(self, db: Connection, grant: str, seq: int, body: bytes) -> None:
        """Raise ProtocolViolated for an entry without a receipt that records no request of this side."""
        try:
            exchange = Exchange(**merkle_log.Entry(seq, body, b"", b"").record)
            if exchange.body != body or type(exchange.status) is not int:
                raise ValueError
            if (exchange.grant_id, exchange.position) != (grant, seq):
                raise ValueError
            if exchange.study_id != self._study_id and exchange.status < 400:  # a mistyped study is refused
                raise ValueError
        except (TypeError, ValueError, LogBroken):
            raise ProtocolViolated(f"place {seq} of the curator's shared log is no exchange of this grant") from None
        key = exchange.idempotency_key
        # A request that was cut off, as by a crash of this side, is recorded with the digest of the part that arrived.
        body_sha256 = exchange.request_sha256 if exchange.status < 400 else None
        if exchange.method == "GET" or (key is not None and self._is_own_query(db, key, body_sha256)):
            return
        if not _is_forgotten(db, grant, seq):
            raise ProtocolViolated(f"place {seq} of the curator's shared log tells a query that was never asked")

    def dispute(self, what: str) -> None:
        """Record a violation of the protocol, with the last checkpoint that the curator signed."""
        details = {"study_id": self._study_id, "grant_id": self._grant, "what": what, "note": self._note}
        now = self._context.clock()

        def work(db: Connection) -> None:
            audit_log.append(db, "log.disputed", actor=self._actor, now=now, details=details)
            notify_disputed(db, self._context.outbox, self._study_id)

        self._context.database.write(work)


def record_restore(db: Connection, context: ServiceContext) -> None:
    """Record the restore of a backup, with the known size of each shared log: later entries are forgotten."""
    sizes = {
        grant: max(audit_log.shared_size(db, grant), checkpoints.last_receipt(db, grant) + 1)
        for grant in checkpoints.grants(db)
    }
    context.audit_trail.record_restored(db, {"known": sizes})


def _is_forgotten(db: Connection, grant: str, seq: int) -> bool:
    """Whether this side may have lost an exchange: a backup was restored that ends before this position.

    This holds up to the first position that it was given after the restore.
    """
    for record in audit_log.of_kind(db, "log.restored"):
        size = record["details"]["known"].get(grant, 0)
        if size <= seq < checkpoints.next_receipt(db, grant, size):
            return True
    return False
