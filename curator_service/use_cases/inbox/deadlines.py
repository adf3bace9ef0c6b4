"""What nobody waits for at a context: dates that pass, and versions that a crash left begun."""

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from blindopt.errors import AuditUnavailable, BlindoptError, StorageUnavailable
from curator_service.store import inbox as table
from curator_service.use_cases.inbox.inbox import Inbox
from curator_service.use_cases.queries.answer_versions import Versions
from curator_service.use_cases.queries.wakeups import INBOX, Bells
from service_kit.context.context import ServiceContext
from service_kit.store.base import moment, stamp
from service_kit.store.database import StoreFault

log = logging.getLogger("blindopt.overdue")
LONGEST_SECONDS = 60.0
AGAIN_SECONDS = 1.0
CLOSE_SECONDS = 5.0


class Overdue:
    """A thread that looks at the start, at each date, and when something was asked."""

    def __init__(self, context: ServiceContext, inbox: Inbox, versions: Versions, bells: Bells) -> None:
        self._context = context
        self._inbox = inbox
        self._versions = versions
        self._closing = False
        self._again = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="overdue")
        bells.also(INBOX, self._again.set)

    def start(self) -> None:
        """Look now, and from now on."""
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._closing = True
        self._again.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def _serve(self) -> None:
        while not self._closing:
            self._again.clear()
            try:
                seconds = self.look()
            except (BlindoptError, StoreFault):  # the database cannot be written: its requests say so
                seconds = AGAIN_SECONDS
            except Exception as error:  # its text may quote a value
                log.error("fault", extra={"fields": {"kind": type(error).__name__}})
                seconds = AGAIN_SECONDS
            self._again.wait(seconds)

    def look(self) -> float:
        """Tell what is owed, let dates pass that have passed; the seconds until it is worth while to look again."""
        with self._context.database.read() as db:
            owed, late = table.owed(db), table.overdue(db, stamp(self._context.clock()))
        well = [self._settle(owed), *(self._alone(query_id, self._pass) for query_id in late)]
        with self._context.database.read() as db:
            due = table.next_due(db)
        if not all(well):
            return AGAIN_SECONDS
        if due is None:
            return LONGEST_SECONDS
        left: timedelta = moment(due) - self._context.clock()
        return min(max(left.total_seconds(), 0.0), LONGEST_SECONDS)

    def _settle(self, owed: list[str]) -> bool:
        """Tell what is owed: all together, or each by itself where one has a fault."""
        try:
            self._versions.settle(owed)
        except (AuditUnavailable, StorageUnavailable):
            raise
        except Exception:
            well = [self._alone(query_id, lambda one: self._versions.settle([one])) for query_id in owed]
            return all(well)
        return True

    def _pass(self, query_id: str) -> None:
        self._context.database.write(partial(self._inbox.overdue, query_id=query_id))
        self._inbox.changed([query_id])

    def _alone(self, query_id: str, act: Callable[[str], None]) -> bool:
        """Whether it went well for one query. A fault in one stops no other; what stops all of them is raised."""
        try:
            act(query_id)
        except (AuditUnavailable, StorageUnavailable):
            raise
        except Exception as error:  # its text may quote a value
            log.error("fault", extra={"fields": {"query": query_id, "kind": type(error).__name__}})
            return False
        return True
