"""The modeler as a witness: its copy of the log that it shares with a curator, receipts, countersignatures.

Each reply of the curator carries a receipt: its place in the shared log, and a signed checkpoint up to
there. The copy is made from what this side saw itself; what was lost on the way is fetched, and counts only
where it tells of a request that this side made.
"""

from collections.abc import Callable
from typing import Any

from blindopt import wire
from blindopt.audit import merkle_log
from blindopt.audit.checkpoints import Verifier
from blindopt.audit.merkle_log import Exchange, Head
from blindopt.client import StudyClient
from blindopt.errors import LogBroken, ProtocolViolated
from modeler_service.runs.notices import disputed
from service_kit.context.context import ServiceContext
from service_kit.store import audit_log, checkpoints
from service_kit.store.database import Connection

Asked = Callable[[Connection, str, str | None], bool]
"""Whether this side asked for a measurement under this idempotency key (with a body of this digest)."""


class Witness:
    """Keeps the shared log of one study's grant. Who catches a ProtocolViolated of it records it (``dispute``)."""

    def __init__(self, context: ServiceContext, study_id: str, actor: str, asked: Asked) -> None:
        self._context = context
        self._study_id = study_id
        self._actor = actor
        self._asked = asked
        self._grant: str | None = None
        self._note: str | None = None
        """What the curator signed last, true or not."""

    def trust(self, study: wire.StudyView, expected: str | None) -> None:
        """Pin the curator's key at first sight. ProtocolViolated for another than before, or than expected."""
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

    def tell(self, exchange: Exchange, note: str | None) -> None:
        """Record an exchange by itself."""
        self._context.database.write(lambda db: self.keep(db, exchange, note))

    def keep(self, db: Connection, exchange: Exchange, note: str | None) -> None:
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
        """Hold a receipt against the curator's key, and against the copy where that reaches so far."""
        vkey, size = checkpoints.key_of(db, self._study_id), audit_log.shared_size(db, grant)
        if vkey is None or seq == size:  # its first reply tells the key; at its end the copy checks it itself
            return
        told = self._signed(note, vkey, grant).head
        if seq < size and told.root != audit_log.root_at(db, grant, seq + 1):
            raise ProtocolViolated(f"the curator's receipt at place {seq} tells another history")

    def _advance(self, db: Connection, grant: str) -> None:
        """Add to the copy what has come without a gap, and hold each receipt against it."""
        vkey = checkpoints.key_of(db, self._study_id)
        if vkey is None:  # its first reply tells the key
            return
        size = audit_log.shared_size(db, grant)
        while (receipt := checkpoints.receipt(db, grant, size)) is not None:
            head = audit_log.share(db, grant, receipt.body)
            if self._signed(receipt.note, vkey, grant).head != head:
                raise ProtocolViolated(f"the curator's receipt at place {size} tells another history")
            size += 1

    def _key(self, db: Connection) -> str:
        vkey = checkpoints.key_of(db, self._study_id)
        assert vkey is not None, "a log is fetched after its key is pinned"
        return vkey

    @staticmethod
    def _signed(note: str, vkey: str, grant: str) -> Any:
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
            known = checkpoints.last_receipt(db, grant)
        note = self._note = curator.checkpoint().note
        with self._context.database.read() as db:
            vkey = checkpoints.key_of(db, self._study_id)
            if vkey is None:
                return
            checkpoint = self._signed(note, vkey, grant)
            have = audit_log.shared_size(db, grant)
        size = checkpoint.head.size
        if size <= known:
            raise ProtocolViolated(f"the curator's checkpoint of size {size} leaves out place {known}, which it gave")
        while have < size:
            entries = curator.shared_entries(have - 1)
            before, have = have, self._taken(grant, entries)
            if have <= before:
                raise ProtocolViolated("the curator's shared log is shorter than its checkpoint")
        with self._context.database.read() as db:
            ours = audit_log.root_at(db, grant, size)
            signed = checkpoints.countersigned(db, grant, size)
        if ours != checkpoint.head.root:
            raise ProtocolViolated("the curator's checkpoint tells another history")
        if not size:
            return
        if signed is None:
            signed = self._countersign(grant, checkpoint.head, note)
        # Told again where it was signed before: the curator may not have got it.
        curator.countersign(
            wire.Countersigning(note=signed, key=self._context.signer.verifier.vkey), key=f"{grant}:{size}"
        )

    def _countersign(self, grant: str, head: Head, note: str) -> str:
        """Sign a checkpoint, and record it before the curator has it."""
        now = self._context.clock()
        signed = self._context.signer.countersign(note, int(now.timestamp()))

        def work(db: Connection) -> str:
            if (earlier := checkpoints.countersigned(db, grant, head.size)) is not None:  # by another run
                return earlier
            checkpoints.countersign(db, grant, head.size, signed, now)
            details = {"grant_id": grant, "size": head.size, "root": head.root}
            audit_log.append(db, "checkpoint.countersigned", actor=self._actor, now=now, details=details)
            return signed

        return self._context.database.write(work)

    def _taken(self, grant: str, entries: list[wire.AuditEntry]) -> int:
        return self._context.database.write(lambda db: self._take(db, grant, entries))

    def _take(self, db: Connection, grant: str, entries: list[wire.AuditEntry]) -> int:
        """Add entries that the curator tells; the size after."""
        size = audit_log.shared_size(db, grant)
        for entry in entries:
            if entry.seq < size:
                continue
            body = entry.body.encode()
            receipt = checkpoints.receipt(db, grant, entry.seq)
            if entry.seq != size or (receipt is not None and receipt.body != body):
                raise ProtocolViolated(f"place {size} of the curator's shared log is not what this side saw")
            if receipt is None:
                self._check_told(db, grant, size, body)
            head = audit_log.share(db, grant, body)
            if receipt is not None and self._signed(receipt.note, self._key(db), grant).head != head:
                raise ProtocolViolated(f"the curator's receipt at place {size} tells another history")
            size += 1
        return size

    def _check_told(self, db: Connection, grant: str, seq: int, body: bytes) -> None:
        """ProtocolViolated for an exchange that this side never began: its reply was lost, its request was not."""
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
        # A request that was cut on its way, as by a crash of ours, is told with the digest of what came of it.
        body_sha256 = exchange.request_sha256 if exchange.status < 400 else None
        if exchange.method == "GET" or (key is not None and self._asked(db, key, body_sha256)):
            return
        if not _is_forgotten(db, grant, seq):
            raise ProtocolViolated(f"place {seq} of the curator's shared log tells a query that was never asked")

    def dispute(self, what: str) -> None:
        """Record what the curator did, with what it signed last."""
        details = {"study_id": self._study_id, "grant_id": self._grant, "what": what, "note": self._note}
        now = self._context.clock()

        def work(db: Connection) -> None:
            audit_log.append(db, "log.disputed", actor=self._actor, now=now, details=details)
            disputed(db, self._context.outbox, self._study_id)

        self._context.database.write(work)


def restored(db: Connection, context: ServiceContext) -> None:
    """Record the restore of a backup, with how far each shared log was known: what came after it is forgotten."""
    context.audit_trail.record_restored(db, {"known": {grant: _known(db, grant) for grant in checkpoints.grants(db)}})


def _known(db: Connection, grant: str) -> int:
    return max(audit_log.shared_size(db, grant), checkpoints.last_receipt(db, grant) + 1)


def _is_forgotten(db: Connection, grant: str, seq: int) -> bool:
    """Whether this side may have had an exchange and lost it: a backup was restored that ends before this place.

    Only up to the first place that it was given after that.
    """
    for record in audit_log.of_kind(db, "log.restored"):
        known = record["details"]["known"].get(grant, 0)
        if known <= seq < checkpoints.next_receipt(db, grant, known):
            return True
    return False
