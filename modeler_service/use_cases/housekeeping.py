"""Archiving, labelling and deleting runs."""

from collections.abc import Callable
from pathlib import Path

from blindopt import wire
from blindopt.errors import StateConflict
from modeler_service import store
from modeler_service.runs.candidates import keep_candidates
from modeler_service.runs.query_keys import unanswered
from modeler_service.store import RunRow
from service_kit.context.context import ServiceContext
from service_kit.context.housekeeping import Housekeeping
from service_kit.context.request import RequestContext
from service_kit.store.database import Connection
from service_kit.store.labels import tags_in_use
from service_kit.store.stored_replies import StoredReply


class RunHousekeeping:
    """Acts on ended runs, and the files of candidates that go with them. ``folder`` has these files."""

    def __init__(self, context: ServiceContext, folder: Path, view: Callable[[Connection, str], wire.RunView]) -> None:
        self._context = context
        self._folder = folder
        self._runs = Housekeeping(context, store.runs, "run", lambda db, _, run: store.find_run(db, run), view)
        self._drop_candidates()  # a crash may have come between a deletion and that of its file

    def label(self, request: RequestContext, run_id: str, labels: wire.Labels) -> StoredReply:
        """Replace note and tags of a run. Raises NotFound."""
        return self._runs.label(request, run_id, labels)

    def tags(self) -> list[str]:
        """The tags of runs that are not archived."""
        with self._context.database.read() as db:
            return tags_in_use(db, store.runs)

    def archive(self, request: RequestContext, run_id: str, *, archived: bool) -> StoredReply:
        """Archive an ended run, which keeps all that it has, or take it out of the archive. Raises StateConflict."""
        return self._runs.archive(request, run_id, _check_ended, archived=archived)

    def delete(self, request: RequestContext, run_id: str) -> StoredReply:
        """Delete an ended run with its answers and messages; the logs stay. Raises StateConflict.

        The candidates of its release are deleted too, unless another run has them.
        """

        def remove(db: Connection, row: RunRow) -> dict[str, object]:
            _check_ended(db, row)
            details: dict[str, object] = {"unanswered": unanswered(db, run_id)}
            store.delete_run(db, run_id)
            return details

        reply = self._runs.delete(request, run_id, remove)
        self._drop_candidates()
        return reply

    def _drop_candidates(self) -> None:
        with self._context.database.read() as db:
            keep_candidates(self._folder, store.release_digests(db))


def _check_ended(db: Connection, row: RunRow) -> None:
    if row.ended_at is None:
        raise StateConflict("the run has not ended: stop it first")
