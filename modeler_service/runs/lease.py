"""A worker's hold of a run: what it writes while it has the lease, and how it tries again."""

import random
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from blindopt.errors import BlindoptError, Remote, Unreachable
from modeler_service import store
from modeler_service.runs.interrupts import Interrupted, Signal
from modeler_service.settings import Settings
from service_kit.context.context import ServiceContext
from service_kit.store.base import stamp
from service_kit.store.database import Connection

T = TypeVar("T")


def can_retry(error: BlindoptError) -> bool:
    """Whether the same request may succeed later."""
    return error.remote_retryable if isinstance(error, Remote) else error.retryable


class Hold:
    """One run in the hands of one worker, while its ``lease`` is the run's."""

    def __init__(self, context: ServiceContext, settings: Settings, identity: str, lease: int, signal: Signal) -> None:
        self.context, self.settings, self.identity, self.signal = context, settings, identity, signal
        self._lease = lease

    @property
    def now(self) -> datetime:
        """The time."""
        return self.context.clock()

    def retry(self, call: Callable[[], T]) -> T:
        """Call again, ever slower, while a retry may help. Interrupted when told so meanwhile."""
        wait = 0.1
        for left in reversed(range(self.settings.retry_attempts)):
            try:
                found = call()
                self.signal.progress()
                return found
            except (Remote, Unreachable) as error:
                if not left or not can_retry(error):
                    raise
                asked = (error.retry_after_s if isinstance(error, Remote) else None) or 0.0
            # Jitter keeps many runs from knocking in step; it is no secret and decides nothing.
            pause = max(wait * random.uniform(0.5, 1.0), asked)  # noqa: S311
            self.signal.wait(min(pause, self.settings.retry_seconds_max))
            wait *= 2
        raise AssertionError("unreachable")

    def check(self, db: Connection) -> None:
        """Interrupted if the run was given to another worker meanwhile."""
        if not store.beat(db, self.identity, self._lease, stamp(self.now)):
            raise Interrupted

    def read(self, work: Callable[[Connection], T]) -> T:
        """What is stored."""
        with self.context.database.read() as db:
            return work(db)

    def write(self, work: Callable[[Connection], None]) -> None:
        """Run ``work`` in one transaction; Interrupted if the run was given to another worker meanwhile."""

        def held(db: Connection) -> None:
            self.check(db)
            work(db)

        self.context.database.write(held)
