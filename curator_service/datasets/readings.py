"""Files are read in processes of their own: two CSV files or one Parquet file at once; others wait in their order."""

import asyncio
import io
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO, TypeVar

from starlette.concurrency import run_in_threadpool

from blindopt import wire
from blindopt.errors import Busy, DatasetInvalid
from curator_service.datasets import is_parquet, refuse
from curator_service.datasets.worker import Job, Reply, Worker, read
from curator_service.vault import new_id
from service_kit import runner

T = TypeVar("T")
AT_ONCE = 2
SMALL_BYTES = 128 << 10
"""A CSV file up to this is read in the service: at once, within a few megabytes, and sooner than a process starts."""
_PACKED = b"\x1f\x8b"


@dataclass(slots=True, eq=False)
class Reading:
    """A file that is read or waits for its turn."""

    filename: str
    is_small: bool
    id: str = field(default_factory=lambda: new_id("rdg"))
    progress: float = 0.0
    is_running: bool = False
    is_over: bool = False
    """Whether the service ends."""
    make_worker: Callable[[Job], Worker] = Worker
    """Starts the process that reads."""
    _worker: Worker | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def parquet(self) -> bool:
        """Whether it is a Parquet file."""
        return is_parquet(self.filename)

    @property
    def turns(self) -> int:
        """How many of the files that are read at once it counts for: Parquet takes more memory."""
        return AT_ONCE if self.parquet else 1

    def descriptor(self, file: BinaryIO) -> int | None:
        """The descriptor of a file for the process that reads it; None without a process."""
        return None if self.is_small else file.fileno()

    def read(self, job: Job, file: BinaryIO) -> Reply:
        """Do a job. Raises DatasetInvalid, Busy where the reading was interrupted, and OSError of a full disk."""
        reply = read(job, file, _Silent(Reply, io.BytesIO())) if self.is_small else self._in_process(job)
        if reply.errno is not None:
            raise OSError(reply.errno, os.strerror(reply.errno))
        if reply.errors:
            raise DatasetInvalid(reply.problem or "", reply.errors, reply.errors_total)
        if reply.problem is not None:
            raise refuse(f"the file cannot be read: {reply.problem}")
        return reply

    def _in_process(self, job: Job) -> Reply:
        with self._lock:
            self._worker = None if self.is_over else self.make_worker(job)
        reply = Reply()
        if self._worker is not None:
            try:
                for reply in self._worker.work(job):
                    self.progress = reply.progress or self.progress
            finally:
                status = self._worker.end()
        if reply.is_last:
            return reply
        if self._worker is not None and status in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):
            raise refuse("the file is damaged: reading it ended the process that reads")
        raise Busy("the reading of the file was interrupted, and nothing was stored: send it again", seconds=5)

    def end(self) -> None:
        """Interrupt the reading."""
        with self._lock:
            self.is_over = True
            if self._worker is not None:
                with suppress(ProcessLookupError):
                    self._worker.kill()


class _Silent(runner.Sender[Reply]):
    """The sender of a job that is done here: nobody waits for its progress."""

    def progress(self, share: float) -> None:
        """Send nothing."""


class Readings:
    """The queue of files to read. ``run`` belongs to the event loop."""

    def __init__(self) -> None:
        self._readings: list[Reading] = []
        self._turns: dict[Reading, asyncio.Event] = {}
        self._is_closed = False

    async def run(self, filename: str, file: BinaryIO, work: Callable[[Reading], T]) -> T:
        """Call ``work`` in a thread, when it is the file's turn; a small CSV file does not wait."""
        reading = Reading(filename, _is_small(filename, file), is_over=self._is_closed)
        if reading.is_small:
            return await run_in_threadpool(work, reading)
        self._readings.append(reading)
        self._turns[reading] = asyncio.Event()
        try:
            self._advance()
            await self._turns[reading].wait()
            return await run_in_threadpool(work, reading)
        finally:
            self._readings.remove(reading)
            del self._turns[reading]
            self._advance()

    def _advance(self) -> None:
        taken = sum(reading.turns for reading in self._readings if reading.is_running)
        for reading in self._readings:
            if reading.is_running:
                continue
            if taken + reading.turns > AT_ONCE:  # others do not pass it
                return
            taken += reading.turns
            reading.is_running = True
            self._turns[reading].set()

    def under_way(self) -> list[wire.JobView]:
        """The files that are read or wait, in the order in which they came; their names are their owners' alone."""
        return [
            wire.JobView(
                kind="reading",
                id=reading.id,
                study_id=None,
                name=f"a {'Parquet' if reading.parquet else 'CSV'} file",
                progress=reading.progress,
                ahead=0 if reading.is_running else position,
            )
            for position, reading in enumerate(list(self._readings))
        ]

    def close(self) -> None:
        """Interrupt all readings: nothing of these files is stored."""
        self._is_closed = True
        for reading in list(self._readings):
            reading.end()


def _is_small(filename: str, file: BinaryIO) -> bool:
    if is_parquet(filename):
        return False
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    begins = file.read(len(_PACKED))
    file.seek(0)
    return size <= SMALL_BYTES and begins != _PACKED
