"""A worker's hold on its run: how it is interrupted, writes while its lease holds, and requests that are retried."""

import random
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from blindopt.errors import BlindoptError, Remote, SentTooMuch, Unreachable
from modeler_service import store
from modeler_service.settings import Settings
from service_kit.context.context import ServiceContext
from service_kit.context.disk_space import DiskSpace
from service_kit.store.base import stamp
from service_kit.store.database import Connection


class Interrupted(Exception):
    """The run must halt (stop, pause, another token), was given to another worker, or the service closes."""


class Pending(Exception):
    """The query of the run waits to be measured by people: the run waits for it without a worker."""


class Interrupt:
    """A flag that interrupts one worker, and the time of its last progress. Safe to use from several threads."""

    def __init__(self) -> None:
        self._halt = threading.Event()
        self.last_step = time.monotonic()

    def halt(self) -> None:
        """Ask the worker to leave the run after the request under way."""
        self._halt.set()

    def is_set(self) -> bool:
        return self._halt.is_set()

    def check(self) -> None:
        """Raise Interrupted if the worker is to halt."""
        if self._halt.is_set():
            raise Interrupted

    def wait(self, seconds: float) -> None:
        """Sleep; raise Interrupted as soon as the worker is to halt."""
        self.last_step = time.monotonic() + seconds
        if self._halt.wait(seconds):
            raise Interrupted

    def progress(self) -> None:
        self.last_step = time.monotonic()


T = TypeVar("T")
_SOON_S = 60.0
"""A worker leaves a run for whose request the curator names a longer time."""


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
        self._disk = DiskSpace(settings.data_dir, settings.disk_min_bytes)

    @property
    def now(self) -> datetime:
        return self.context.clock()

    def retry(self, call: Callable[[], T]) -> T:
        """Call, and again with longer pauses while a retry may soon help. Raises Interrupted during a pause."""
        wait = 0.1
        for remaining in reversed(range(self.settings.retry_attempts)):
            try:
                result = call()
                self.interrupt.progress()
                return result
            except (Remote, Unreachable) as error:
                retry_after = (error.retry_after_s if isinstance(error, Remote) else None) or 0.0
                if not remaining or not can_retry(error) or retry_after > _SOON_S:
                    raise
            # Jitter keeps many runs from retrying in step; it is no secret and decides nothing.
            pause = max(wait * random.uniform(0.5, 1.0), retry_after)  # noqa: S311
            self.interrupt.wait(min(pause, self.settings.retry_seconds_max))
            wait *= 2
        raise AssertionError("unreachable")

    def count(self, db: Connection, size: int) -> None:
        """Count bytes that the curator makes the run store in this transaction. Raises SentTooMuch beyond the limit."""
        most = self.settings.run_stored_bytes_max
        if not store.count_bytes(db, self.run_id, size, most):
            raise SentTooMuch(
                f"the curator has sent more than the {most:,} bytes that a run may store (RUN_STORED_BYTES_MAX)"
            )

    def check(self, db: Connection) -> None:
        """Raise Interrupted if the run was given to another worker meanwhile."""
        if not store.beat(db, self.run_id, self._number, stamp(self.now)):
            raise Interrupted

    def check_verified(self) -> None:
        """Look for writes of other programs before a query is sent.

        Raises Verifying while one is not verified, and RecordChanged once a finding is about the run. Raises
        StorageUnavailable while the disk is nearly full.
        """
        self._disk.check()
        self.context.database.look()
        self.context.database.foreign_writes.check_verified()
        self.context.audit_trail.check_sound()
        self.context.audit_trail.check_unchanged(self.run_id)

    def read(self, work: Callable[[Connection], T]) -> T:
        with self.context.database.read() as db:
            return work(db)

    def write(self, work: Callable[[Connection], object]) -> None:
        """Run ``work`` in one transaction. Raises Interrupted if the run was given to another worker meanwhile."""

        def leased(db: Connection) -> None:
            self.check(db)
            work(db)

        self.context.database.write(leased)
