"""Delivery of notices in their order, at least once, and the state of each delivery."""

import logging
import threading
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from blindopt import wire
from blindopt.errors import BlindoptError, Busy
from service_kit.background import Background
from service_kit.context.context import ServiceContext
from service_kit.context.exclusive import exclusive
from service_kit.context.outbox import Service, body_of, new_notice, view
from service_kit.notices.receiver import Receiver
from service_kit.notices.webhooks import Retries
from service_kit.store import notices as store
from service_kit.store.base import moment, stamp
from service_kit.store.database import StoreFault
from service_kit.store.notices import NoticeRow

log = logging.getLogger("blindopt.notices")
POLL_SECONDS = 0.5
RETRIES = Retries(first_s=1.0, longest_s=3_600.0, tried_for=timedelta(days=3))
KEEP_FOR = timedelta(days=30)
PRUNE_SECONDS = 3_600.0
NOWHERE = "no receiver is set: set NOTIFY_URL and NOTIFY_SECRET_FILE where this service runs"
STALE = "it waited for 30 days: no receiver was set, or the service did not run"


class NoticeDelivery(Background):
    """One thread that sends the notices of the outbox, if there is a receiver.

    The oldest is sent first and the others wait for it, so that a receiver sees them in the order of their events. A
    notice that was not delivered is sent again at growing intervals, for three days. After a crash between a delivery
    and its record, a notice is sent again, with the same id.
    """

    def __init__(
        self,
        context: ServiceContext,
        service: Service,
        receiver: Receiver | None,
        *,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._context = context
        self._service = service
        self._receiver = receiver
        self._poll_seconds = poll_seconds
        super().__init__("notices", self._deliver_due, every_s=poll_seconds)
        self._testing = threading.Lock()
        self._prune_at = datetime.min.replace(tzinfo=context.clock().tzinfo)

    def start(self) -> None:
        if self._receiver is not None:
            super().start()

    # --- requests -----------------------------------------------------------------------------------

    def page(self, after: int, limit: int) -> list[tuple[int, wire.NoticeView]]:
        with self._context.database.read() as db:
            return [(row.seq, view(row)) for row in store.page(db, after=after, limit=limit)]

    def test(self) -> wire.NoticeTest:
        """Send a test notice, which is not stored. If it arrives, pending notices are sent at once. Raises Busy."""
        notice = new_notice(self._service, "test", self._context.clock())
        if self._receiver is None:
            return wire.NoticeTest(id=notice.id, delivered=False, problem=NOWHERE)
        # One at a time: each holds a thread until it is delivered or times out.
        with exclusive(self._testing, 0, Busy("another test notice is on its way: try again", seconds=5)):
            problem = self._receiver.send(notice.id, body_of(notice))
        if problem is None:
            self._context.database.write(store.retry_now)
        return wire.NoticeTest(id=notice.id, delivered=problem is None, problem=problem)

    # --- delivery -----------------------------------------------------------------------------------

    def _deliver_due(self) -> None:
        self.prune()
        while not self.closing.is_set() and (row := self._due()) is not None:
            self._deliver(row)

    def _due(self) -> NoticeRow | None:
        """The oldest pending notice, if its next attempt is due, or later than it can be: the clock was set back."""
        with self._context.database.read() as db:
            row = store.first_pending(db)
        now = self._context.clock()
        latest = now + timedelta(seconds=RETRIES.longest_s)
        waits = row is not None and row.next_at is not None and stamp(now) < row.next_at <= stamp(latest)
        return None if waits else row

    def _deliver(self, row: NoticeRow) -> None:
        assert self._receiver is not None
        problem = self._receiver.send(row.id, row.body)
        changes = outcome(row, problem, self._context.clock())
        if problem is not None:
            fields = {"id": row.id, "state": changes["state"], "attempts": changes["attempts"]}
            log.warning("a notice did not arrive", extra={"fields": fields})
        while True:  # before the next attempt, so that a full disk does not cause endless sending
            try:
                return self._context.database.write(partial(store.change, seq=row.seq, **changes))
            except (BlindoptError, StoreFault):
                if self.closing.wait(self._poll_seconds):
                    return None

    def prune(self) -> None:
        """Delete old notices, at most once an hour."""
        now = self._context.clock()
        if now >= self._prune_at:
            self._prune_at = now + timedelta(seconds=PRUNE_SECONDS)
            self._context.database.write(lambda db: store.prune(db, now - KEEP_FOR, now, STALE))


def outcome(row: NoticeRow, problem: str | None, now: datetime) -> dict[str, Any]:
    """The columns to store after an attempt; ``row`` is the notice before it."""
    attempts = row.attempts + 1
    columns = {"attempts": attempts, "problem": problem, "next_at": None}
    if problem is None:
        return columns | {"state": "delivered", "ended_at": stamp(now)}
    if RETRIES.are_over(attempts, moment(row.created_at), now):
        return columns | {"state": "failed", "ended_at": stamp(now)}
    return columns | {"state": "pending", "next_at": stamp(now + timedelta(seconds=RETRIES.wait_s(attempts)))}
