"""Modelers as witnesses: their countersignatures under the curator's checkpoints of the shared logs."""

from blindopt import wire
from blindopt.audit.checkpoints import Verifier
from blindopt.errors import Invalid, LogBroken, StateConflict
from service_kit.context.desk import Asked, Desk, Effect
from service_kit.store import audit_log, checkpoints
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply


class Witnesses:
    """From a countersignature on, neither party can tell another history of that grant unnoticed."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def countersign(self, asked: Asked, told: wire.Countersigning) -> StoredReply:
        """Keep a countersigned checkpoint. Raises Invalid where a signature or the history is another."""
        grant = asked.principal.id

        def effect(db: Connection) -> Effect:
            try:
                ours = self._desk.signer.verifier.signed(told.note)
                verifier = Verifier.parse(told.key)
                theirs, time = verifier.countersigned(told.note)
            except LogBroken as error:
                raise Invalid(str(error), [{"field": "note", "message": "this cannot be kept"}]) from None
            size = theirs.head.size
            if ours.origin != f"{self._desk.signer.name}/{grant}" or size == 0:
                raise Invalid("the checkpoint is of another log", [{"field": "note", "message": "its origin"}])
            if audit_log.root_at(db, grant, size) != theirs.head.root:
                raise StateConflict("the checkpoint is not of this history: compare exports of both sides")
            if (pinned := checkpoints.key_of(db, grant)) is None:
                checkpoints.pin(db, grant, verifier.vkey, self._desk.clock())
            elif pinned != verifier.vkey:
                raise StateConflict("this grant is countersigned with another key: ask the owner for a new grant")
            if checkpoints.countersigned(db, grant, size) is None:
                checkpoints.countersign(db, grant, size, told.note, self._desk.clock())
            details = {"grant_id": grant, "size": size, "root": theirs.head.root, "note": told.note}
            reply = wire.Countersigned(grant_id=grant, size=size, time=time)
            return Effect(reply, "checkpoint.countersigned", details)

        return self._desk.once(asked, effect)
