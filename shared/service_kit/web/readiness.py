"""Whether the service is ready, as monitors ask: answered soon, however busy its threads and its disk are."""

import asyncio
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from blindopt.errors import StorageUnavailable

PATIENCE_SECONDS = 0.05
OLDEST_SECONDS = 10.0


class DiskSpace:
    """The free space of the disk with the data folder, below which no new work begins: what has begun needs it."""

    def __init__(self, folder: Path, minimum: int) -> None:
        self._folder, self._minimum = folder, minimum

    @property
    def free(self) -> int:
        """Free bytes."""
        return shutil.disk_usage(self._folder).free

    def check(self) -> None:
        """Raise StorageUnavailable if less than the minimum is free."""
        if self.free < self._minimum:
            raise StorageUnavailable(
                f"the disk of the data folder has less than {self._minimum:,} free bytes (DISK_MIN_BYTES): no new work "
                "begins"
            )


class Readiness:
    """Runs a check that may block, in a thread of its own, one at a time.

    Where it takes longer than ``PATIENCE_SECONDS``, the result before it counts, unless that is older than
    ``oldest_seconds``.
    """

    def __init__(self, check: Callable[[], None], oldest_seconds: float = OLDEST_SECONDS) -> None:
        self._check, self._oldest_seconds = check, oldest_seconds
        self._thread = ThreadPoolExecutor(1, "readiness")
        self._running: Future[None] | None = None
        self._last: tuple[float, BaseException | None] = (float("-inf"), None)

    async def check(self) -> None:
        """Raise what the check raises."""
        if self._running is None or self._running.done():
            self._running = self._thread.submit(self._run)
        running = asyncio.wrap_future(self._running)
        await asyncio.wait([running], timeout=PATIENCE_SECONDS)
        if not running.done() and time.monotonic() - self._last[0] > self._oldest_seconds:
            await asyncio.wait([running])
        if self._last[1] is not None:
            raise self._last[1].with_traceback(None)

    def _run(self) -> None:
        fault = None
        try:
            self._check()
        except Exception as error:
            fault = error
        self._last = (time.monotonic(), fault)
