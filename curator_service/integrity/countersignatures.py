"""Modelers as witnesses: their countersignatures under the curator's checkpoints of the shared logs."""

from blindopt import wire
from blindopt.audit.checkpoints import Countersignature, Verifier
from blindopt.errors import Invalid, LogBroken, StateConflict
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.store import audit_log, checkpoints, segments
from service_kit.store.base import stamp
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply


class Countersignatures:
    """Stores countersignatures: after one, neither party can change the history of that grant unnoticed."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def countersign(self, request: RequestContext, countersigning: wire.Countersigning) -> StoredReply:
        """Store a countersigned checkpoint. Raises Invalid if a signature or the history is another."""
        grant = request.principal.id

        def effect(db: Connection) -> Effect:
            try:
                self._context.signer.first.verify(countersigning.note, grant)
                verifier = Verifier.parse(countersigning.key)
                theirs, time = verifier.verify_countersignature(countersigning.note)
            except LogBroken as error:
                raise Invalid.at("note", str(error)) from None
            size = theirs.head.size
            if size == 0:
                raise Invalid.at("note", "its size is 0: no exchange is in it")
            segments.check_present(db, grant, size - 1)
            if audit_log.root_at(db, grant, size) != theirs.head.root:
                raise StateConflict("the checkpoint is not of this history: compare exports of both sides")
            if (pinned := checkpoints.key_of(db, grant)) is None:
                checkpoints.pin(db, grant, verifier.vkey, self._context.clock())
            elif not _follows(pinned, verifier, countersigning.note):
                raise StateConflict("this grant is countersigned with another key: ask the owner for a new grant")
            if checkpoints.COUNTERSIGNATURES.at(db, grant, size) is None:
                row = Countersignature(size, countersigning.note)
                checkpoints.COUNTERSIGNATURES.add(db, grant, row, created_at=stamp(self._context.clock()))
            details = {"grant_id": grant, "size": size, "root": theirs.head.root, "note": countersigning.note}
            reply = wire.Countersigned(grant_id=grant, size=size, time=time)
            return Effect(reply, "checkpoint.countersigned", details)

        return self._context.idempotency.once(request, effect)


def _follows(pinned: str, key: Verifier, note: str) -> bool:
    """Whether a key that countersigned a note is the pinned one, or followed it."""
    try:
        return Verifier.parse(pinned).countersigner(note)[2] == key
    except LogBroken:
        return False
