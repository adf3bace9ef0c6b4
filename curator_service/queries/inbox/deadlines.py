"""Background work of the inbox: deadlines that pass, and versions that a crash left begun."""

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from blindopt.errors import AuditUnavailable, BlindoptError, StorageUnavailable
from curator_service.queries import table as inbox_store
from curator_service.queries.answer_versions import AnswerVersions
from curator_service.queries.inbox.inbox import Inbox
from service_kit.background import Background
from service_kit.context.context import ServiceContext
from service_kit.store.base import moment, stamp
from service_kit.store.database import StoreFault
from service_kit.web.wakeups import INBOX, Wakeups

log = logging.getLogger("blindopt.overdue")
LONGEST_SECONDS = 60.0
AGAIN_SECONDS = 1.0


class Deadlines(Background):
    """A thread that checks the deadlines at the start, at each deadline, and when the inbox changes."""

    def __init__(self, context: ServiceContext, inbox: Inbox, versions: AnswerVersions, wakeups: Wakeups) -> None:
        self._context = context
        self._inbox = inbox
        self._versions = versions
        super().__init__("overdue", self._look, every_s=AGAIN_SECONDS)
        wakeups.on(INBOX, self.wake)

    def _look(self) -> float:
        try:
            return self.look()
        except (BlindoptError, StoreFault):  # the database cannot be written: its requests say so
            return AGAIN_SECONDS

    def look(self) -> float:
        """Publish versions that were begun, decline what is past its deadline; the seconds until the next look."""
        with self._context.database.read() as db:
            owed, late = inbox_store.owed(db), inbox_store.overdue(db, stamp(self._context.clock()))
        successes = [self._settle(owed), *(self._try(query_id, self._expire) for query_id in late)]
        with self._context.database.read() as db:
            due = inbox_store.next_due(db)
        if not all(successes):
            return AGAIN_SECONDS
        if due is None:
            return LONGEST_SECONDS
        remaining: timedelta = moment(due) - self._context.clock()
        return min(max(remaining.total_seconds(), 0.0), LONGEST_SECONDS)

    def _settle(self, owed: list[str]) -> bool:
        """Publish begun versions: all together, or query by query if one has a fault."""
        try:
            self._versions.settle(owed)
        except (AuditUnavailable, StorageUnavailable):
            raise
        except Exception:
            successes = [self._try(query_id, lambda name: self._versions.settle([name])) for query_id in owed]
            return all(successes)
        return True

    def _expire(self, query_id: str) -> None:
        self._context.database.write(partial(self._inbox.expire, query_id=query_id))
        self._inbox.publish([query_id])

    def _try(self, query_id: str, act: Callable[[str], None]) -> bool:
        """Whether ``act`` succeeded. A fault of one query is logged; a fault that concerns all of them is raised."""
        try:
            act(query_id)
        except (AuditUnavailable, StorageUnavailable):
            raise
        except Exception as error:  # its text may quote a value
            log.error("fault", extra={"fields": {"query": query_id, "kind": type(error).__name__}})
            return False
        return True
