"""The lease of a worker on its run: writes while it holds, and requests that are retried."""

import random
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from blindopt.errors import BlindoptError, Remote, Unreachable
from modeler_service import store
from modeler_service.runs.interrupts import Interrupt, Interrupted
from modeler_service.settings import Settings
from service_kit.context.context import ServiceContext
from service_kit.store.base import stamp
from service_kit.store.database import Connection

T = TypeVar("T")


def can_retry(error: BlindoptError) -> bool:
    """Whether the same request may succeed later."""
    return error.remote_retryable if isinstance(error, Remote) else error.retryable


class RunLease:
    """The right of one worker to write a run, as long as ``number`` is the run's latest lease."""

    def __init__(
        self, context: ServiceContext, settings: Settings, run_id: str, number: int, interrupt: Interrupt
    ) -> None:
        self.context, self.settings, self.run_id, self.interrupt = context, settings, run_id, interrupt
        self._number = number

    @property
    def now(self) -> datetime:
        """The time of the service's clock."""
        return self.context.clock()

    def retry(self, call: Callable[[], T]) -> T:
        """Call, and again with longer pauses while a retry may help. Raises Interrupted during a pause."""
        wait = 0.1
        for remaining in reversed(range(self.settings.retry_attempts)):
            try:
                result = call()
                self.interrupt.progress()
                return result
            except (Remote, Unreachable) as error:
                if not remaining or not can_retry(error):
                    raise
                retry_after = (error.retry_after_s if isinstance(error, Remote) else None) or 0.0
            # Jitter keeps many runs from retrying in step; it is no secret and decides nothing.
            pause = max(wait * random.uniform(0.5, 1.0), retry_after)  # noqa: S311
            self.interrupt.wait(min(pause, self.settings.retry_seconds_max))
            wait *= 2
        raise AssertionError("unreachable")

    def check(self, db: Connection) -> None:
        """Raise Interrupted if the run was given to another worker meanwhile."""
        if not store.beat(db, self.run_id, self._number, stamp(self.now)):
            raise Interrupted

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction that reads."""
        with self.context.database.read() as db:
            return work(db)

    def write(self, work: Callable[[Connection], object]) -> None:
        """Run ``work`` in one transaction. Raises Interrupted if the run was given to another worker meanwhile."""

        def leased(db: Connection) -> None:
            self.check(db)
            work(db)

        self.context.database.write(leased)
