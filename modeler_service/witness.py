"""The modeler as a witness: its copy of the log that it shares with a curator, receipts, countersignatures.

Each reply of the curator carries a receipt: its place in the shared log, and a signed checkpoint up to
there. The copy is made from what this side saw itself; what was lost on the way is fetched, and counts only
where it tells of a request that this side made.
"""

from collections.abc import Callable
from typing import Any

from shared import audit, wire
from shared.audit import Exchange
from shared.client import StudyClient
from shared.errors import LogBroken, ProtocolViolated
from shared.notes import Verifier
from shared.serving.desk import Desk
from shared.serving.store import logs, notes
from shared.serving.store.database import Connection

Asked = Callable[[Connection, str, str | None], bool]
"""Whether this side asked for a measurement under this idempotency key (with a body of this digest)."""


class Witness:
    """Keeps the shared log of one study's grant. Disputes are recorded and end the run."""

    def __init__(self, desk: Desk, study_id: str, actor: str, asked: Asked) -> None:
        self._desk = desk
        self._study_id = study_id
        self._actor = actor
        self._asked = asked

    def trust(self, study: wire.StudyView, expected: str | None) -> None:
        """Pin the curator's key at first sight. ProtocolViolated for another than before, or than expected."""
        key = study.log_key
        if expected not in (None, key):
            raise ProtocolViolated("the curator's log key is not the one that the run was given")
        try:
            Verifier.parse(key)
        except LogBroken as error:
            raise ProtocolViolated(f"the curator's log key cannot be read: {error}") from None

        def work(db: Connection) -> None:
            pinned = notes.key_of(db, self._study_id)
            if pinned is None:
                notes.pin(db, self._study_id, key, self._desk.clock())
            elif pinned != key:
                raise ProtocolViolated("the curator's log key is not the one that it had before")
            self._advance(db, study.grant_id)

        self.guarded(work)

    def tell(self, exchange: Exchange, note: str | None) -> None:
        """Record an exchange by itself."""
        self.guarded(lambda db: self.keep(db, exchange, note), note)

    def keep(self, db: Connection, exchange: Exchange, note: str | None) -> None:
        """Record an exchange with its receipt, in the caller's transaction. Raises ProtocolViolated."""
        logs.append(db, "exchange", actor=self._actor, now=self._desk.clock(), exchange=exchange)
        if note is None or exchange.position is None or exchange.grant_id is None:
            return
        grant, seq = exchange.grant_id, exchange.position
        body, earlier = exchange.body, notes.receipt(db, grant, seq)
        if (earlier is not None and earlier.body != body) or logs.shared_body(db, grant, seq) not in (None, body):
            raise ProtocolViolated(f"the curator gave place {seq} of the shared log twice")
        if earlier is None:
            notes.keep_receipt(db, grant, seq, body, note)
            self._advance(db, grant)

    def _advance(self, db: Connection, grant: str) -> None:
        """Add to the copy what has come without a gap, and hold each receipt against it."""
        vkey = notes.key_of(db, self._study_id)
        if vkey is None:  # its first reply tells the key
            return
        size = logs.shared_size(db, grant)
        while (receipt := notes.receipt(db, grant, size)) is not None:
            head = logs.share(db, grant, receipt.body)
            if self._signed(receipt.note, vkey, grant).head != head:
                raise ProtocolViolated(f"the curator's receipt at place {size} tells another history")
            size += 1

    @staticmethod
    def _signed(note: str, vkey: str, grant: str) -> Any:
        verifier = Verifier.parse(vkey)
        try:
            checkpoint = verifier.signed(note)
        except LogBroken as error:
            raise ProtocolViolated(f"the curator's checkpoint does not verify: {error}") from None
        if checkpoint.origin != f"{verifier.name}/{grant}":
            raise ProtocolViolated("the curator's checkpoint is of another log")
        return checkpoint

    def settle(self, curator: StudyClient, grant: str) -> None:
        """Bring the copy up to the curator's checkpoint, check it, and countersign.

        Raises ProtocolViolated for a history that is not ours, Unreachable and Remote as any request.
        """
        note = curator.checkpoint().note
        with self._desk.database.read() as db:
            vkey = notes.key_of(db, self._study_id)
            if vkey is None:
                return
            checkpoint = self._signed(note, vkey, grant)
            have = logs.shared_size(db, grant)
        while have < checkpoint.head.size:
            entries = curator.shared_entries(have - 1)
            before, have = have, self._taken(grant, entries)
            if have <= before:
                raise ProtocolViolated("the curator's shared log is shorter than its checkpoint")
        with self._desk.database.read() as db:
            ours = logs.root_at(db, grant, checkpoint.head.size)
            countersigned = notes.countersigned(db, grant, checkpoint.head.size)
        if ours != checkpoint.head.root:
            self._dispute("the curator's checkpoint tells another history", note)
        if not checkpoint.head.size or countersigned:
            return
        signed = self._desk.signer.countersign(note, int(self._desk.clock().timestamp()))
        key = f"{grant}:{checkpoint.head.size}"
        curator.countersign(wire.Countersigning(note=signed, key=self._desk.signer.verifier.vkey), key=key)

        def work(db: Connection) -> None:
            if notes.countersigned(db, grant, checkpoint.head.size) is None:
                now = self._desk.clock()
                notes.countersign(db, grant, checkpoint.head.size, signed, now)
                details = {"grant_id": grant, "size": checkpoint.head.size, "root": checkpoint.head.root}
                logs.append(db, "checkpoint.countersigned", actor=self._actor, now=now, details=details)

        self._desk.database.write(work)

    def _taken(self, grant: str, entries: list[wire.AuditEntry]) -> int:
        size: int = self.guarded(lambda db: self._take(db, grant, entries))
        return size

    def _take(self, db: Connection, grant: str, entries: list[wire.AuditEntry]) -> int:
        """Add entries that the curator tells; the size after."""
        size = logs.shared_size(db, grant)
        for entry in entries:
            if entry.seq < size:
                continue
            body = entry.body.encode()
            receipt = notes.receipt(db, grant, entry.seq)
            if entry.seq != size or (receipt is not None and receipt.body != body):
                raise ProtocolViolated(f"place {size} of the curator's shared log is not what this side saw")
            if receipt is None:
                self._check_told(db, grant, size, body)
            logs.share(db, grant, body)
            size += 1
        return size

    def _check_told(self, db: Connection, grant: str, seq: int, body: bytes) -> None:
        """ProtocolViolated for an exchange that this side never began: its reply was lost, its request was not."""
        try:
            exchange = Exchange(**audit.Entry(seq, body, b"", b"").record)
            if exchange.body != body or (exchange.grant_id, exchange.position) != (grant, seq):
                raise ValueError
        except (TypeError, ValueError, LogBroken):
            raise ProtocolViolated(f"place {seq} of the curator's shared log is no exchange of this grant") from None
        key = exchange.idempotency_key
        # A request that was cut on its way, as by a crash of ours, is told with the digest of what came of it.
        body_sha256 = exchange.request_sha256 if exchange.status < 400 else None
        if exchange.method == "POST" and (key is None or not self._asked(db, key, body_sha256)):
            raise ProtocolViolated(f"place {seq} of the curator's shared log tells a query that was never asked")

    def guarded(self, work: Callable[[Connection], Any], note: str | None = None) -> Any:
        """Write; a ProtocolViolated is recorded, with the ``note`` that the curator is held to, before it is raised."""
        try:
            return self._desk.database.write(work)
        except ProtocolViolated as error:
            self._dispute(str(error), note)

    def _dispute(self, what: str, note: str | None) -> None:
        details = {"study_id": self._study_id, "what": what, "note": note}
        now = self._desk.clock()
        self._desk.database.write(
            lambda db: logs.append(db, "log.disputed", actor=self._actor, now=now, details=details)
        )
        raise ProtocolViolated(what)
