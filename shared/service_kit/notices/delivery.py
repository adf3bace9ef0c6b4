"""The courier: delivers notices in their order, at least once, and tells how that stands."""

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from blindopt import wire
from blindopt.errors import BlindoptError, Busy
from service_kit.context.context import ServiceContext
from service_kit.context.outbox import Service, body_of, new_notice, view
from service_kit.notices.receiver import Receiver
from service_kit.store import notices as store
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection, StoreFault

log = logging.getLogger("blindopt.notices")
LOOK_SECONDS = 0.5
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 3_600.0
GIVE_UP_AFTER = timedelta(days=3)
ATTEMPTS_MIN = 3  # of a notice that is old already when its turn comes
KEPT = timedelta(days=30)
PRUNE_SECONDS = 3_600.0
CLOSE_SECONDS = 5.0
NOWHERE = "no receiver is set: set NOTIFY_URL and NOTIFY_SECRET_FILE where this service runs"
STALE = "it waited for 30 days: no receiver was set, or the service did not run"


class NoticeDelivery:
    """One thread that sends what the outbox holds, if there is a receiver.

    The oldest goes first, and the others wait behind it: a receiver sees them in the order in which they happened.
    What could not be delivered is tried again ever less often, for three days. A notice is sent again where a crash
    came between its arrival and our note of it, under the same id.
    """

    def __init__(self, context: ServiceContext, service: Service, receiver: Receiver | None) -> None:
        self._context = context
        self._service = service
        self._receiver = receiver
        self._closing = threading.Event()
        self._testing = threading.Lock()
        self._prune_at = datetime.min.replace(tzinfo=context.clock().tzinfo)
        # A daemon: a receiver that does not answer must not keep the process from ending.
        self._thread = threading.Thread(target=self._serve, daemon=True, name="notices")

    def start(self) -> None:
        """Deliver from now on."""
        if self._receiver is not None:
            self._thread.start()

    def close(self) -> None:
        """Deliver no more; what waits goes at the next start."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    # --- what people ask ----------------------------------------------------------------------------

    def page(self, after: int, limit: int) -> list[tuple[int, wire.NoticeView]]:
        """Notices with their sequence numbers."""
        with self._context.database.read() as db:
            return [(row.seq, view(row)) for row in store.page(db, after=after, limit=limit)]

    def test(self) -> wire.NoticeTest:
        """Send a notice that is not kept. Where it arrives, what waits goes at once. Raises Busy."""
        notice = new_notice(self._service, "test", self._context.clock())
        if self._receiver is None:
            return wire.NoticeTest(id=notice.id, delivered=False, problem=NOWHERE)
        if not self._testing.acquire(blocking=False):  # each may hold a thread for as long as its timeout
            raise Busy("another test notice is on its way: try again", seconds=5)
        try:
            problem = self._receiver.take(notice.id, body_of(notice))
        finally:
            self._testing.release()
        if problem is None:
            self._context.database.write(store.hurry)
        return wire.NoticeTest(id=notice.id, delivered=problem is None, problem=problem)

    # --- delivery -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                self._prune()
                while not self._closing.is_set() and (row := self._due()) is not None:
                    self._deliver(row)
            except Exception as error:  # the database cannot be read for now: look again
                log.error("notices could not be delivered", extra={"fields": {"kind": type(error).__name__}})
            self._closing.wait(LOOK_SECONDS)

    def _due(self) -> Any:
        """The oldest notice that waits, if it may be sent now."""
        with self._context.database.read() as db:
            row = store.first(db)
        return row if row is not None and (row.next_at is None or row.next_at <= stamp(self._context.clock())) else None

    def _deliver(self, row: Any) -> None:
        assert self._receiver is not None
        problem = self._receiver.take(row.id, row.body)
        told = _outcome(row, problem, self._context.clock())
        if problem is not None:
            fields = {"id": row.id, "state": told["state"], "attempts": told["attempts"]}
            log.warning("a notice did not arrive", extra={"fields": fields})
        self._keep(lambda db: store.change(db, row.seq, **told))

    def _keep(self, work: Callable[[Connection], None]) -> None:
        """Store what came of an attempt before the next one: a full disk must not make us send without end."""
        while True:
            try:
                return self._context.database.write(work)
            except (BlindoptError, StoreFault):
                if self._closing.wait(LOOK_SECONDS):
                    return None

    def _prune(self) -> None:
        now = self._context.clock()
        if now >= self._prune_at:
            self._prune_at = now + timedelta(seconds=PRUNE_SECONDS)
            self._context.database.write(lambda db: store.prune(db, now - KEPT, now, STALE))


def _outcome(row: Any, problem: str | None, now: datetime) -> dict[str, Any]:
    """What is stored after an attempt."""
    attempts = row.attempts + 1
    told = {"attempts": attempts, "problem": problem, "next_at": None}
    if problem is None:
        return told | {"state": "delivered", "ended_at": stamp(now)}
    if attempts >= ATTEMPTS_MIN and now - moment(row.created_at) >= GIVE_UP_AFTER:
        return told | {"state": "failed", "ended_at": stamp(now)}
    seconds = min(FIRST_WAIT_SECONDS * 2.0 ** min(row.attempts, 30), LONGEST_WAIT_SECONDS)
    return told | {"state": "pending", "next_at": stamp(now + timedelta(seconds=seconds))}
