"""The child's end of the protocol."""

import json
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, Generic, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from blindopt.arrays import Matrix
from blindopt.errors import BlindoptError, ReleaseImpossible, TuningImpossible

PROGRESS_STEP = 0.002
"""The smallest progress that is sent."""


class Message(BaseModel):
    """A job or a reply. An error of its validation quotes no value, because values may be private."""

    model_config = ConfigDict(defer_build=True, frozen=True, hide_input_in_errors=True)


class Reply(Message):
    """Progress, a part of the result, or the end of a job: each kind of work adds fields for its results."""

    progress: float | None = None
    """The share of the job that is done."""
    problem: str | None = None
    """Why the job failed."""
    is_impossible: bool = False
    """Whether it failed because a release or a tuning like this cannot be made."""
    field: str | None = None
    """The field of the request that makes it impossible."""
    is_last: bool = False


JobT = TypeVar("JobT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Reply)


class Sender(Generic[ReplyT]):
    """Sends the replies of one job, each as soon as it is known."""

    def __init__(self, reply: type[ReplyT], sink: BinaryIO) -> None:
        self._reply = reply
        self._sink = sink
        self._progress = 0.0

    def send(self, reply: ReplyT) -> None:
        self._sink.write(reply.model_dump_json().encode() + b"\n")
        self._sink.flush()

    def progress(self, share: float) -> None:
        """Send the share of the job that is done, unless it hardly changed."""
        if share - self._progress >= PROGRESS_STEP:
            self._progress = share
            self.send(self._reply(progress=min(share, 1.0)))


@dataclass(frozen=True, slots=True)
class Program(Generic[JobT, ReplyT]):
    """A kind of work for child processes. ``module`` holds it under the name PROGRAM.

    ``work`` takes a job, the array that came with it (None without one) and a sender, and returns the last reply.
    ``out_of_memory`` and ``advice`` are for the owner: the problem where memory is short, and what to do about a fault.
    """

    module: str
    job: type[JobT]
    reply: type[ReplyT]
    work: Callable[[JobT, Matrix | None, Sender[ReplyT]], ReplyT]
    core: int
    """Counted from the last core: kinds of work with different numbers share no core where there are enough."""
    niceness: int = 0
    out_of_memory: str = "memory was short"
    advice: str = ""

    def run(self) -> None:
        """Do jobs from the standard input, on one core, until the curator closes it."""
        os.nice(self.niceness)
        os.sched_setaffinity(0, {nth_core(self.core, os.sched_getaffinity(0))})
        with open(0, "rb", closefd=False) as source, open(1, "wb", closefd=False) as sink:
            self.serve(source, sink)

    def serve(self, source: BinaryIO, sink: BinaryIO) -> None:
        """Do jobs until ``source`` closes. Then this process ends at once, even in the middle of a job."""
        jobs: queue.SimpleQueue[tuple[bytes, Matrix | None]] = queue.SimpleQueue()

        def read() -> None:
            try:
                while job := source.readline():
                    jobs.put((job, _read_array(source)))
            finally:
                os._exit(1)

        threading.Thread(target=read, daemon=True).start()
        try:
            while True:
                self.do(*jobs.get(), sink)
        finally:
            os._exit(1)  # at once: closing ``source`` would wait for the thread that reads it

    def do(self, job: bytes, array: Matrix | None, sink: BinaryIO) -> None:
        """Do one job and send its replies. No text of an error leaves but that of a BlindoptError, which is public."""
        sender, request = Sender(self.reply, sink), self.job.model_validate_json(job)
        try:
            last = self.work(request, array, sender)
        except BlindoptError as error:
            is_impossible = isinstance(error, ReleaseImpossible | TuningImpossible)
            field = error.field if isinstance(error, TuningImpossible) else None
            last = self.reply(problem=str(error), is_impossible=is_impossible, field=field)
        except MemoryError:
            last = self.reply(problem=self.out_of_memory)
        except Exception as error:  # its text may quote a value
            last = self.reply(problem=f"a fault on our side ({type(error).__name__}){self.advice}")
        sender.send(last.model_copy(update={"is_last": True}))


def _read_array(source: BinaryIO) -> Matrix | None:
    shape = json.loads(source.readline())
    if shape is None:
        return None
    return np.frombuffer(source.read(8 * int(np.prod(shape)))).reshape(shape)


def nth_core(number: int, allowed: set[int]) -> int:
    """The ``number``-th of the ``allowed`` cores, counted from the last, modulo their number."""
    return sorted(allowed, reverse=True)[number % len(allowed)]
