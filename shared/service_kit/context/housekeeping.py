"""Archiving, labelling and deleting what people have made: the same acts for runs, studies and datasets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from blindopt import wire
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.store import labels, stored_replies
from service_kit.store.base import stamp
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply

Check = Callable[[Connection, Any], None]
"""Raises StateConflict if an act is not possible for a row."""


@dataclass(frozen=True, slots=True)
class Housekeeping:
    """Acts on the rows of one table. Each is logged by id alone: notes and tags are in no log."""

    context: ServiceContext
    table: labels.Table
    kind: str
    find: Callable[[Connection, labels.Table, str], Any]
    view: Callable[[Connection, str], BaseModel]

    def archive(self, request: RequestContext, row_id: str, check: Check, *, archived: bool) -> StoredReply:
        """Archive a row, or take it out of the archive. Raises NotFound, and what ``check`` raises."""

        def effect(db: Connection) -> Effect:
            row = self.find(db, self.table, row_id)
            check(db, row)
            if (row.archived_at is not None) != archived:
                at = stamp(self.context.clock()) if archived else None
                labels.change(db, self.table, row_id, archived_at=at)
            return self._effect(self.view(db, row_id), row_id, "archived" if archived else "unarchived")

        return self.context.idempotency.once(request, effect)

    def label(self, request: RequestContext, row_id: str, new_labels: wire.Labels) -> StoredReply:
        """Replace note and tags. Raises NotFound."""

        def effect(db: Connection) -> Effect:
            self.find(db, self.table, row_id)
            labels.set_labels(db, self.table, row_id, new_labels)
            return self._effect(self.view(db, row_id), row_id, "labelled")

        return self.context.idempotency.once(request, effect)

    def delete(
        self, request: RequestContext, row_id: str, remove: Callable[[Connection, Any], dict[str, object]]
    ) -> StoredReply:
        """Delete a row with all that ``remove`` deletes; it returns details for the log. Raises NotFound.

        Stored replies that described it say from now on that it was deleted.
        """

        def effect(db: Connection) -> Effect:
            details = remove(db, self.find(db, self.table, row_id))
            deleted = wire.Deleted(id=row_id, deleted_at=self.context.clock())
            stored_replies.forget(db, row_id, deleted.model_dump_json().encode())
            return self._effect(deleted, row_id, "deleted", **details)

        return self.context.idempotency.once(request, effect)

    def _effect(self, reply: BaseModel, row_id: str, act: str, **details: object) -> Effect:
        return Effect(reply, f"{self.kind}.{act}", {f"{self.kind}_id": row_id, **details}, 200)
