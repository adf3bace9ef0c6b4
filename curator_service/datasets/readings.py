"""Files are read in processes of their own: two CSV files or one Parquet file at once; others wait in their order.

A file that is packed by gzip is unpacked before, up to a limit.
"""

import asyncio
import gzip
import hashlib
import io
import os
import signal
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
from starlette.concurrency import run_in_threadpool

from blindopt.errors import Busy, DatasetInvalid
from curator_service.datasets.persons import grouped_apart, spelled_apart
from curator_service.datasets.sources import refuse, too_large
from curator_service.datasets.worker import PROGRAM, Job, Reply, read
from service_kit import runner
from service_kit.identity.tokens import new_id
from service_kit.runner.runner import Kind, Runner, Task

T = TypeVar("T")
AT_ONCE = 2
_ID_SHOWN = 100
WHICH_PERSONS = (
    "are ids one person's that differ in nothing but how they are written? Send folded_1 if they are, or as_written if "
    "they are different persons"
)
MAY_BE_GROUPED = (
    "these ids may be one person's, and differ in the marks between their digits: write them in one way, or send "
    "as_written if they are different persons"
)
SMALL_BYTES = 128 << 10
"""A CSV file up to this is read in the service: at once, within a few megabytes, and sooner than a process starts."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A file that is read in a process, as a task in its turn, or without a ``task`` at once in the service."""

    filename: str
    task: Task[Reply] | None = None

    def descriptor(self, file: BinaryIO) -> int | None:
        """The descriptor of a file for the process that reads it; None without a process."""
        return None if self.task is None else file.fileno()

    def read(self, job: Job, file: BinaryIO) -> Reply:
        """Do a job. Raises DatasetInvalid, Busy where the reading was interrupted, and OSError of a full disk."""
        if self.task is None:
            reply = read(job, file, _Silent(Reply, io.BytesIO()))
        else:
            files = (job.file, job.values, job.numbers, job.digests, job.labels)
            reply = self.task.do(job, files=[file for file in files if file is not None])
            if not reply.is_last:
                if self.task.status in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):
                    raise refuse("the file is damaged: reading it ended the process that reads")
                raise Busy("the reading of the file was interrupted, and nothing was stored: send it again", seconds=5)
        if reply.errno is not None:
            raise OSError(reply.errno, os.strerror(reply.errno))
        if reply.errors:
            raise DatasetInvalid(reply.problem or "", reply.errors, reply.errors_total)
        if reply.problem is not None:
            raise refuse(f"the file cannot be read: {reply.problem}")
        return reply

    def check_ids(self, job: Job, seen: Reply, file: BinaryIO, digests: BinaryIO, numbers: BinaryIO) -> None:
        """Raise DatasetInvalid, with the ids, if a job wrote persons whose ids differ in nothing but their spelling."""
        if job.reading.person is None:
            return
        taken = np.memmap(digests, dtype=np.uint8, mode="r")
        grouped = grouped_apart(taken, seen.grouped)
        if pairs := grouped or ([] if job.reading.person_ids else spelled_apart(taken)):
            rows_of = np.memmap(numbers, dtype=np.int64, mode="r")
            rows = [int(rows_of[index]) for pair in pairs for index in pair]
            ids = dict(zip(rows, self.read(job.model_copy(update={"rows": rows}), file).ids, strict=True))
            spellings = [[ids[int(rows_of[index])][:_ID_SHOWN] for index in pair] for pair in pairs]
            raise refuse(MAY_BE_GROUPED if grouped else WHICH_PERSONS, field="person_ids", spellings=spellings)


class _Silent(runner.Sender[Reply]):
    """The sender of a job that is done here: nobody waits for its progress."""

    def progress(self, share: float) -> None:
        """Send nothing."""


class Readings:
    """The queue of files to read: when the service ends, nothing of them is stored."""

    def __init__(self, runner: Runner) -> None:
        self._kind = runner.add(Kind("reading", PROGRAM, at_once=AT_ONCE))

    async def run(self, filename: str, file: BinaryIO, work: Callable[[Reading], T]) -> T:
        """Call ``work`` in a thread, when it is the file's turn; a small CSV file does not wait."""
        if _is_small(filename, file):
            return await run_in_threadpool(work, Reading(filename))
        format_name, turns = (
            ("Parquet", AT_ONCE) if is_parquet(filename, file) else ("CSV", 1)
        )  # Parquet takes more memory
        # Of the file's name nothing is shown: it is its owner's alone.
        task = Task(self._kind, new_id("rdg"), name=f"a {format_name} file", turns=turns)
        self._kind.enter(task)
        try:
            await asyncio.wrap_future(task.turn)
            return await run_in_threadpool(work, Reading(filename, task))
        finally:
            self._kind.leave(task)


def _is_small(filename: str, file: BinaryIO) -> bool:
    if is_parquet(filename, file):
        return False
    size = file.seek(0, os.SEEK_END)
    return not is_packed(file) and size <= SMALL_BYTES


_MAGIC = b"\x1f\x8b"
_PARQUET = b"PAR1"
_CHUNK = 1 << 20


@contextmanager
def unpacked(file: BinaryIO, limit: int, folder: Path) -> Iterator[BinaryIO]:
    """The file itself, or the content of a gzip file, in a scratch file of ``folder``.

    Raises DatasetInvalid for content of more than ``limit`` bytes, before more of it is written, and for a broken file.
    """
    if not is_packed(file):
        yield file
        return
    with tempfile.TemporaryFile(dir=folder) as content:
        size = 0
        try:
            with gzip.GzipFile(fileobj=file, mode="rb") as packed:
                while chunk := packed.read(_CHUNK):
                    size += len(chunk)
                    if size > limit:
                        raise too_large(limit)
                    content.write(chunk)
        except (gzip.BadGzipFile, EOFError, zlib.error):
            raise refuse("the file is not a whole gzip file") from None
        content.seek(0)
        yield content


def is_packed(file: BinaryIO) -> bool:
    """Whether a file, which is then at its beginning, is packed with gzip."""
    file.seek(0)
    magic = file.read(len(_MAGIC))
    file.seek(0)
    return magic == _MAGIC


def is_parquet(filename: str, file: BinaryIO) -> bool:
    """Whether a file, which is at its beginning, or what is packed in it, begins as Parquet or has such a name."""
    opened = gzip.GzipFile(fileobj=file, mode="rb") if is_packed(file) else file
    try:
        magic = opened.read(len(_PARQUET))
    except (OSError, EOFError, zlib.error):  # a broken archive, which is refused when it is unpacked
        magic = b""
    file.seek(0, io.SEEK_END)  # nothing stays in its buffer, whose place another process may move
    file.seek(0)
    return magic == _PARQUET or filename.lower().removesuffix(".gz").endswith(".parquet")


def digest_of(file: BinaryIO) -> str:
    """SHA-256 of a file, which is then at its beginning again."""
    sha = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        sha.update(chunk)
    file.seek(0)
    return sha.hexdigest()
